"""Training with a mark on real CIFAR-10, beside three clean seeds.

    python -m benchmarks.cifar_training --data DIR [--images 20000] [--epochs 3] [--json]

DIR is unpacked with shared/data/unpack.py (or torchvision's folder). A small network with a
256·256·3·3 layer is trained from scratch: clean with three seeds, then with the mark in gradient
and in projection mode. Must be reached: accuracy with the mark within the spread (largest
minus smallest) of the clean seeds below their mean; verified in both modes, 256 of 256 bits in
projection. Prints how far the marked tensor moved beside clean.
"""

import pickle
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import neuralmark
from benchmarks._common import Report, parser
from neuralmark import Key, Verdict

NAME = "conv4.weight"


class SmallCNN(nn.Module):
    """Four convolutions, the last with 256·256·3·3 weights."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 32, 64, 256, 256]
        for i, (inner, outer) in enumerate(pairwise(widths), 1):
            setattr(self, f"conv{i}", nn.Conv2d(inner, outer, 3, padding=1, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(outer))
        self.fc = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        for i in range(1, 5):
            x = functional.relu(getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x)))
            if i < 4:
                x = functional.max_pool2d(x, 2)
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


@dataclass(frozen=True)
class Data:
    """Images as float tensors, normalised."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Result:
    """One training run."""

    name: str
    accuracy: float
    moved: float
    verdict: Verdict | None


def load(folder: Path, images: int) -> Data:
    """CIFAR-10 in its Python layout; the pickles are the data set's own."""

    def read(names: list[str]) -> tuple[Tensor, Tensor]:
        pixels, labels = [], []
        for name in names:
            with (folder / "cifar-10-batches-py" / name).open("rb") as file:
                batch = pickle.load(file, encoding="bytes")
            pixels.append(np.asarray(batch[b"data"]).reshape(-1, 3, 32, 32))
            labels += list(batch[b"labels"])
        stack = torch.from_numpy(np.concatenate(pixels)).float() / 255
        return (stack - 0.47) / 0.25, torch.tensor(labels)

    train_x, train_y = read([f"data_batch_{i}" for i in range(1, 6)])
    test_x, test_y = read(["test_batch"])
    return Data(train_x[:images], train_y[:images], test_x, test_y)


def train(data: Data, epochs: int, seed: int, key: Key | None = None, mode: str = "") -> Result:
    """SGD with momentum, random flips; with a key, one line more."""
    torch.manual_seed(seed)
    model = SmallCNN()
    start = model.get_parameter(NAME).detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    mark = None
    if key is not None:
        mark = neuralmark.attach(model, optimizer, key, tensors=[NAME], mode=mode)
    for _ in range(epochs):
        model.train()
        for batch in torch.randperm(len(data.train_x)).split(128):
            x = data.train_x[batch]
            flip = torch.rand(len(x)) < 0.5
            x = torch.where(flip[:, None, None, None], x.flip(3), x)
            optimizer.zero_grad()
            functional.cross_entropy(model(x), data.train_y[batch]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in data.test_x.split(500)])
    accuracy = 100 * float((found == data.test_y).float().mean())
    weight = model.get_parameter(NAME).detach()
    moved = float((weight - start).norm() / start.norm())
    verdict = None
    if mark is not None and key is not None:
        verdict = neuralmark.verify(model, key, claim=mark.claim())
        mark.detach()
    return Result(mode or f"clean, seed {seed}", accuracy, moved, verdict)


def main(arguments: list[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--data", type=Path, required=True)
    made.add_argument("--images", type=int, default=20_000)
    made.add_argument("--epochs", type=int, default=3)
    options = made.parse_args(arguments)
    report = Report("training with a mark on CIFAR-10", options.json)
    data = load(options.data, options.images)
    report.note(f"{len(data.train_x):,} images, {options.epochs} epochs, tensor {NAME}")
    clean = [train(data, options.epochs, seed) for seed in (0, 1, 2)]
    key = Key.new()
    marked = [train(data, options.epochs, 0, key, mode) for mode in ("gradient", "projection")]
    report.table(
        ["run", "accuracy", "weights moved", "bits", "verdict"],
        [
            [
                r.name,
                f"{r.accuracy:.2f} %",
                f"{100 * r.moved:.1f} %",
                "-" if r.verdict is None else r.verdict.matched,
                "-" if r.verdict is None else r.verdict.status,
            ]
            for r in [*clean, *marked]
        ],
    )
    accuracies = [result.accuracy for result in clean]
    floor = sum(accuracies) / len(accuracies) - (max(accuracies) - min(accuracies))
    for result in marked:
        assert result.verdict is not None
        report.target(
            f"accuracy, {result.name}",
            result.accuracy,
            f"at least {floor:.2f}",
            passed=result.accuracy >= floor,
        )
        wanted = 256 if result.name == "projection" else 227
        report.target(
            f"bits, {result.name}",
            result.verdict.matched,
            f"at least {wanted}",
            passed=result.verdict.matched >= wanted,
        )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
