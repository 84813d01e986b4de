"""Whether matches of many keys are those of fair coins."""

from itertools import pairwise

import numpy as np
from scipy.stats import binom, chisquare

KEYS = 2000


def require_coins(counts: np.ndarray) -> None:
    """Mean, variance and shape of the binomial law."""
    bits = len(counts) - 1
    at = np.arange(bits + 1)
    mean = float(counts @ at) / KEYS
    variance = float(counts @ (at - mean) ** 2) / (KEYS - 1)
    assert abs(mean - bits / 2) < 4 * np.sqrt(bits / 4 / KEYS)
    assert abs(variance / (bits / 4) - 1) < 4 * np.sqrt(2 / KEYS)
    assert chi_square(counts) > 1e-4


def chi_square(counts: np.ndarray) -> float:
    """How likely counts as odd as these are, if every bit is a fair coin."""
    bits = len(counts) - 1
    expected = binom.pmf(np.arange(bits + 1), bits, 0.5) * KEYS
    inner = np.flatnonzero(expected >= 5)
    edges = [0, *range(int(inner[0]) + 1, int(inner[-1]) + 1), bits + 1]
    bins = [(counts[low:high].sum(), expected[low:high].sum()) for low, high in pairwise(edges)]
    found = chisquare([seen for seen, _ in bins], [wanted for _, wanted in bins])
    return float(found.pvalue)
