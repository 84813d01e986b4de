"""Exact tails and boundaries."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralmark.core.bound import bound_log2, boundary, tail


@pytest.mark.parametrize(
    ("bits", "needed"), [(64, None), (128, None), (256, 227), (512, 400), (1024, 719), (2048, 1318)]
)
def test_known_boundaries(bits: int, needed: int | None) -> None:
    assert boundary(bits) == needed


@given(st.integers(1, 300), st.integers(1, 10**6))
@settings(max_examples=60, deadline=None)
def test_boundary_is_the_smallest_that_holds(bits: int, trials: int) -> None:
    def holds(t: int) -> bool:
        chance = Fraction(sum(math.comb(bits, i) for i in range(t, bits + 1)), 2**bits)
        return trials * chance < Fraction(1, 2**128)

    needed = boundary(bits, trials)
    if needed is None:
        assert not holds(bits)
    else:
        assert holds(needed)
        assert not holds(needed - 1)


@given(st.integers(1, 200), st.data())
@settings(max_examples=60, deadline=None)
def test_tail_counts_the_strings(bits: int, data: st.DataObject) -> None:
    t = data.draw(st.integers(-1, bits + 1))
    assert tail(bits, t) == sum(math.comb(bits, i) for i in range(max(t, 0), bits + 1))


def test_bound_is_corrected_for_trials_and_never_above_one() -> None:
    assert bound_log2(256, 256) == -256
    assert bound_log2(256, 256, 1024) == -246
    assert bound_log2(256, 226) == pytest.approx(-126.06, abs=0.005)
    assert bound_log2(256, 0, 10) == 0
    assert bound_log2(64, 64) == -64


def test_the_shortest_watermark_that_can_prove_needs_every_bit() -> None:
    assert boundary(128) is None
    assert boundary(129) == 129
    assert boundary(129, 2) is None
    assert boundary(130, 3) == 130
