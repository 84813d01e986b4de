"""Random keys against one unmarked tensor: the matched bits must be those of fair coins.

    python -m benchmarks.random_keys [--keys 100000] [--processes 2] [--json]

Native keys with n = 256, k = 64, R = 2 are derived and read from one fixed 256 x 256 x 3 x 3
Gaussian tensor. Must be reached: a chi-square test of the counts of matched bits against the
binomial law (peer: the exact probabilities) gives p > 0.001; the largest count is one that the
binomial law explains, and far from the boundary of 227.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, chisquare

from benchmarks._common import Report, parser
from neuralmark.core import bound, readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Parameters, Placement, Terms, derive

PARAMETERS = Parameters(bits=256, pools=64, rounds=2)
PLACEMENT: Placement = (("layer3.0.conv2.weight", (256, 256, 3, 3)),)
BATCH = 500
Counts = npt.NDArray[np.int64]


def tensor() -> npt.NDArray[np.float64]:
    """The fixed unmarked weights."""
    return np.random.default_rng(20261115).standard_normal(256 * 256 * 9) * 0.02


def count_matches(seed: int, first: int, last: int) -> Counts:
    """Histogram of matched bits over the keys first … last-1; a key's secret is hashed."""
    weights, counts = tensor(), np.zeros(PARAMETERS.bits + 1, np.int64)
    for number in range(first, last):
        secret = hashlib.sha256(f"random_keys/{seed}/{number}".encode()).digest()
        mark = derive(secret, Terms(PARAMETERS, PLACEMENT))
        carriers = Carriers.of(mark, len(weights))
        pooled = readout.pool(weights[carriers.positions()], PARAMETERS.pools)
        z = readout.logits(pooled, mark.matrix.astype(np.float64))
        counts[int(readout.matches(z, mark.signs).sum())] += 1
    return counts


def collect(seed: int, keys: int, processes: int) -> Counts:
    """All keys, spread over processes; progress on a terminal only."""
    cuts = [*range(0, keys, BATCH), keys]
    counts, start = np.zeros(PARAMETERS.bits + 1, np.int64), time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        jobs = [pool.submit(count_matches, seed, a, b) for a, b in pairwise(cuts)]
        for job in as_completed(jobs):
            counts += job.result()
            if sys.stderr.isatty():
                done, spent = int(counts.sum()), time.monotonic() - start
                left = spent / done * (keys - done)
                print(f"\r{done:,} of {keys:,} keys, {left:.0f} s left ", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return counts


def merged(counts: Counts, least: float = 5.0) -> Iterator[tuple[str, int, float]]:
    """Bins (label, seen, expected), neighbours merged until `least` keys are expected in each."""
    bits, keys = PARAMETERS.bits, int(counts.sum())
    expected = binom.pmf(np.arange(bits + 1), bits, 0.5) * keys
    inner = np.flatnonzero(expected >= least)
    low, high = int(inner[0]), int(inner[-1])
    # The tails go to the outermost bins, which therefore expect at least as much.
    edges = [0, *range(low + 1, high + 1), bits + 1]
    for start, stop in pairwise(edges):
        label = f"{start}" if stop - start == 1 else f"{start}–{stop - 1}"
        yield label, int(counts[start:stop].sum()), float(expected[start:stop].sum())


def likely_largest(keys: int) -> tuple[int, int, float]:
    """Central 99.8 % of the largest count among this many keys, and its mean."""
    at = np.arange(PARAMETERS.bits + 1)
    below = binom.cdf(at, PARAMETERS.bits, 0.5) ** keys
    mean = float((1.0 - below).sum())
    return int(np.searchsorted(below, 0.001)), int(np.searchsorted(below, 0.999)), mean


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--keys", type=int, default=100_000)
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--seed", type=int, default=1)
    chosen: argparse.Namespace = options.parse_args(arguments)
    report = Report(f"{chosen.keys:,} random keys against one unmarked tensor", chosen.json)
    counts = collect(chosen.seed, chosen.keys, chosen.processes)
    bins = list(merged(counts))
    statistic, p_value = chisquare([seen for _, seen, _ in bins], [exp for _, _, exp in bins])
    report.table(
        ["matched bits", "seen", "expected", "seen / expected"],
        [[label, seen, f"{exp:.1f}", f"{seen / exp:.3f}"] for label, seen, exp in bins],
    )
    bits = np.arange(PARAMETERS.bits + 1)
    mean = float(counts @ bits) / chosen.keys
    deviation = float(np.sqrt(counts @ (bits - mean) ** 2 / (chosen.keys - 1)))
    largest, smallest = int(np.flatnonzero(counts)[-1]), int(np.flatnonzero(counts)[0])
    low, high, expected = likely_largest(chosen.keys)
    needed = bound.boundary(PARAMETERS.bits)
    assert needed is not None
    report.note(
        f"mean {mean:.4f} (128), deviation {deviation:.4f} (8), smallest {smallest}, largest"
        f" {largest} (expected {expected:.1f}, likely {low}–{high}), boundary {needed};"
        f" chi-square {statistic:.1f} in {len(bins)} bins"
    )
    report.target("chi-square p", float(p_value), "above 0.001", passed=p_value > 0.001)
    wanted = f"{low} to {high}"
    report.target("largest matched bits", largest, wanted, passed=low <= largest <= high)
    gap = needed - largest
    report.target("bits between the largest and the boundary", gap, "at least 40", passed=gap >= 40)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
