"""One bound for a whole scan."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from neuralmark.core.bound import boundary, tail
from neuralmark.scanning.family import looks, told


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=6), min_size=1, max_size=6))
def test_all_ways_of_all_pairs_share_one_chance(ways: list[list[int]]) -> None:
    """However many ways each mark has in each target, the union stays below 2^-128."""
    marks = max(len(row) for row in ways)
    among = looks(marks, len(ways))
    chance = Fraction(0)
    for row in ways:
        for trials in row:
            needed = boundary(256, trials * among)
            assert needed is not None
            chance += trials * Fraction(tail(256, needed), 2**256)
    assert chance < Fraction(1, 2**128)


def test_rounds_without_end_share_it_too() -> None:
    shares = [Fraction(looks(3, 5), looks(3, 5, turn)) for turn in range(1, 2000)]
    assert sum(shares) < 1
    assert looks(3, 5, 1) == 2 * looks(3, 5)


def test_the_correction_is_stated() -> None:
    assert told(1, 1) == "1 mark x 1 target x their ways of looking"
    assert told(2, 3, 4).endswith("x 20 for round 4 of watching")


def test_nothing_counts_as_one() -> None:
    assert looks(0, 0) == 1
