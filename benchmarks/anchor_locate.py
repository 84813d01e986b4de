"""Where anchor tensors are found: conversions, restructured networks, unrelated networks.

    python -m benchmarks.anchor_locate --data DIR --work DIR [--only NAME] [--json]

DIR of --work is filled by benchmarks._trained. Three tables:

- every conversion of every network: marked tensors found with nothing left to align, and the least
  cosine among them. Must be reached: all (of networks that lost layers: all that are left);
- restructured networks: marked tensors for which the aligner is given the right one, by true names,
  random names, and names handed on to the next tensor of the same shape. Must be reached: all by
  true names, nine in ten by the others where channels only change places, signs and sizes;
- unrelated networks (ResNet-20 against 56, another training of each other network): the most alike
  of all pairs of tensors of one shape. Must be reached: none convincing.

The thresholds were chosen on ResNet-20, ResNet-56 and small untrained GPT-2 and Llama models.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from benchmarks._anchored import MarkedTable, Table, resnet
from benchmarks._common import Report, parser
from benchmarks.conversions import converted
from benchmarks.restructured import networks, rebuilt
from neuralmark import Key
from neuralmark.anchors.locating import locate
from neuralmark.anchors.locating.likeness import convincing, likeness
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.attacks.convert import WAYS
from neuralmark.attacks.restructure import Manner

RESTRUCTURED: tuple[tuple[Manner, float], ...] = (
    ("permute", 1.0),
    ("rescale", 1.0),
    ("flip", 1.0),
    ("dummy", 8),
    ("rotate", 1.0),
    ("all", 8),
)
EASY = ("permute", "rescale", "flip")
ENOUGH = 0.9


def conversions(report: Report, name: str, marked: MarkedTable) -> list[str]:
    """One column: found of all, and the least cosine, for each conversion."""
    column = []
    for how in WAYS:
        suspect = converted(marked.table, how, marked.heads)
        if suspect is None:
            column.append("–")
            continue
        found = locate(TableWeights(suspect), marked.anchor)
        direct = [found[n].cosine for n, _ in marked.placement if n in found and found[n].direct]
        total = len(marked.placement)
        column.append(f"{len(direct)}/{total} {min(direct, default=0):.2f}")
        if how != "drop":
            report.target(
                f"{how}, {name}", len(direct), f"all {total}", passed=len(direct) == total
            )
    return column


def random_names(table: Table) -> dict[str, str]:
    """A new name for each tensor."""
    codes = np.random.default_rng(0).permutation(len(table))
    return {name: f"t{code}" for name, code in zip(table, codes, strict=True)}


def handed_on(table: Table) -> dict[str, str]:
    """The name of the next tensor of the same shape."""
    shapes = defaultdict(list)
    for name, value in table.items():
        shapes[value.shape].append(name)
    groups = shapes.values()
    return {a: b for g in groups for a, b in zip(g, [*g[1:], g[0]], strict=True)}


def right(marked: MarkedTable, suspect: Table, names: dict[str, str]) -> float:
    """The share of the marked tensors for which the right one is taken."""
    renamed = dict(sorted((names[name], value) for name, value in suspect.items()))
    found = locate(TableWeights(renamed), marked.anchor)
    hits = [
        any(np.array_equal(renamed[s], suspect[name]) for s in found[name].view.stored())
        for name, _ in marked.placement
        if name in found
    ]
    return sum(hits) / len(marked.placement)


def restructured(report: Report, name: str, marked: MarkedTable) -> list[list[str]]:
    """A row for each way: the right tensor by true, random and wrong names."""
    rows = []
    for how, amount in RESTRUCTURED:
        suspect = rebuilt(marked.table, how, amount, marked.heads, seed=1)
        if suspect is None:
            continue
        ways = {n: n for n in suspect}, random_names(suspect), handed_on(suspect)
        shares = [right(marked, suspect, names) for names in ways]
        rows.append([name, how, *(f"{100 * share:.0f} %" for share in shares)])
        report.target(f"{how}, {name}, by name", shares[0], "all", passed=shares[0] == 1)
        if how in EASY:
            least = min(shares[1:])
            report.target(f"{how}, {name}, others", least, "0.9", passed=least >= ENOUGH)
    return rows


def pairs(data: Path, work: Path) -> Iterator[tuple[str, Table, Table]]:
    """Networks that have nothing to do with each other."""
    yield "ResNet-20 and 56", resnet(data, 20), resnet(data, 56)
    for folder in sorted(work.glob("*-0")):
        other = work / folder.name.replace("-0", "-1") / "model.safetensors"
        if other.exists():
            tables = [load_file(path) for path in (folder / "model.safetensors", other)]
            yield f"{folder.name.removesuffix('-0')}, two trainings", tables[0], tables[1]


def unrelated(report: Report, label: str, one: Table, two: Table) -> list[str]:
    """The most alike of all pairs of one shape, as a share of what would convince."""
    most = {1: 0.0, 2: 0.0}
    worst, count, shape = 0.0, 0, ()
    for mine in one.values():
        for other in two.values():
            if mine.shape != other.shape or mine.dtype.kind != "f" or mine.ndim == 0:
                continue
            cosine = likeness(mine, other).cosine
            kind = min(mine.ndim, 2)
            most[kind] = max(most[kind], cosine)
            count += 1
            if mine.ndim > 1 and cosine / convincing(mine.size) > worst:
                worst, shape = cosine / convincing(mine.size), mine.shape
    report.target(f"{label}: likest matrix", worst, "less than 1 (convincing)", passed=worst < 1)
    return [label, str(count), f"{most[2]:.2f}", f"{worst:.2f}", str(shape), f"{most[1]:.2f}"]


def main(arguments: list[str] | None = None) -> int:
    """Find everything."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--work", type=Path, required=True)
    options.add_argument("--only", help="one network")
    chosen: argparse.Namespace = options.parse_args(arguments)
    report = Report("anchor tensors found in suspects", chosen.json)
    columns: dict[str, list[str]] = {}
    rows: list[list[str]] = []
    for name, table, heads in networks(chosen.data, chosen.work, chosen.only):
        marked = MarkedTable(table, Key.new(), heads)
        columns[name] = conversions(report, name, marked)
        rows += restructured(report, name, marked)
    table_rows = [[how, *(columns[n][i] for n in columns)] for i, how in enumerate(WAYS)]
    report.table(["conversion", *columns], table_rows, "found of all, least cosine")
    report.table(["network", "way", "true", "random", "wrong names"], rows, "the right tensor")
    head = ["networks", "pairs", "matrices", "of convincing", "shape", "vectors"]
    alike = [unrelated(report, *each) for each in pairs(chosen.data, chosen.work)]
    report.table(head, alike, "most alike of unrelated networks")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
