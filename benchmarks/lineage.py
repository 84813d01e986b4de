"""Related and unrelated pairs of networks told apart by their lineage score, without a key.

Derived pairs: noise, pruning, quantisation, fine-tuning, several of them at once, and each of these
restructured in every way. Independent pairs: other seeds of the same network, networks of other
kinds and depths, random weights. At least 30 of each; the area under the curve (AUC) is printed,
and the largest score of an independent and the smallest of a derived pair. The measure was chosen
on the networks in CHOSEN; the others only validate it. The same for the line of a verdict: the
second model read with the anchor that `embed` would make of the first. Progress goes to stderr, a
line for each pair.

    python -m benchmarks.lineage --data DIR --work DIR [--also DIR] [--json]

--also names a folder of further trainings, of which independent and restructured pairs are made.
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import chain, pairwise, permutations
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import neuralmark
from benchmarks._anchored import MarkedTable, Table, key_of, resnet
from benchmarks._common import Report, parser
from benchmarks.anchor_chance import randomised
from benchmarks.restructured import DAMAGES, damages, networks, rebuilt
from neuralmark.anchors.heads import heads_of
from neuralmark.checkpoints import open_checkpoint
from neuralmark.records import RELATED_SCORE

CHOSEN = ("further bert", "further gpt2", "further llama")
"""On trainings of these kinds (in --also) the measure and its limit were chosen."""
SLOW = ("resnet56",)
"""Not fine-tuned here: it takes longer than all pairs together."""

Pair = tuple[str, Table, Table, int]


def several(table: Table, rng: np.random.Generator) -> Table:
    """Noise, then pruned, then rounded."""
    for change in DAMAGES.values():
        table = change(table, rng)
    return table


def derived(data: Path, work: Path) -> Iterator[Pair]:
    """Pairs of which one comes from the other."""
    for name, table, heads in networks(data, work, None):
        rng = np.random.default_rng(0)
        for what, change in {**DAMAGES, "all three": several}.items():
            yield from both_ways(f"{name}: {what}", table, change(table, rng), heads)


def tuned(data: Path, work: Path) -> Iterator[Pair]:
    """Pairs of which one is the other, fine-tuned; most of the time goes into the training."""
    for name, table, heads in networks(data, work, None):
        change = damages(name, data).get("fine-tuned")
        if change is not None and name not in SLOW:
            hurt = change(table, np.random.default_rng(0))
            yield from both_ways(f"{name}: fine-tuned", table, hurt, heads)


def both_ways(label: str, table: Table, hurt: Table, heads: int) -> Iterator[Pair]:
    """As it is, and restructured in every way that it can be."""
    yield label, table, hurt, heads
    other = rebuilt(hurt, "all", 8, heads, 1)
    if other is not None:
        yield f"{label}, restructured", table, other, heads


def independent(data: Path, work: Path) -> Iterator[Pair]:
    """Pairs that have nothing to do with each other."""
    every = networks(data, work, None)
    for name, table, heads in every:
        for seed in range(2):
            yield f"{name}: random weights {seed}", table, randomised(table, seed), heads
        twin = work / f"{name}-1" / "model.safetensors"
        if twin.exists():
            yield f"{name}: another training", table, dict(load_file(twin)), heads
            yield f"{name}: the other way round", dict(load_file(twin)), table, heads
    small, large = resnet(data, 20), resnet(data, 56)
    yield "resnet20 and resnet56", small, large, 0
    yield "resnet56 and resnet20", large, small, 0
    texts = [each for each in every if each[2] and (work / f"{each[0]}-1").exists()]
    for (one, table, heads), (two, _, _) in permutations(texts, 2):
        # The other seed: networks that began with the same random numbers are related by these.
        other = dict(load_file(work / f"{two}-1" / "model.safetensors"))
        yield f"{one} and {two}", table, other, heads


def further(folder: Path, kind: str) -> Iterator[Pair]:
    """Other trainings, which had no part in any choice."""
    tables = {
        path.parent.name: (
            {n: v for n, v in load_file(path).items() if v.dtype.kind == "f"},
            heads_of(open_checkpoint(path.parent)),
        )
        for path in sorted(folder.glob("*/model.safetensors"))
    }
    firsts = [name for name in tables if name.endswith("-0")]
    for name in firsts:
        table, heads = tables[name]
        twin = tables.get(f"{name.removesuffix('0')}1")
        if kind == "independent" and twin is not None:
            yield f"further {name}: another training", table, twin[0], heads
        if kind == "derived":
            hurt = several(table, np.random.default_rng(0))
            other = rebuilt(hurt, "all", 8, heads, 1)
            if other is not None:
                yield f"further {name}: all three, restructured", table, other, heads
    if kind == "independent":
        for one, two in pairwise(firsts):
            yield f"further {one} and {two}", tables[one][0], tables[two][0], tables[one][1]


def _empty() -> dict[str, list[float]]:
    return {"derived": [], "independent": []}


def in_verdict(one: Table, two: Table, heads: int) -> float:
    """The line of a verdict on the second model with the anchor of the first; -1: there is none."""
    found = MarkedTable(one, key_of(0), heads).aligned(two).lineage
    return -1.0 if found is None else found


def auc(low: list[float], high: list[float]) -> float:
    """The share of pairs in which the derived one scores higher."""
    return float(np.mean([[(h > x) + 0.5 * (h == x) for x in low] for h in high]))


def main(arguments: list[str] | None = None) -> int:
    """Score all pairs."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--work", type=Path, required=True)
    options.add_argument("--also", type=Path, help="further trainings, to validate")
    chosen: argparse.Namespace = options.parse_args(arguments)
    report = Report("lineage of related and unrelated pairs", chosen.json)
    scores, validating, verdicts = (_empty() for _ in range(3))
    rows = []
    for kind, pairs in (("derived", derived), ("independent", independent), ("derived", tuned)):
        more = further(chosen.also, kind) if chosen.also and pairs is not tuned else iter(())
        for label, one, two, heads in chain(pairs(chosen.data, chosen.work), more):
            found = neuralmark.lineage(one, two, heads=heads)
            scores[kind].append(found.score)
            if not label.startswith(CHOSEN):
                validating[kind].append(found.score)
            line = in_verdict(one, two, heads)
            verdicts[kind].append(line)
            times = f"{found.seconds:.1f} s"
            rows.append([label, kind, f"{found.score:.3f}", f"{line:.3f}", times])
            print(f"{len(rows)}:", *rows[-1], file=sys.stderr, flush=True)
    report.table(["pair", "kind", "score", "in a verdict", "time"], rows)
    low, high = scores["independent"], scores["derived"]
    groups = (
        ("all pairs", scores),
        ("validating pairs only", validating),
        ("in a verdict", verdicts),
    )
    for name, group in groups:
        least, most = min(group["derived"]), max(group["independent"])
        counts = len(group["derived"]), len(group["independent"])
        report.note(
            f"{name}: {counts[0]} derived, smallest {least:.3f}; {counts[1]} independent, largest"
            f" {most:.3f}; related from {RELATED_SCORE:g}"
        )
    spent = [float(row[-1].removesuffix(" s")) for row in rows]
    report.note(f"seconds a pair: median {np.median(spent):.1f}, longest {max(spent):.1f}")
    report.target(
        "pairs of each kind", min(len(low), len(high)), "30", passed=min(len(low), len(high)) >= 30
    )
    for name, group in (("", scores), (", in a verdict", verdicts)):
        low, high = group["independent"], group["derived"]
        area = auc(low, high)
        report.target(f"AUC{name}", area, "1.000", passed=area >= 0.9995)
        wrong = sum(x >= RELATED_SCORE for x in low) + sum(x < RELATED_SCORE for x in high)
        report.target(f"pairs on the wrong side{name}", wrong, "none", passed=wrong == 0)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
