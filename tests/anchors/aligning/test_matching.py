"""Channels are matched by likeness, in bounded time."""

import numpy as np
import pytest

from neuralmark.anchors.aligning.matching import Likeness, Where, match, match_blocks
from neuralmark.anchors.moves import GRID, MISSING
from neuralmark.structures.structure import Array

RNG = np.random.default_rng(7)
CHANNELS = RNG.standard_normal((300, 64)).astype(np.float32)
CHANNELS /= np.linalg.norm(CHANNELS, axis=1, keepdims=True)
ORDER = RNG.permutation(300)


def _to(suspect: Array) -> Likeness:
    def likeness(rows: Where, columns: Where) -> Array:
        return np.asarray(CHANNELS[rows] @ suspect[columns].T)

    return likeness


@pytest.mark.parametrize("limit", [1000, 100, 10, 0])
def test_an_order_is_found_whatever_the_limit(limit: int) -> None:
    noise = RNG.standard_normal(CHANNELS.shape).astype(np.float32)
    found = match_blocks(_to(CHANNELS[ORDER] + 0.02 * noise), (300, 300), limit)
    np.testing.assert_array_equal(ORDER[found], np.arange(300))


@pytest.mark.parametrize("limit", [1000, 50])
@pytest.mark.parametrize("count", [320, 250])
def test_more_or_fewer_channels(limit: int, count: int) -> None:
    suspect = np.concatenate([CHANNELS[ORDER], np.zeros((20, 64), np.float32)])[:count]
    found = match_blocks(_to(suspect), (300, count), limit, 0.5)
    there = found != MISSING
    np.testing.assert_array_equal(ORDER[found[there]], np.flatnonzero(there))
    assert there.sum() == min(300, count)


def test_what_is_too_unlike_is_missing() -> None:
    found = match(np.array([[0.9, 0.0], [0.0, 0.05]], np.float32), least=0.1)
    np.testing.assert_array_equal(found, [0, MISSING])


def test_differences_below_the_grid_decide_nothing() -> None:
    near = np.full((2, 2), 0.5, np.float32)
    off = near + np.array([[0, GRID / 4], [GRID / 4, 0]], np.float32)
    np.testing.assert_array_equal(match(near), match(off))


def test_equal_channels_come_to_an_end() -> None:
    asked: list[int] = []

    def likeness(rows: Where, columns: Where) -> Array:
        count = len(np.arange(3000)[rows]), len(np.arange(3000)[columns])
        asked.append(count[0] * count[1])
        return np.ones(count, np.float32)

    found = match_blocks(likeness, (3000, 3000), 100)
    there = found[found != MISSING]
    assert len(set(there.tolist())) == len(there) >= 100
    assert sum(asked) < 10 * 3000 * 3000


def test_no_numbers_and_no_channels_have_an_answer() -> None:
    assert sorted(match(np.full((3, 3), np.nan, np.float32)).tolist()) == [0, 1, 2]
    assert match(np.zeros((2, 0), np.float32)).tolist() == [MISSING, MISSING]
