"""What the mark costs real networks: CIFAR-10 ResNet-56 and ResNet-20 at the default strength.

    python -m benchmarks.resnets --data DATA [--keys 8] [--strengths 0.5,1,1.5,2] [--json]

DATA holds `cifar-10-batches-py` and `weights/*resnet20*.th`, `weights/*resnet56*.th`
(akamaster/pytorch_resnet_cifar10). Must be reached: the unmarked accuracies 93.39 and 91.73
(peer: the same network without the mark, on the same 10,000 images), and over the keys a mean
loss of at most 0.15 points (ResNet-56) and 0.35 (ResNet-20) with 256 of 256 bits read.
"""

import argparse
import pickle
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import neuralmark
from benchmarks._common import Report, parser, scratch

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH = 500


class Block(nn.Module):
    """Two 3x3 convolutions; the shortcut has no parameters (subsample and pad with zeros)."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1: nn.Module = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2: nn.Module = nn.BatchNorm2d(outer)
        self.added = outer - inner
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """The usual residual block."""
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        short = x[:, :, :: self.stride, :: self.stride]
        if self.added:
            side = self.added // 2
            short = functional.pad(short, (0, 0, 0, 0, side, self.added - side))
        return functional.relu(out + short)


class ResNet(nn.Module):
    """The CIFAR form: 6·blocks + 2 layers of 16, 32 and 64 channels."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1: nn.Module = nn.BatchNorm2d(16)
        self.layer1 = self._layer(16, 16, 1, blocks)
        self.layer2 = self._layer(16, 32, 2, blocks)
        self.layer3 = self._layer(32, 64, 2, blocks)
        self.linear = nn.Linear(64, 10)

    @staticmethod
    def _layer(inner: int, outer: int, stride: int, blocks: int) -> nn.Sequential:
        rest = [Block(outer, outer, 1) for _ in range(blocks - 1)]
        return nn.Sequential(Block(inner, outer, stride), *rest)

    def early(self, x: Tensor) -> Tensor:
        """What the first third computes."""
        out: Tensor = self.layer1(functional.relu(self.bn1(self.conv1(x))))
        return out

    def late(self, x: Tensor) -> Tensor:
        """Class scores from what the first third computed."""
        scores: Tensor = self.linear(self.layer3(self.layer2(x)).mean((2, 3)))
        return scores

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return self.late(self.early(x))

    def early_weights(self) -> list[Tensor]:
        """All weights of the first third."""
        return [self.conv1.weight, *self.layer1.parameters()]


@dataclass(frozen=True)
class Network:
    """One of the two networks, and what it must reach."""

    name: str
    pattern: str
    blocks: int
    accuracy: float
    loss: float


NETWORKS = (
    Network("ResNet-56", "*resnet56*.th", 9, 93.39, 0.15),
    Network("ResNet-20", "*resnet20*.th", 3, 91.73, 0.35),
)


def test_images(folder: Path) -> tuple[Tensor, Tensor]:
    """The 10,000 test images, normalised, and their labels."""
    # The data set is a pickle by its nature: give only a folder whose origin you trust.
    with (folder / "cifar-10-batches-py" / "test_batch").open("rb") as file:
        batch = pickle.load(file, encoding="bytes")
    pixels = torch.from_numpy(np.asarray(batch[b"data"])).reshape(-1, 3, 32, 32).float() / 255
    shape = (1, 3, 1, 1)
    images = (pixels - torch.tensor(MEAN).reshape(shape)) / torch.tensor(DEVIATION).reshape(shape)
    return images.contiguous(memory_format=torch.channels_last), torch.tensor(batch[b"labels"])


def load(path: Path, blocks: int) -> ResNet:
    """The network with the weights of a .th file."""
    saved = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
    model = ResNet(blocks)
    model.load_state_dict({name.removeprefix("module."): t for name, t in saved.items()})
    for module in model.modules():
        if isinstance(module, Block):
            module.bn1 = fused(module.conv1, module.bn1)
            module.bn2 = fused(module.conv2, module.bn2)
    model.bn1 = fused(model.conv1, model.bn1)
    model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def fused(conv: nn.Conv2d, norm: nn.Module) -> nn.Module:
    """Fold the norm into the convolution: the same function, faster; nothing is left of it."""
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    with torch.no_grad():
        factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        conv.weight.mul_(factor.reshape(-1, 1, 1, 1))
        conv.bias = nn.Parameter(norm.bias - norm.running_mean * factor)
    return nn.Identity()


