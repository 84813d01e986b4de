"""Every restructuring of networks of seven kinds, trained on real data: bits read with the anchor.

For each network and secret: the mark is written, the network is damaged (or not), rebuilt so that
it computes the same with other weights, perhaps damaged again, and read. Must be reached: 250 of
256 bits undamaged; within 5 of the reading without restructuring after noise of 0.3 deviations,
pruning of 30 %, rounding to int8 or fine-tuning before it; 228 after pruning or rounding behind it.

    python -m benchmarks.restructured --data DIR --work DIR [--secrets 5] [--only NAME] [--nameless]

DIR of --work is filled by benchmarks._trained. With --nameless every tensor of the owner's model
has a name that says nothing, so that it is aligned without any knowledge of the network. ResNet-20
and small networks served to choose the thresholds of the aligner; ResNet-56, ViT and BERT did not.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

from benchmarks import _trained
from benchmarks._anchored import Aligned, MarkedTable, Table, key_of, resnet
from benchmarks._common import Report, parser
from neuralmark import Key
from neuralmark.anchors.heads import heads_of
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.restructure import Manner, Restructure
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import AttackError

WAYS: tuple[tuple[Manner, float], ...] = (
    ("permute", 1.0),
    ("rescale", 1.0),
    ("flip", 1.0),
    ("dummy", 8),
    ("rotate", 1.0),
    ("split", 8),
    ("duplicate", 8),
    ("equalise", 1.0),
    ("vocabulary", 1.0),
    ("all", 8),
)
Change = Callable[[Table, np.random.Generator], Table]


def noise(table: Table, rng: np.random.Generator) -> Table:
    """White noise of 0.3 deviations of each matrix."""
    return {
        n: (v + 0.3 * v.std() * rng.standard_normal(v.shape)).astype(np.float32)
        if v.ndim > 1
        else v
        for n, v in table.items()
    }


def pruned(table: Table, rng: np.random.Generator) -> Table:
    """The smallest 30 % of each matrix set to zero."""
    return {
        n: np.where(np.abs(v) < np.quantile(np.abs(v), 0.3), 0, v).astype(np.float32)
        if v.ndim > 1
        else v
        for n, v in table.items()
    }


def int8(table: Table, rng: np.random.Generator) -> Table:
    """Rounded to 255 steps per row, as deployment tools do."""
    out = {}
    for name, value in table.items():
        if value.ndim > 1:
            rows = value.reshape(len(value), -1)
            steps = np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-12) / 127
            value = (np.rint(rows / steps) * steps).astype(np.float32).reshape(value.shape)
        out[name] = value
    return out


DAMAGES: dict[str, Change] = {"noise 0.3": noise, "pruned 30 %": pruned, "int8": int8}


def damages(name: str, data: Path) -> dict[str, Change]:
    """Those of all networks, and fine-tuning of those that can be trained here."""
    if name not in _trained.FAMILIES:
        return DAMAGES

    def change(table: Table, rng: np.random.Generator) -> Table:
        return _trained.tuned(name, table, data, int(rng.integers(1000)))

    return {**DAMAGES, "fine-tuned": change}


def rebuilt(table: Table, how: Manner, amount: float, heads: int, seed: int) -> Table | None:
    """The network after one way of restructuring; None where it has no such symmetry."""
    try:
        result = launch(
            Restructure(how, amount, heads), dict(table), options=LaunchOptions(seed=seed)
        )
    except AttackError:
        return None
    assert result.weights is not None
    return {n: np.asarray(v, np.float32) for n, v in result.weights.items()}


def networks(data: Path, work: Path, only: str | None) -> list[tuple[str, Table, int]]:
    """Those that are there."""
    found = [("resnet20", resnet(data, 20), 0), ("resnet56", resnet(data, 56), 0)]
    for folder in sorted(work.glob("*-0")):
        whole = load_file(folder / "model.safetensors")
        table = {n: v.astype(np.float32) for n, v in whole.items() if v.dtype.kind == "f"}
        found.append((folder.name.removesuffix("-0"), table, heads_of(open_checkpoint(folder))))
    return [each for each in found if only in (None, each[0])]


class Measured:
    """Bits of one network over all secrets, by what was done."""

    def __init__(self) -> None:
        self.bits: dict[str, list[int]] = {}
        self.gaps: dict[str, list[int]] = {}
        self.position: list[int | None] = []
        self.seconds: list[float] = []

    def add(self, what: str, bits: int, plain: int | None = None) -> None:
        """One reading, and the one without restructuring where it is held against it."""
        self.bits.setdefault(what, []).append(bits)
        if plain is not None:
            self.gaps.setdefault(what, []).append(plain - bits)


@dataclass(frozen=True)
class Nameless:
    """A marked network whose names say nothing to its anchor; attackers know the true ones."""

    marked: MarkedTable
    names: Mapping[str, str]

    @classmethod
    def of(cls, table: Table, key: Key) -> "Nameless":
        """The network under names that are numbers only."""
        names = {name: f"part.{i}.x{i}y" for i, name in enumerate(table)}
        return cls(MarkedTable({names[n]: v for n, v in table.items()}, key), names)

    @property
    def table(self) -> Table:
        """What the thief has."""
        return {name: self.marked.table[new] for name, new in self.names.items()}

    def aligned(self, suspect: Table) -> Aligned:
        """Read with the anchor."""
        return self.marked.aligned(self._renamed(suspect))

    def by_position(self, suspect: Table) -> int | None:
        """Read where it was written."""
        return self.marked.by_position(self._renamed(suspect))

    def _renamed(self, suspect: Table) -> Table:
        return {self.names.get(name, name): value for name, value in suspect.items()}


@dataclass(frozen=True)
class Case:
    """A network, and what is done to it."""

    name: str
    table: Table
    heads: int
    hurting: Mapping[str, Change]
    nameless: bool = False

    def marked(self, number: int) -> MarkedTable | Nameless:
        """With the mark of a key, the same in every run."""
        if self.nameless:
            return Nameless.of(self.table, key_of(number))
        return MarkedTable(self.table, key_of(number), self.heads)


def measure(case: Case, secrets: int) -> Measured:
    """Everything that is done to one network."""
    found, heads = Measured(), case.heads
    for number in range(secrets):
        print(f"{case.name}, secret {number + 1} of {secrets}", file=sys.stderr, flush=True)
        rng = np.random.default_rng(number)
        marked = case.marked(number)
        for how, amount in WAYS:
            other = rebuilt(marked.table, how, amount, heads, number)
            if other is None:
                continue
            read = marked.aligned(other)
            found.add(how, read.bits)
            if how == "all":
                found.seconds.append(read.seconds)
                found.position.append(marked.by_position(other))
        for name, change in case.hurting.items():
            hurt = change(marked.table, rng)
            other = rebuilt(hurt, "all", 8, heads, number)
            plain = marked.by_position(hurt)
            if other is not None and plain is not None:
                found.add(f"{name}, then all", marked.aligned(other).bits, plain)
        for name in ("pruned 30 %", "int8"):
            other = rebuilt(marked.table, "all", 8, heads, number)
            if other is not None:
                found.add(f"all, then {name}", marked.aligned(DAMAGES[name](other, rng)).bits)
    return found


def judge(report: Report, name: str, found: Measured) -> None:
    """Hold one network against the targets."""
    for what, bits in found.bits.items():
        least = min(bits)
        if what in found.gaps:
            gap = max(found.gaps[what])
            report.target(f"{name}, {what}: bits lost", gap, "at most 5", passed=gap <= 5)
        elif what.startswith("all, then") or what == "vocabulary":
            report.target(f"{name}, {what}: least", least, "at least 228", passed=least >= 228)
        else:
            report.target(f"{name}, {what}: least", least, "at least 250", passed=least >= 250)


def main(arguments: list[str] | None = None) -> int:
    """Measure all networks."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--work", type=Path, required=True)
    options.add_argument("--secrets", type=int, default=5)
    options.add_argument("--only", help="one network")
    options.add_argument("--nameless", action="store_true", help="names say nothing")
    chosen: argparse.Namespace = options.parse_args(arguments)
    torch.set_num_threads(1)
    report = Report(
        f"restructured networks read with anchors, {chosen.secrets} secrets", chosen.json
    )
    rows = []
    for name, table, heads in networks(chosen.data, chosen.work, chosen.only):
        case = Case(name, table, heads, damages(name, chosen.data), chosen.nameless)
        found = measure(case, chosen.secrets)
        judge(report, name, found)
        for what, bits in found.bits.items():
            rows.append([name, what, min(bits), f"{np.mean(bits):.1f}"])
        read = [str(bits) for bits in found.position if bits is not None]
        position = ", ".join(read) or "no"
        spent = f"{np.mean(found.seconds):.1f} s" if found.seconds else "–"
        report.note(f"{name}: by position after 'all' {position} bits; aligned in {spent}")
    report.table(["network", "what was done", "least", "mean"], rows, "bits of 256")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
