"""Factors that a thief's addition hides."""

import numpy as np
import pytest

from neuralmark.anchors.levels import by_size, leftover, overall


def drawn(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


ANCHOR = drawn((96, 64))


@pytest.mark.parametrize("factor", [0.03, 0.5, 20.0])
def test_one_factor_for_all(factor: float) -> None:
    suspect = np.asarray(factor * (ANCHOR + drawn(ANCHOR.shape, 1)), np.float32)
    assert overall(suspect, ANCHOR) == pytest.approx(factor, rel=0.1)
    suspect[:, ::2] = 0  # pruned weights say nothing
    assert overall(suspect, ANCHOR) == pytest.approx(factor, rel=0.15)


@pytest.mark.parametrize(
    "suspect",
    [
        ANCHOR,
        1.02 * ANCHOR,
        ANCHOR + 200 * drawn(ANCHOR.shape, 1),
        drawn(ANCHOR.shape, 2),
        -ANCHOR,
        0 * ANCHOR,
        1e-6 * ANCHOR,
    ],
)
def test_no_factor_where_none_is_clear(suspect: np.ndarray) -> None:
    assert overall(np.asarray(suspect, np.float32), ANCHOR) == 1.0


@pytest.mark.parametrize("shape", [(96, 64), (48, 32, 3, 3)])
def test_sizes_of_rows_and_columns(shape: tuple[int, ...]) -> None:
    anchor = drawn(shape)
    rest = [1] * (len(shape) - 2)
    rows = np.exp(drawn((shape[0], 1, *rest), 1))
    columns = np.exp(drawn((1, shape[1], *rest), 2))
    found = by_size(np.asarray(anchor * rows * columns, np.float32), anchor)
    assert found is not None
    error = np.log(found / (rows * columns))
    assert error.std() < 0.2
    assert by_size(3 * anchor, anchor) is None
    assert by_size(drawn((5,)), drawn((5,))) is None


def test_rows_of_zeros_have_no_size() -> None:
    suspect = ANCHOR * np.exp(drawn((96, 1), 1))
    suspect[:4] = 0
    found = by_size(suspect, ANCHOR)
    assert found is not None
    np.testing.assert_allclose(found[0], found[1])


@pytest.mark.parametrize("shape", [(96, 64), (48, 32, 3, 3)])
def test_what_is_left_shows_factors(shape: tuple[int, ...]) -> None:
    anchor = drawn(shape)
    factors = np.ones(shape, np.float32)
    factors[:5] *= 2.0
    factors[:, :3] *= 0.5
    left = 0.3 * ((factors - 1) * anchor + 0.3 * drawn(shape, 1))
    found = leftover(np.asarray(left, np.float32), anchor, 0.3)
    assert found is not None
    made = np.broadcast_to(found, shape)
    assert made[10, 10].mean() == pytest.approx(1.0, abs=0.1)
    assert made[0, 10].mean() == pytest.approx(2.0, abs=0.25)
    assert made[10, 0].mean() == pytest.approx(0.5, abs=0.25)


def test_nothing_left_shows_nothing() -> None:
    assert leftover(drawn((96, 64), 1), ANCHOR, 1.0) is None
    assert leftover(drawn((96, 64), 1), ANCHOR, 0.0) is None
    assert leftover(drawn((96, 64), 1), 0 * ANCHOR, 1.0) is None
    assert leftover(drawn((5,)), drawn((5,), 1), 1.0) is None
