"""What a mark costs in training: ResNet-18 (CIFAR form), layer3.0.conv2, n=256, k=512.

    python -m benchmarks.training_step [--batch 64] [--steps 6] [--json]

`published`: R rounds of repeat, mask and select (w[mask], the usual way) on the weight, autograd
through them; `masked_select` is the same with the quicker call, for comparison; both and `gradient`
in a row, one thread each. `gradient, cold` and `projection` after the weights were changed all
over, as in training. Must be reached at R=4: the gradient hook at least 20 times cheaper than the
published steps; both modes at most 0.5 % of a clean training step (all threads) at batch 64, timed
at the hook itself (cold). A table for R = 1 … 8.
"""

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import neuralmark
from benchmarks._common import Report, median, parser, seconds_of
from neuralmark import Key, LiveMark, Parameters

NAME = "layer3.0.conv2.weight"
ROUNDS = range(1, 9)
COLUMNS = ("published", "masked_select", "gradient", "gradient, cold", "projection")


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.down = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The residual block."""
        out = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(out)) + self.down(x))


class ResNet18(nn.Module):
    """The CIFAR form: a 3x3 stem of stride 1, no max-pool."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        for i, (inner, outer, stride) in enumerate(widths, 1):
            setattr(
                self,
                f"layer{i}",
                nn.Sequential(Block(inner, outer, stride), Block(outer, outer, 1)),
            )
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = functional.relu(self.bn1(self.conv1(x)))
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


Select = Callable[[Tensor, Tensor], Tensor]


def indexed(values: Tensor, mask: Tensor) -> Tensor:
    """The usual way to select by a mask."""
    return values[mask]


def published_step(
    weight: Tensor, matrix: Tensor, bits: Tensor, rounds: int, select: Select = indexed
) -> Callable[[], None]:
    """R rounds of repeat, mask and select, pooling, projection, loss, backward."""
    mask = bits.bool()

    def step() -> None:
        w = weight.reshape(-1)
        for _ in range(rounds):
            w = w[: len(w) // len(mask) * len(mask)]
            w = select(w, mask.repeat(len(w) // len(mask)))
        pools = matrix.shape[0]
        pooled = w[: len(w) // pools * pools].reshape(-1, pools).mean(0)
        functional.binary_cross_entropy_with_logits(pooled @ matrix, bits).backward()

    return step


def hook_seconds(model: nn.Module, optimizer: torch.optim.Optimizer, mark: LiveMark) -> float:
    """One call of the hook, as the optimizer makes it."""
    if mark.settings.mode == "gradient":
        return seconds_of(lambda: mark.before_step(optimizer, (optimizer,), {}))
    return seconds_of(lambda: mark.after_step(optimizer, (optimizer,), {}))


def main(arguments: list[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--batch", type=int, default=64)
    made.add_argument("--steps", type=int, default=6, help="training steps that are timed")
    options = made.parse_args(arguments)
    report = Report("cost of the mark in a training step", options.json)
    torch.manual_seed(0)
    model = ResNet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    x, y = torch.randn(options.batch, 3, 32, 32), torch.randint(10, (options.batch,))

    def clean_step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    clean_step()
    clean = median([seconds_of(clean_step) for _ in range(options.steps)])
    torch.set_num_threads(1)  # for both sides: what follows is too small to share
    weight = model.get_parameter(NAME)
    before = weight.detach().clone()
    clean_step()
    update = (weight.detach() - before).clone()
    generator = torch.Generator().manual_seed(1)
    rows: list[list[object]] = []
    at_four: dict[str, float] = {}
    for rounds in ROUNDS:
        key = Key.new(Parameters(rounds=rounds))
        times = measure(model, optimizer, key, update, generator)
        at_four = times if rounds == 4 else at_four
        rows.append(
            [
                rounds,
                *(f"{1000 * times[name]:.2f} ms" for name in COLUMNS),
                f"{times['published'] / times['gradient']:.1f} x",
                *(
                    f"{100 * times[name] / clean:.3f} %"
                    for name in ("gradient, cold", "projection")
                ),
            ]
        )
    head = ["R", *COLUMNS, "published/gradient"]
    report.note(f"clean step at batch {options.batch}: {1000 * clean:.0f} ms (median)")
    report.table([*head, "gradient/step", "projection/step"], rows)
    ratio = at_four["published"] / at_four["gradient"]
    report.target("published steps / gradient hook, R=4", ratio, "at least 20", passed=ratio >= 20)
    for mode in ("gradient, cold", "projection"):
        share = 100 * at_four[mode] / clean
        report.target(
            f"{mode} hook / clean step, R=4, %", share, "at most 0.5", passed=share <= 0.5
        )
    return report.finish()


def measure(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    key: Key,
    update: Tensor,
    generator: torch.Generator,
) -> dict[str, float]:
    """Median seconds of the published steps and of both hooks, taken in turn."""
    twin = neuralmark.attach(
        model, optimizer, key, options=neuralmark.AttachOptions(tensors=[NAME], mode="loss")
    )
    mark = key.at(twin.placement)
    twin.detach()
    weight = model.get_parameter(NAME)
    bits = torch.from_numpy(mark.bits.astype(np.float32))
    matrix, rounds = torch.from_numpy(mark.matrix), key.parameters.rounds
    published = published_step(weight, matrix, bits, rounds)
    tuned = published_step(weight, matrix, bits, rounds, torch.masked_select)
    times: dict[str, list[float]] = {name: [] for name in COLUMNS}
    start = weight.detach().clone()
    for mode in ("gradient", "projection"):
        live = neuralmark.attach(
            model, optimizer, key, options=neuralmark.AttachOptions(tensors=[NAME], mode=mode)
        )
        for _ in range(25):
            with torch.no_grad():  # what a step of the optimizer does to the weights
                shuffled = update.reshape(-1)[torch.randperm(update.numel(), generator=generator)]
                weight.add_(shuffled.reshape(update.shape))
            name = "gradient, cold" if mode == "gradient" else mode
            times[name].append(hook_seconds(model, optimizer, live))
        if mode == "gradient":
            in_a_row = {
                "published": partial(seconds_of, published),
                "masked_select": partial(seconds_of, tuned),
                "gradient": partial(hook_seconds, model, optimizer, live),
            }
            for _ in range(4):
                for name, once in in_a_row.items():
                    times[name] += [once() for _ in range(10)][2:]
        live.detach()
        with torch.no_grad():
            weight.copy_(start)
    return {name: median(values) for name, values in times.items()}


if __name__ == "__main__":
    sys.exit(main())
