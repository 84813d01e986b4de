"""Where the lines are between multiples of a scale and chance; which scale it is."""

import numpy as np
import numpy.typing as npt
import pytest

from neuralmark.core.grid_finding import find_grid
from neuralmark.core.steps import find_steps

Single = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int64]

SCALE = np.float32(0.0123)


def drawn(most: int, size: int, seed: int = 0) -> Codes:
    """Every multiple from -most to most, in random order."""
    every = np.arange(size) % (2 * most + 1) - most
    return np.random.default_rng(seed).permutation(every)


def scaled(codes: Codes) -> Single:
    return (codes * SCALE).astype(np.float32)


@pytest.mark.parametrize(("size", "found"), [(1001, True), (999, False)])
def test_a_thousandth_of_the_values_may_be_no_multiple(size: int, found: bool) -> None:
    values = scaled(drawn(127, size))
    lone = int(np.argmax(values == 64 * SCALE))
    values[lone] = 64.4 * SCALE
    steps = find_steps(values, size, 23, 0.0)
    assert (steps is not None) == found
    if steps is not None:
        assert not steps.unclear
        assert steps.multiples.steps.tolist() == [float(SCALE)]
        assert (steps.multiples.lows.tolist(), steps.multiples.highs.tolist()) == ([-127], [127])
        assert steps.counts.sum() == size - 1


@pytest.mark.parametrize(("most", "found"), [(100, True), (98, False), (60, False)])
def test_a_hundredth_of_the_different_values_may_be_no_multiple(most: int, found: bool) -> None:
    """One of most + 1 sizes is none: of very many values, so that their share does not matter."""
    values = scaled(drawn(most, 6000))
    values[int(np.argmax(values == 50 * SCALE))] = 50.4 * SCALE
    assert (find_steps(values, 6000, 23, 0.0) is not None) == found


def test_most_rows_of_ones_keep_them_beside_a_few_rows_of_twos() -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(-1, 2, (64, 128))
    codes[::8] = rng.integers(-2, 3, (8, 128))
    scales = rng.uniform(0.5, 1.0, (64, 1)).astype(np.float32)
    found = find_steps((codes * scales).astype(np.float32).reshape(-1), 128, 23, 0.0)
    assert found is not None
    np.testing.assert_allclose(found.multiples.steps, scales[:, 0], rtol=1e-6)
    assert found.largest == 2


def test_a_row_of_its_own_kind_has_255_steps_at_most() -> None:
    """Rows that are not among those looked at first: 254 and 255 steps are tried, 256 are not."""
    rows, row = 4096, 32
    rng = np.random.default_rng(2)
    codes = rng.integers(-7, 8, (rows, row))
    codes[:, 0] = 7
    first = np.unique(np.random.default_rng(0).integers(0, rows, 128))[::2]
    special = [index for index in range(100, 200) if index not in first][:4]
    for index, most in zip(special, (253, 254, 255, 256), strict=True):
        codes[index] = rng.integers(1, 120, row) * 2 + 1
        codes[index, :2] = most, 3
    scales = rng.uniform(0.5, 1.0, (rows, 1)).astype(np.float32)
    found = find_steps((codes * scales).astype(np.float32).reshape(-1), row, 23, 0.0)
    assert found is not None
    steps = found.multiples.steps[special]
    np.testing.assert_allclose(steps[:3], scales[special[:3], 0], rtol=1e-6)
    assert steps[3] == 1e300
    assert (found.multiples.lows[special[3]], found.multiples.highs[special[3]]) == (0, 0)


@pytest.mark.parametrize(("more", "stay"), [(8, False), (9, True)])
def test_a_few_zeros_more_than_twice_the_ones_are_chance(more: int, stay: bool) -> None:
    codes = drawn(7, 4096)
    ones = np.flatnonzero(np.abs(codes) == 1)
    zeros = np.flatnonzero(codes == 0)
    wanted = 2 * len(ones) + more - len(zeros)
    others = np.flatnonzero(np.abs(codes) > 1)
    codes[others[:wanted]] = 0
    grid = find_grid(scaled(codes), 64, 23)
    assert grid.multiples is not None
    assert grid.zeros_stay == stay
