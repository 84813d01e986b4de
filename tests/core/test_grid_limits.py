"""Grids at their limits: fixed points, smallest steps, lists of values, and what scales say."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neuralmark.checkpoints.readers.dtypes import rounded
from neuralmark.core.grid import Grid
from neuralmark.core.grid_finding import find_grid
from neuralmark.errors import UnsuitableTensorError

Single = npt.NDArray[np.float32]
SAMPLE = 1 << 16
"""Of longer tensors so many values are looked at first."""


def unseen(size: int, count: int) -> npt.NDArray[np.int64]:
    """Some places that the first look at a long tensor leaves out."""
    seen = np.random.default_rng(0).integers(0, size, SAMPLE)
    return np.setdiff1d(np.arange(size), seen)[:count]


def normal(size: int, seed: int = 0) -> Single:
    return (0.03 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def short(values: Single, mantissa: int) -> Single:
    return (values.view(np.int32) & -(1 << (23 - mantissa))).view(np.float32)


def integers(most: int, small: int, odd: float = 0.5, size: int = 4000) -> npt.NDArray[np.int64]:
    """Whole numbers up to `most`, so many of them below a 16th of it, and this share odd."""
    rng = np.random.default_rng(1)
    numbers = rng.integers(most // 4 + 2, most, size) // 2 * 2
    numbers += np.arange(size) < odd * size
    numbers[:small] = int(most / 16.5)
    numbers[-1] = most
    return np.asarray(rng.permutation(numbers) * rng.choice([-1, 1], size))


def is_fixed(numbers: npt.NDArray[np.int64], power: int = -30) -> bool:
    found = find_grid((numbers * 2.0**power).astype(np.float32), 50, 23)
    fixed = found.name == f"multiples of 2^{power}"
    assert fixed == (found.least == 2.0**power)
    return fixed


@pytest.mark.parametrize("power", [-40, 0, 40])
def test_a_fixed_point_has_a_million_steps_at_most(power: int) -> None:
    assert is_fixed(integers(1 << 20, 100), power)
    assert not is_fixed(integers((1 << 20) + 1, 100), power)


@pytest.mark.parametrize(("small", "fixed"), [(15, False), (16, True)])
def test_a_fixed_point_shows_in_sixteen_small_values(small: int, fixed: bool) -> None:
    assert is_fixed(integers(1 << 19, small)) == fixed


@pytest.mark.parametrize(("odd", "fixed"), [(0.15, False), (0.25, True)])
def test_a_fifth_of_the_large_values_of_a_fixed_point_are_odd(odd: float, fixed: bool) -> None:
    assert is_fixed(integers(1 << 19, 100, odd)) == fixed


@pytest.mark.parametrize(("off", "fixed"), [(0, True), (150, True), (400, False)])
def test_a_thousandth_may_be_off_a_fixed_point(off: int, fixed: bool) -> None:
    size = 200_000
    numbers = integers(1 << 19, 10_000, size=size).astype(np.float64)
    numbers[unseen(size, off)] += 0.5
    found = find_grid((numbers * 2.0**-30).astype(np.float32), 50, 23)
    assert (found.name == "multiples of 2^-30") == fixed


@pytest.mark.parametrize(("off", "name"), [(150, "16 bits of mantissa"), (400, "float32")])
def test_a_thousandth_may_be_off_a_mantissa_that_the_first_look_found(off: int, name: str) -> None:
    values = short(normal(200_000), 16)
    values.view(np.int32)[unseen(200_000, off)] |= 1
    assert find_grid(values, 100, 23).name == name


@pytest.mark.parametrize(
    ("near", "edge", "found"), [(63, 0, False), (64, 0, True), (63, 5, False), (63, 64, False)]
)
def test_a_smallest_step_of_its_own_shows_in_64_values(near: int, edge: int, found: bool) -> None:
    """Five bits of mantissa: below 32 steps, values are whole steps; at 32 they are anyway."""
    step, rng = 2.0**-20, np.random.default_rng(2)
    values = short(normal(20_000), 5)
    values = np.where(np.abs(values) < 64 * step, np.float32(0.01171875), values)
    values[:near] = rng.integers(11, 32, near) * step
    values[0] = 3 * step
    values[near : near + edge] = 32 * step
    grid = find_grid(values, 100, 23)
    assert (grid.name, grid.mantissa) == ("5 bits of mantissa", 5)
    assert grid.least == (step if found else 0)


@pytest.mark.parametrize("zeros", [0, 3000])
@pytest.mark.parametrize(
    ("mantissa", "least", "odd"), [(3, 2.0**-10, (13, 15)), (2, 2.0**-17, (5, 7))]
)
def test_formats_without_a_negative_zero_have_a_smaller_step(
    mantissa: int, least: float, odd: tuple[int, ...], zeros: int
) -> None:
    rng = np.random.default_rng(3)
    wide = (rng.choice([-1, 1], 20_000) * np.exp(rng.uniform(-4, 0, 20_000))).astype(np.float32)
    values = short(wide, mantissa)
    values[:10] = np.resize(odd, 10) * least
    values[10 : 10 + zeros] = 0
    grid = find_grid(values, 100, 23)
    assert (grid.mantissa, grid.least) == (mantissa, least)
    assert grid.name.startswith("float8")


@pytest.mark.parametrize(("zeros", "stay"), [(28, False), (29, True)])
def test_zeros_of_a_format_are_chance_up_to_twice_its_smallest_values(
    zeros: int, stay: bool
) -> None:
    wide = np.random.default_rng(4).uniform(0.1, 0.9, 20_000)
    values = rounded(wide, "F8_E4M3").astype(np.float32)
    values[:zeros] = 0
    values[-10:] = 2.0**-9 * np.resize([1, -1], 10)
    grid = find_grid(values, 100, 23)
    assert grid.least == 2.0**-9
    assert grid.zeros_stay == stay


def test_the_first_value_and_later_pieces_count_like_any() -> None:
    values = short(normal((1 << 20) + 100), 7)
    values[1000:9000] = 0
    values[0] = least = 2.0**-40
    grid = find_grid(values, 100, 23)
    assert (grid.zeros_stay, grid.bottom) == (True, least)
    assert find_grid(values[::-1], 100, 23).bottom == least
    for at in (0, -1):
        values[at] = 7.0
        values[500] = 7.0 + 2.0**-10  # not on the grid, which holds 7.0 at most
        assert find_grid(values, 100, 23).top == 7.0
        values[at] = 0.01171875


def test_a_largest_value_of_one_is_like_any() -> None:
    values = normal(1000)
    values[3] = 1.0
    assert find_grid(values, 10, 23).top == 1.0


def test_a_tensor_of_which_most_is_pruned_is_no_list() -> None:
    values = normal(4000)
    values[::2] = 0
    values[1::8] = 0
    grid = find_grid(values, 50, 23)
    assert (grid.name, grid.zeros_stay) == ("float32", True)


def refused(values: Single, row: int) -> bool:
    """Whether the values are taken for those of a list."""
    try:
        find_grid(values, row, 23)
    except UnsuitableTensorError as error:
        return "short list" in str(error)
    return False


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_value_that_most_weights_have_is_a_list(place: int) -> None:
    listed = np.array([-0.0345678, 0.0123456, 0.0456789], np.float32)
    shares = np.full(3, 0.2)
    shares[place] = 0.6
    assert refused(np.random.default_rng(5).choice(listed, 2000, p=shares), 40)


def test_half_of_the_weights_may_have_values_of_a_list() -> None:
    values = normal(4000, seed=6)
    values[:2000] = np.resize(normal(16, seed=7), 2000)
    assert not refused(values, 50)
    values[2000] = values[0]
    assert refused(values, 50)


def test_values_with_a_neighbour_are_no_list_and_every_other_value_is() -> None:
    rng = np.random.default_rng(8)
    first = np.abs(normal(8, seed=9))
    pairs = np.concatenate([first, np.nextafter(first, np.float32(1))])
    weights = np.repeat([0.3 / 8, 0.7 / 8], 8)
    assert not refused(rng.choice(pairs, 4000, p=weights), 50)
    odd = (np.float32(1.0).view(np.int32) + ((2 * np.arange(64) + 1) << 16)).view(np.float32)
    assert refused(rng.choice(np.concatenate([odd, -odd]), 4000), 50)


def grouped(rows: int, row: int, group: int, most: int, seed: int = 10) -> Single:
    """Each run of weights holds few values of its own."""
    lists = normal(rows * row // group * most, seed).reshape(-1, 1, most)
    pick = np.random.default_rng(seed).integers(0, most, (len(lists), group, 1))
    return np.take_along_axis(np.broadcast_to(lists, (len(lists), group, most)), pick, 2).reshape(
        -1
    )


@pytest.mark.parametrize("group", [16, 64])
@pytest.mark.parametrize(("rows", "found"), [(63, False), (64, True)])
def test_runs_with_lists_of_their_own_show_from_4096_weights_on(
    group: int, rows: int, found: bool
) -> None:
    assert refused(grouped(rows, 64, group, group // 4), 64) == found


@pytest.mark.parametrize(("mantissa", "found"), [(3, False), (4, True), (8, True)])
def test_runs_of_few_digits_have_few_values_anyway(mantissa: int, found: bool) -> None:
    assert refused(short(grouped(256, 64, 16, 3), mantissa), 64) == found


@pytest.mark.parametrize(("rows", "found"), [(63, False), (64, True), (700, True)])
def test_columns_with_lists_of_their_own(rows: int, found: bool) -> None:
    values = grouped(90, rows, rows, 8).reshape(90, rows).T
    assert refused(np.ascontiguousarray(values).reshape(-1), 90) == found


@pytest.mark.parametrize("row", [64, 192])
def test_square_blocks_with_lists_of_their_own(row: int) -> None:
    blocks = [
        np.vstack([grouped(64, 64, 4096, 1000, 20 * a + b).reshape(64, 64) for a in range(16)])
        for b in range(row // 64)
    ]
    assert refused(np.hstack(blocks).reshape(-1), row)
    assert not refused(normal(1024 * row), row)


@pytest.mark.parametrize(
    ("scale", "dtype", "kind", "file_mantissa", "mantissa", "least"),
    [
        (2.0**-5, "F32", np.float32, 23, 23, 0.0),
        (2.0**-5, "BF16", np.float32, 7, 7, 0.0),
        (2.0**-5, "F64", np.float64, 52, 23, 0.0),
        (0.0123, "F32", np.float32, 23, 23, 0.0),
        (0.0123, "BF16", np.float32, 7, 7, 0.0),
        (0.0123, "BF16", np.float32, 23, 7, 0.0),
        (0.0123, "F16", np.float32, 10, 10, 2.0**-24),
        (0.0123, "F16", np.float32, 23, 10, 2.0**-24),
        (float(np.float32(0.0123)), "F64", np.float64, 52, 23, 0.0),
        (float(np.float32(0.3333333)), "F64", np.float64, 52, 25, 0.0),
    ],
)
def test_multiples_are_rounded_as_the_file_is(
    scale: float, dtype: str, kind: Any, file_mantissa: int, mantissa: int, least: float
) -> None:
    codes = np.random.default_rng(11).integers(-7, 8, 8192)
    codes[::64] = 7
    exact = np.asarray(codes * scale, np.float64)
    values = (rounded(exact, dtype) if dtype != "F64" else exact).astype(kind)
    grid = find_grid(values, 64, file_mantissa)
    assert grid.multiples is not None
    assert (grid.mantissa, grid.least, grid.zeros_stay) == (mantissa, least, False)


@pytest.mark.parametrize(("most", "scaled"), [(7, True), (8, False)])
def test_whole_numbers_are_multiples_until_a_short_float_holds_them(
    most: int, scaled: bool
) -> None:
    codes = np.random.default_rng(12).integers(-most, most + 1, 8192)
    grid: Grid = find_grid((codes * 2.0**-5).astype(np.float32), 8192, 23)
    assert (grid.multiples is not None) == scaled
    if not scaled:
        assert (grid.mantissa, grid.least) == (2, 2.0**-5)
