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


def overlooked(rows: int) -> list[int]:
    """Rows that are not among those from which scales are guessed."""
    first = np.unique(np.random.default_rng(0).integers(0, rows, 128))[::2]
    return [index for index in range(rows) if index not in first]


def test_a_row_of_its_own_kind_has_255_steps_at_most() -> None:
    rows, row = 4096, 32
    rng = np.random.default_rng(2)
    codes = rng.integers(-7, 8, (rows, row))
    codes[:, 0] = 7
    special = overlooked(rows)[:4]
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


def test_values_of_a_row_without_a_scale_are_no_multiples() -> None:
    """Whole numbers up to 256, in one row of 512: more than a thousandth of all."""
    codes = np.random.default_rng(3).integers(-7, 8, (512, 32))
    codes[:, 0] = 7
    scales = np.random.default_rng(4).uniform(0.5, 1.0, (512, 1)).astype(np.float32)
    values = (codes * scales).astype(np.float32)
    assert find_steps(values.reshape(-1), 32, 23, 0.0) is not None
    values[overlooked(512)[0]] = [256, 255, *range(1, 31)]
    assert find_steps(values.reshape(-1), 32, 23, 0.0) is None


def test_blocks_have_eight_values_at_least() -> None:
    rng = np.random.default_rng(5)
    for row, found in ((8, True), (7, False)):
        codes = rng.integers(-7, 8, (512, row))
        codes[:, 0] = 7
        scales = rng.uniform(0.5, 1.0, (512, 1)).astype(np.float32)
        values = (codes * scales).astype(np.float32).reshape(-1)
        steps = find_steps(values, row, 23, 0.0)
        assert (steps is not None) == found


def test_rows_longer_than_what_is_looked_at_in_one_go_have_one_scale() -> None:
    codes = np.stack([drawn(7, 70_001, seed) for seed in (1, 2, 3)])
    scales = np.array([[0.5], [0.7], [0.9]], np.float32)
    found = find_steps((codes * scales).astype(np.float32).reshape(-1), 70_001, 23, 0.0)
    assert found is not None
    assert found.name == "multiples of 3 row scales"
    np.testing.assert_allclose(found.multiples.steps, scales[:, 0], rtol=1e-7)
    assert found.multiples.anchors.tolist() == [
        index * 70_001 + int(np.abs(row).argmax()) for index, row in enumerate(codes)
    ]


@pytest.mark.parametrize("zeros", [0, 8])
def test_ones_alone_are_multiples_also_behind_rows_of_zeros(zeros: int) -> None:
    codes = np.random.default_rng(6).integers(-1, 2, (64, 64))
    codes[:zeros] = 0
    scales = np.random.default_rng(7).uniform(0.5, 1.0, (64, 1)).astype(np.float32)
    found = find_steps((codes * scales).astype(np.float32).reshape(-1), 64, 23, 0.0)
    assert found is not None
    assert found.name == "multiples of 64 row scales"
    steps = np.where(codes.any(axis=1), scales[:, 0].astype(np.float64), 1e300)
    assert found.multiples.steps.tolist() == steps.tolist()


@pytest.mark.parametrize("power", [-40, -20, 0, 20, 40])
def test_scales_of_any_size_are_found_and_only_those(power: int) -> None:
    size = np.float32(2.0**power)
    found = find_steps(scaled(drawn(100, 4096)) * size, 4096, 23, 0.0)
    assert found is not None
    assert found.multiples.steps.tolist() == [float(SCALE * size)]
    plain = np.random.default_rng(8).standard_normal(4096).astype(np.float32)
    assert find_steps(plain * size, 64, 23, 0.0) is None


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_one_largest_of_very_many_values_counts(sign: int) -> None:
    codes = np.random.default_rng(9).integers(-5, 6, 300_000)
    codes[123_456] = 7 * sign
    found = find_steps(scaled(codes), 300_000, 23, 0.0)
    assert found is not None
    assert found.largest == 7
    assert not found.gaps
    assert found.multiples.anchors.tolist() == [123_456]
    assert found.multiples.steps.tolist() == [float(SCALE)]
    assert found.count(7 * sign) == 1


@pytest.mark.parametrize(("count", "gap"), [(31, False), (32, True)])
def test_a_missing_multiple_shows_between_32_and_32(count: int, gap: bool) -> None:
    codes = np.repeat(np.array([-3, -2, -1, 0, 1, 2, 4]), [1, 600, 600, 600, 600, 600, count])
    found = find_steps(scaled(np.random.default_rng(10).permutation(codes)), len(codes), 23, 0.0)
    assert found is not None
    assert found.gaps == gap
    assert "array" not in repr(found)


def test_the_largest_multiples_are_counted() -> None:
    codes = drawn(255, 65_536)
    found = find_steps(scaled(codes), 65_536, 23, 0.0)
    assert found is not None
    for multiple in (-255, -254, 254, 255):
        assert found.count(multiple) == np.count_nonzero(codes == multiple)


def test_neighbours_of_a_coarse_format_are_not_one_multiple() -> None:
    """At the top of a binade the error of a value reaches to the next."""
    values = np.random.default_rng(11).choice([1.984375, -1.984375, 1.9921875, -1.9921875], 4096)
    assert find_steps(values.astype(np.float32), 4096, 7, 0.0) is None


@pytest.mark.parametrize("scale", [1.0123e-6, 7.7e-7])
def test_multiples_that_a_smallest_step_rounds_are_given_again(scale: float) -> None:
    least = 2.0**-24
    codes = drawn(7, 4096)
    values = (np.rint(codes * scale / least) * least).astype(np.float32)
    found = find_steps(values, 4096, 10, least)
    assert found is not None
    assert not found.unclear
    assert found.largest == 7
    again = np.rint(codes * found.multiples.steps[0] / least) * least
    np.testing.assert_array_equal(again, values)


@pytest.mark.parametrize(("more", "stay"), [(8, False), (9, True)])
def test_a_few_zeros_more_than_twice_the_ones_are_chance(more: int, stay: bool) -> None:
    codes = drawn(7, 4096)
    codes[np.flatnonzero(codes == 1)[::2]] = 2
    ones = np.flatnonzero(np.abs(codes) == 1)
    zeros = np.flatnonzero(codes == 0)
    wanted = 2 * len(ones) + more - len(zeros)
    others = np.flatnonzero(np.abs(codes) > 1)
    codes[others[:wanted]] = 0
    grid = find_grid(scaled(codes), 64, 23)
    assert grid.multiples is not None
    assert grid.zeros_stay == stay
