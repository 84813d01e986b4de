"""Bits that share no weight are written one by one; the twin solves all of them at once."""

import numpy as np
import pytest

from neuralmark.core.imprint import LeastChange
from neuralmark.core.key import Mark, Parameters
from neuralmark.core.rowwise import RowChange, RowReadOut
from neuralmark.errors import InfeasibleError

RNG = np.random.default_rng(0)
BITS, EACH = 6, 5
OWNER = np.array([*np.repeat(np.arange(BITS), EACH), -1, -1])
READ = RowReadOut(RNG.standard_normal(len(OWNER)), OWNER, BITS)
PARAMETERS = Parameters(BITS, 0, 0, scheme="deepipr", filter="none")


def mark() -> Mark:
    """The same read-out as a matrix of pools x bits."""
    matrix = np.zeros((len(OWNER), BITS), np.float32)
    for pool, bit in enumerate(OWNER):
        if bit >= 0:
            matrix[pool, bit] = READ.factors[pool]
    bits = np.array([1, 0, 1, 1, 0, 0], np.uint8)
    return Mark(PARAMETERS, matrix, bits)


@pytest.mark.parametrize("uneven", [False, True])
def test_the_change_is_the_smallest(uneven: bool) -> None:
    effort = RNG.uniform(0.5, 2.0, len(OWNER)) if uneven else 1.0
    pooled = RNG.standard_normal(len(OWNER))
    ours, twin = RowChange(mark(), READ, effort), LeastChange(mark(), effort)
    np.testing.assert_allclose(ours.margins(pooled), twin.margins(pooled), atol=1e-5)
    np.testing.assert_allclose(ours.change(pooled, 2.0), twin.change(pooled, 2.0), atol=1e-5)
    assert ours.cost(pooled, 1.0) == pytest.approx(twin.cost(pooled, 1.0), rel=1e-5)


def test_what_holds_does_not_move() -> None:
    pooled = RNG.standard_normal(len(OWNER))
    solver = RowChange(mark(), READ)
    written = pooled + solver.change(pooled, 3.0)
    assert not solver.change(written, 2.9).any()
    assert not solver.change(pooled, 3.0)[-2:].any()  # they count for no bit


def test_levelled_bits_are_all_as_steep() -> None:
    level = READ.levelled()
    np.testing.assert_allclose(level.lengths(), np.sqrt(len(OWNER)))
    pooled = RNG.standard_normal(len(OWNER))
    assert (np.sign(level.numbers(pooled)) == np.sign(READ.numbers(pooled))).all()


def test_a_row_that_cannot_move_is_named() -> None:
    effort = np.ones(len(OWNER))
    effort[:EACH] = np.inf
    with pytest.raises(InfeasibleError, match="rows that cannot move"):
        RowChange(mark(), READ, effort).change(np.zeros(len(OWNER)), 1.0)
