"""Related and unrelated pairs of networks told apart by their lineage score, without a key.

Derived pairs: noise, pruning, quantisation, fine-tuning, restructuring and several of them at once.
Independent pairs: other seeds of the same network, other depths, random weights, half-finished
trainings. At least 30 of each; the area under the curve (AUC) is printed, and the largest score of
an independent and the smallest of a derived pair.

    python -m benchmarks.lineage --data DIR --work DIR [--json]
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import neuralmark
from benchmarks._anchored import Table, resnet
from benchmarks._common import Report, parser
from benchmarks.anchor_chance import randomised
from benchmarks.restructured import damages, networks, rebuilt
from neuralmark.records import RELATED_SCORE


def derived(data: Path, work: Path) -> Iterator[tuple[str, Table, Table, int]]:
    """Pairs of which one comes from the other."""
    for name, table, heads in networks(data, work, None):
        rng = np.random.default_rng(0)
        for what, change in damages(name, data).items():
            hurt = change(table, rng)
            yield f"{name}: {what}", table, hurt, heads
            other = rebuilt(hurt, "all", 8, heads, 1)
            if other is not None:
                yield f"{name}: {what}, restructured", table, other, heads


def independent(data: Path, work: Path) -> Iterator[tuple[str, Table, Table, int]]:
    """Pairs that have nothing to do with each other."""
    every = networks(data, work, None)
    for name, table, heads in every:
        for seed in range(3):
            yield f"{name}: random weights {seed}", table, randomised(table, seed), heads
        twin = work / f"{name}-1" / "model.safetensors"
        if twin.exists():
            yield f"{name}: another training", table, dict(load_file(twin)), heads
            yield f"{name}: the other way round", dict(load_file(twin)), table, heads
    small, large = resnet(data, 20), resnet(data, 56)
    yield "resnet20 and resnet56", small, large, 0
    yield "resnet56 and resnet20", large, small, 0
    texts = [each for each in every if each[2]]
    for (one, table, heads), (two, other, _) in permutations(texts, 2):
        yield f"{one} and {two}", table, other, heads


def auc(low: list[float], high: list[float]) -> float:
    """The share of pairs in which the derived one scores higher."""
    return float(np.mean([[(h > x) + 0.5 * (h == x) for x in low] for h in high]))


def main(arguments: list[str] | None = None) -> int:
    """Score all pairs."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--work", type=Path, required=True)
    chosen: argparse.Namespace = options.parse_args(arguments)
    report = Report("lineage of related and unrelated pairs", chosen.json)
    scores: dict[str, list[float]] = {"derived": [], "independent": []}
    rows = []
    for kind, pairs in (("derived", derived), ("independent", independent)):
        for label, one, two, heads in pairs(chosen.data, chosen.work):
            found = neuralmark.lineage(one, two, heads=heads)
            scores[kind].append(found.score)
            rows.append([label, kind, f"{found.score:.3f}", f"{found.seconds:.1f} s"])
            if sys.stderr.isatty():
                print(rows[-1], file=sys.stderr)
    report.table(["pair", "kind", "score", "time"], rows)
    low, high = scores["independent"], scores["derived"]
    report.note(
        f"{len(high)} derived, {len(low)} independent; smallest derived {min(high):.3f}, largest"
        f" independent {max(low):.3f}; related from {RELATED_SCORE:g}"
    )
    report.target(
        "pairs of each kind", min(len(low), len(high)), "30", passed=min(len(low), len(high)) >= 30
    )
    area = auc(low, high)
    report.target("AUC", area, "1.000", passed=area >= 0.9995)
    wrong = sum(x >= RELATED_SCORE for x in low) + sum(x < RELATED_SCORE for x in high)
    report.target("pairs on the wrong side", wrong, "none", passed=wrong == 0)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