class Evaluator:
    """Test accuracy; what the unmarked first third computes is kept, as `auto` leaves it alone."""

    def __init__(self, source: Path, blocks: int, data: tuple[Tensor, Tensor]) -> None:
        self.blocks = blocks
        self.images, self.labels = data
        self.plain = load(source, blocks)
        with torch.inference_mode():
            self.kept = [self.plain.early(batch) for batch in self.images.split(BATCH)]

    def accuracy(self, path: Path) -> float:
        """Percent of the test images classified rightly."""
        model = load(path, self.blocks)
        pairs = zip(model.early_weights(), self.plain.early_weights(), strict=True)
        same = all(torch.equal(one, two) for one, two in pairs)
        right = 0
        with torch.inference_mode():
            parts = zip(self.kept, self.images.split(BATCH), self.labels.split(BATCH), strict=True)
            for kept, images, labels in parts:
                scores = model.late(kept if same else model.early(images))
                right += int((scores.argmax(1) == labels).sum())
        return 100 * right / len(self.labels)


@dataclass(frozen=True)
class Outcome:
    """One key in one network."""

    strength: float
    change: float
    bits: int
    verified: bool
    accuracy: float


def mark_and_measure(
    source: Path, evaluator: Evaluator, folder: Path, strength: float | None
) -> Outcome:
    """Mark the file with a fresh key, read the mark back, evaluate the network."""
    key, marked = neuralmark.Key.new(), folder / f"marked{source.suffix}"
    done = neuralmark.embed(
        source, key, marked, options=neuralmark.EmbedOptions(strength=strength), overwrite=True
    )
    verdict = neuralmark.verify(marked, key, claim=done.claim)
    reached = evaluator.accuracy(marked)
    return Outcome(
        done.strength, 100 * done.change_relative, verdict.matched, verdict.verified, reached
    )


def summary(label: str, outcomes: list[Outcome], plain: float) -> list[str]:
    """A row: means over the keys, and the worst."""
    losses = [plain - outcome.accuracy for outcome in outcomes]
    return [
        label,
        f"{np.mean([o.strength for o in outcomes]):.2f}",
        f"{np.mean([o.change for o in outcomes]):.2f} %",
        f"{min(o.bits for o in outcomes)}",
        f"{np.mean([o.accuracy for o in outcomes]):.2f}",
        f"{np.mean(losses):+.3f}",
        f"{max(losses):+.2f}",
        f"{sum(o.verified for o in outcomes)}/{len(outcomes)}",
    ]


HEAD = ["strength", "in σz", "change", "least bits", "accuracy", "mean loss", "worst", "verified"]


def measure(
    report: Report, network: Network, data: tuple[Tensor, Tensor], options: argparse.Namespace
) -> None:
    """Default strength with targets, then the sweep without."""
    source = next((options.data / "weights").glob(network.pattern))
    start = time.monotonic()
    evaluator = Evaluator(source, network.blocks, data)
    plain = evaluator.accuracy(source)
    spent = time.monotonic() - start
    report.note(f"{network.name}: unmarked {plain:.2f} % ({spent:.0f} s the first evaluation)")
    report.target(
        f"{network.name}, unmarked accuracy",
        plain,
        f"{network.accuracy}, within 0.01",
        passed=abs(plain - network.accuracy) < 0.0101,
    )
    rows = []
    with scratch(options.folder) as folder:
        for strength in [None, *options.strengths]:
            outcomes = [
                mark_and_measure(source, evaluator, folder, strength) for _ in range(options.keys)
            ]
            label = "default" if strength is None else f"{strength:g}"
            rows.append(summary(label, outcomes, plain))
            if strength is None:
                judge(report, network, outcomes, plain)
    report.table(HEAD, rows, f"{network.name}, unmarked {plain:.2f} %, {options.keys} keys each")


def judge(report: Report, network: Network, outcomes: list[Outcome], plain: float) -> None:
    """The targets at the default strength."""
    loss = plain - float(np.mean([outcome.accuracy for outcome in outcomes]))
    report.target(
        f"{network.name}, mean loss in points",
        loss,
        f"at most {network.loss}",
        passed=loss <= network.loss,
    )
    least = min(outcome.bits for outcome in outcomes)
    report.target(f"{network.name}, least bits read", least, "256", passed=least == 256)


def numbers(text: str) -> list[float]:
    """Comma-separated numbers."""
    return [float(part) for part in text.split(",") if part]


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument(
        "--data", type=Path, required=True, help="folder with cifar-10-batches-py and weights"
    )
    options.add_argument("--keys", type=int, default=8, help="how many random keys a strength")
    options.add_argument("--strengths", type=numbers, default=[], help="also try these, e.g. 0.5,1")
    options.add_argument("--networks", default="", help="only those whose name contains this")
    options.add_argument("--folder", type=Path, help="where temporary files go")
    chosen = options.parse_args(arguments)
    torch.set_num_threads(2)
    report = Report("what the mark costs CIFAR-10 ResNets", chosen.json)
    data = test_images(chosen.data)
    for network in NETWORKS:
        if chosen.networks in network.name:
            measure(report, network, data, chosen)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
