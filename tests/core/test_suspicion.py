"""Labels drawn by a hash, and the exact chance of meeting them."""

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from neuralmark.core.suspicion import hashed_labels, luck_log2


def test_every_class_is_as_likely() -> None:
    labels = hashed_labels(b"a seed", 20_000, 7)
    assert chisquare(np.bincount(labels, minlength=7)).pvalue > 1e-4
    assert (hashed_labels(b"a seed", 20_000, 7) == labels).all()
    assert (hashed_labels(b"b seed", 20_000, 7) == labels).mean() < 0.2


@pytest.mark.parametrize(("count", "matched", "classes"), [(30, 12, 10), (50, 50, 3), (8, 1, 2)])
def test_the_chance_is_exact(count: int, matched: int, classes: int) -> None:
    tail = binom.sf(matched - 1, count, 1 / classes)
    assert luck_log2(count, matched, classes) == pytest.approx(np.log2(tail), rel=1e-9)


def test_nothing_met_is_no_news() -> None:
    assert luck_log2(30, 0, 10) == 0.0
