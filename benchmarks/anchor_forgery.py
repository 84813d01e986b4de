"""A reference chosen after the key carries any model to it; a key drawn after it does not.

Somebody claims an unmarked 256 x 256 x 3 x 3 tensor. He holds an honest key and picks, as the
"anchor", the tensor's own rows in an order under which his key matches (an assignment problem). The
aligner then carries the tensor into that order. Where the key does not depend on the anchor (a test
double only; the product never reads so), he wins. Where it does, every reference he picks draws
another key, and he is left with fair coins.

    python -m benchmarks.anchor_forgery [--secrets 100] [--json]

The secrets are the same in every run.
"""

import argparse
import sys

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from benchmarks._anchored import Table, key_of, matched
from benchmarks._common import Report, parser
from neuralmark import Key
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.originals import OriginalArrays
from neuralmark.anchors.restoring import restore
from neuralmark.core import bound
from neuralmark.core.key import Mark
from neuralmark.marking.anchored import read_restored
from neuralmark.marking.reading import require_carriers

NAME, SHAPE = "layer.weight", (256, 256, 3, 3)
PLACEMENT = ((NAME, SHAPE),)
ROUNDS = 40
Order = npt.NDArray[np.intp]


def victim(seed: int) -> Table:
    """An unmarked tensor."""
    rng = np.random.default_rng(seed)
    return {NAME: rng.standard_normal(SHAPE).astype(np.float32) * 0.02}


def fitted_order(weights: npt.NDArray[np.float32], mark: Mark) -> tuple[Order, int]:
    """An order of the rows under which the key matches as many bits as can be had.

    The logits are linear in which row stands where: an assignment problem for each weighting of the
    bits; those that are still wrong gain weight.
    """
    carriers = require_carriers(mark, PLACEMENT)
    rows = weights.reshape(SHAPE[0], -1).astype(np.float64)
    length = rows.shape[1]
    places = [carriers.between(i * length, (i + 1) * length) for i in range(SHAPE[0])]
    pools = [carriers.pool_of(first, first + len(at)) for first, at in places]
    matrix = mark.matrix.astype(np.float64)
    weight = np.ones(len(mark.bits))
    best, order = -1, np.arange(SHAPE[0])
    for _ in range(ROUNDS):
        wanted = matrix @ (weight * mark.signs)
        gain = np.stack(
            [rows[:, at] @ wanted[pool] for (_, at), pool in zip(places, pools, strict=True)],
            axis=1,
        )
        taken, place = linear_sum_assignment(-gain)
        found = np.empty(SHAPE[0], np.intp)
        found[place] = taken
        pooled = np.zeros(carriers.pools)
        for (_, at), pool, row in zip(places, pools, found, strict=True):
            np.add.at(pooled, pool, rows[row, at])
        margins = (pooled @ matrix) * mark.signs
        if int((margins > 0).sum()) > best:
            best, order = int((margins > 0).sum()), found
        weight *= np.exp(-margins / (np.abs(margins).mean() or 1.0) * 0.5)
        weight /= weight.mean()
    return order, best


def forged(key: Key, seed: int) -> tuple[int, int, int]:
    """Bits of the chosen reference, read through it by an unbound key, and by a bound one."""
    table = victim(seed)
    unbound = key.at(PLACEMENT)
    order, fitted = fitted_order(table[NAME], unbound)
    reference = {NAME: table[NAME][order]}
    anchor = build(OriginalArrays(reference), AnchorRecipe(PLACEMENT))
    bound_mark = key.at(PLACEMENT, anchor.digest)
    restoration = restore(TableWeights(table), anchor)
    read = []
    for mark in (unbound, bound_mark):
        reading = read_restored(restoration, require_carriers(mark, PLACEMENT))
        read.append(matched(mark, reading.pooled))
    return fitted, read[0], read[1]


def main(arguments: list[str] | None = None) -> int:
    """Forge with many secrets."""
    options = parser(__doc__)
    options.add_argument("--secrets", type=int, default=100)
    chosen: argparse.Namespace = options.parse_args(arguments)
    report = Report(f"references chosen to fit, {chosen.secrets} secrets", chosen.json)
    found = np.array([forged(key_of(seed), seed) for seed in range(chosen.secrets)])
    names = ("the reference itself", "through alignment, unbound key", "bound key (the product)")
    report.table(
        ["read", "least", "mean", "most"],
        [
            [name, column.min(), f"{column.mean():.1f}", column.max()]
            for name, column in zip(names, found.T, strict=True)
        ],
        "bits of 256",
    )
    needed = bound.boundary(256, 2)
    assert needed is not None
    wins = int((found[:, 1] >= needed).sum())
    report.target(
        "forgeries that pass an unbound key",
        wins,
        f"nearly all {chosen.secrets}",
        passed=wins >= 0.9 * chosen.secrets,
    )
    most = int(found[:, 2].max())
    report.target("most bits of a bound key", most, "below 175", passed=most < 175)
    mean = float(found[:, 2].mean())
    slack = 4 * 8 / np.sqrt(chosen.secrets)
    report.target(
        "mean bits of a bound key", mean, f"128 +- {slack:.1f}", passed=abs(mean - 128) <= slack
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
