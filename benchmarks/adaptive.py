"""The attacker who knows how marks are put back in order: accuracy that he keeps, bits that stay.

    python -m benchmarks.adaptive --data DIR [--picture page.html] [--only NAME] [--json]
    python -m benchmarks.adaptive --data DIR --work DIR --long        (ten times the training)

A published CIFAR-10 ResNet-20 (DIR/weights) carries a default mark with its anchor. Each line of
the picture is one way of attacking, from weak to strong: noise alone; everything rebuilt, then
noise; the adaptive attacker (`adapt`), mild, harsh, with channels removed, with layers factored,
with training afterwards; channels removed only. Must be reached: every copy that keeps more than
half of its accuracy is verified with the anchor, and copies rebuilt without damage have 250 of 256
bits.

--long trains the VGG-like chain of benchmarks._trained on another task (CIFAR-100) for ten times
the steps of its first training, rebuilds it, and reads it. Must be reached: within 5 bits of the
reading before it is rebuilt.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import _trained
from benchmarks._anchored import MarkedTable, Table, resnet
from benchmarks._common import Report, parser
from benchmarks.resnets import DEVIATION, MEAN, ResNet
from neuralmark import Key, zoo
from neuralmark.attacks import Data, LaunchOptions, Result, launch
from neuralmark.attacks.combine import Combine
from neuralmark.core.bound import boundary
from neuralmark.core.key import Parameters
from neuralmark.reports.render import svg
from neuralmark.reports.render.page import figure, page, paragraphs, section, table, text

BITS, CHANCE = 256, 128
NEEDED = boundary(BITS, 2) or BITS
AT_LEAST = 250
NOISE = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
BATCH = 64
"""Of `finetune`."""
TRAINED = "finetune 0.01 1 classifier=keep"


@dataclass(frozen=True)
class Line:
    """One way of attacking: steps with a place for the dial, and what the dial is set to."""

    label: str
    steps: str
    dial: tuple[float, ...] = NOISE


LINES = (
    Line("noise alone", "noise {}"),
    Line("all rebuilt, then noise", "restructure all 8 + noise {}"),
    Line("adaptive", "adapt {}"),
    Line("adaptive, more alike", "adapt {} 0.5 0.1"),
    Line("adaptive, an eighth removed", "adapt {} 0.25 0.05 0.125"),
    Line("adaptive, a quarter removed", "adapt {} 0.25 0.05 0.25"),
    Line("adaptive, factored", "adapt {} + convert factor"),
    Line("adaptive, then trained", f"adapt {{}} + {TRAINED}", (0.1, 0.3, 0.5, 1.0)),
    Line("removed only", "narrow {}", (0.0625, 0.125, 0.25, 0.375, 0.5, 0.75)),
)


@dataclass(frozen=True)
class FrontierPoint:
    """What one attack left."""

    strength: float
    accuracy: float
    placed: int | None
    aligned: int


def live(weights: Table) -> ResNet:
    """A ResNet-20 with these weights."""
    model = ResNet(3)
    state = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
    model.load_state_dict(state, strict=False)
    return model.eval()


def examples(folder: Path, images: int, tests: int) -> Data:
    """CIFAR-10 as these weights want it."""
    found = zoo.data("cifar10", folder, limit=images, test_limit=tests)
    return replace(found, mean=MEAN, deviation=DEVIATION).as_data()


def attacked(marked: MarkedTable, steps: str, data: Data, seed: int) -> Result:
    """One attack on the live network, judged by position and with the anchor."""
    options = LaunchOptions(seed=seed, anchor=marked.anchor)
    return launch(Combine(steps), live(marked.table), marked.key, options, data=data)


def point_of(line: Line, strength: float, marks: list[MarkedTable], data: Data) -> FrontierPoint:
    """The mean accuracy over all secrets, and the fewest bits."""
    found = [
        attacked(marked, line.steps.format(strength), data, seed)
        for seed, marked in enumerate(marks)
    ]
    kept = [each.accuracy_after for each in found if each.accuracy_after is not None]
    placed = [each.after.matched for each in found if each.after is not None]
    aligned = [each.aligned.matched for each in found if each.aligned is not None]
    accuracy = 100 * float(np.mean(kept)) if kept else float("nan")
    return FrontierPoint(strength, accuracy, min(placed, default=None), min(aligned, default=0))


def measured(line: Line, marks: list[MarkedTable], data: Data) -> Iterator[FrontierPoint]:
    """All points of a line; factoring keeps the function, and so the accuracy before it."""
    whole = line.steps.removesuffix(" + convert factor")
    for strength in line.dial:
        point = point_of(line, strength, marks, data)
        if whole != line.steps:  # a factored network has no module: ask the one before
            plain = point_of(replace(line, steps=whole), strength, marks, data)
            point = replace(point, accuracy=plain.accuracy)
        yield point


def drawn(lines: dict[str, list[FrontierPoint]], plain: float) -> str:
    """A page with the picture and its numbers."""
    series = [
        svg.Series(label, sorted((p.accuracy, float(p.aligned)) for p in points))
        for label, points in lines.items()
    ]
    marks = [svg.PlotMark(CHANCE, "by luck"), svg.PlotMark(NEEDED, f"needed: {NEEDED}")]
    said = "matching bits, read with the anchor, against the accuracy that is left"
    plot = svg.line_plot(
        series, ("test accuracy, %", "matching bits"), said, y_range=(0, BITS), levels=marks
    )
    rows = [
        (text(label), f"{p.strength:g}", f"{p.accuracy:.1f}", _bits(p.placed), _bits(p.aligned))
        for label, points in lines.items()
        for p in points
    ]
    head = ("attack", "strength", "accuracy, %", "bits by position", "bits with the anchor")
    words = (
        f"ResNet-20 on CIFAR-10, {plain:.1f} % before any attack; the fewest bits of all secrets."
    )
    body = paragraphs(words) + figure(plot, "Up and to the right is the owner's.", wide=True)
    return page("The adaptive attacker", section("Frontier", body + table(head, rows)))


def _bits(count: int | None) -> str:
    return "other shapes" if count is None else str(count)


def frontier(report: Report, options: argparse.Namespace) -> None:
    """All lines on ResNet-20."""
    data = examples(options.data, options.images, options.tests)
    original = resnet(options.data, 20)
    marks = [MarkedTable(original, secret(i)) for i in range(options.secrets)]
    plain = 100 * float(np.mean([_accuracy(marked, data) for marked in marks]))
    report.note(f"ResNet-20, {options.secrets} secrets, {plain:.1f} % on {options.tests} images")
    lines: dict[str, list[FrontierPoint]] = {}
    for line in LINES:
        if options.only in (None, line.label):
            lines[line.label] = list(measured(line, marks, data))
            rows = [
                [p.strength, f"{p.accuracy:.1f}", _bits(p.placed), p.aligned]
                for p in lines[line.label]
            ]
            report.table(["strength", "accuracy", "position", "anchor"], rows, line.label)
    kept = [p for points in lines.values() for p in points if p.accuracy > plain / 2]
    whole = [
        p.aligned
        for label, points in lines.items()
        if "rebuilt" in label
        for p in points
        if not p.strength
    ]
    if kept:
        least = min(p.aligned for p in kept)
        report.target(
            "fewest bits at over half of the accuracy",
            least,
            f"from {NEEDED}",
            passed=least >= NEEDED,
        )
    if whole:
        report.target(
            "rebuilt without damage", min(whole), f"from {AT_LEAST}", passed=min(whole) >= AT_LEAST
        )
    if options.picture is not None:
        options.picture.write_text(drawn(lines, plain), encoding="utf-8")
        report.note(f"picture: {options.picture}")


def _accuracy(marked: MarkedTable, data: Data) -> float:
    found = attacked(marked, "noise 0", data, 0).accuracy_after
    assert found is not None
    return found


@dataclass(frozen=True)
class Trained:
    """A copy that was trained on, and perhaps rebuilt."""

    steps: str
    result: Result

    @property
    def bits(self) -> int:
        """Read with the anchor."""
        return 0 if self.result.aligned is None else self.result.aligned.matched

    def row(self) -> list[str]:
        """For the table."""
        found = self.result
        placed = None if found.after is None else found.after.matched
        accuracy = 100 * (found.accuracy_after or 0.0)
        return [self.steps, f"{found.steps}", f"{accuracy:.1f}", _bits(placed), f"{self.bits}"]


def long_training(report: Report, options: argparse.Namespace) -> None:
    """Ten times the steps of the first training, on another task; then rebuilt."""
    family = _trained.FAMILIES["vgg"]
    model: Any = _trained.loaded("vgg", _trained.trained("vgg", options.data, options.work))
    state = model.state_dict().items()
    table = {n: v.numpy().copy() for n, v in state if v.dtype.is_floating_point}
    marked = MarkedTable(table, secret(0))
    model.load_state_dict({n: torch.from_numpy(v) for n, v in marked.table.items()}, strict=False)
    found = zoo.data("cifar100", options.data, limit=_trained.IMAGES, test_limit=options.tests)
    epochs = -(-10 * family.steps * BATCH // len(found.train_labels))
    kept = LaunchOptions(anchor=marked.anchor, keep=options.work / "adaptive-long.kept")
    copies = []
    for steps in (f"finetune 0.01 {epochs}", f"finetune 0.01 {epochs} + restructure all 8"):
        done = launch(Combine(steps), model, marked.key, kept, data=found.as_data())
        copies.append(Trained(steps, done))
    head = ["attack", "steps", "accuracy", "position", "anchor"]
    report.table(head, [copy.row() for copy in copies])
    trained, rebuilt = (copy.bits for copy in copies)
    wanted = f"within 5 of {trained}"
    report.target("bits of the rebuilt copy", rebuilt, wanted, passed=rebuilt >= trained - 5)


def secret(number: int) -> Key:
    """A key that is the same in every run, so that an interrupted training goes on."""
    drawn = hashlib.sha256(f"benchmarks.adaptive {number}".encode()).digest()
    return Key(Parameters(), b"", salt=bytes(32), secret=drawn)


def main(arguments: list[str] | None = None) -> int:
    """The frontier, or the long training."""
    made = parser(__doc__)
    made.add_argument("--data", type=Path, required=True)
    made.add_argument("--work", type=Path)
    made.add_argument("--secrets", type=int, default=3)
    made.add_argument("--images", type=int, default=5_000, help="training images of the attacker")
    made.add_argument("--tests", type=int, default=2_000)
    made.add_argument("--only", choices=[line.label for line in LINES])
    made.add_argument("--picture", type=Path)
    made.add_argument("--long", action="store_true")
    options = made.parse_args(arguments)
    if options.long and options.work is None:
        made.error("--long needs --work DIR")
    torch.set_num_threads(1)
    report = Report("the adaptive attacker", options.json)
    (long_training if options.long else frontier)(report, options)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
