"""Where the lines are between a grid and chance: how many exceptions, zeros and values."""

import numpy as np
import numpy.typing as npt
import pytest

from neuralmark.checkpoints.readers.dtypes import rounded
from neuralmark.core.grid import Grid
from neuralmark.core.grid_finding import find_grid
from neuralmark.core.steps import find_steps
from neuralmark.errors import NonFiniteError, UnsuitableTensorError

Single = npt.NDArray[np.float32]


def normal(size: int, seed: int = 0) -> Single:
    return (0.03 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def short(values: Single, mantissa: int = 7) -> Single:
    """Rounded to so many mantissa bits (towards zero)."""
    words = values.view(np.int32) & -(1 << (23 - mantissa))
    return words.view(np.float32)


@pytest.mark.parametrize(("odd", "name"), [(10, "bfloat16"), (11, "float32")])
def test_a_thousandth_of_the_values_may_be_off_the_grid(odd: int, name: str) -> None:
    values = short(normal(10_000))
    values.view(np.int32)[:odd] |= 1
    assert find_grid(values, 100, 23).name == name


@pytest.mark.parametrize(("zeros", "stay"), [(8, False), (9, True)])
def test_a_few_zeros_are_chance(zeros: int, stay: bool) -> None:
    values = normal(10_000)
    values[:zeros] = 0
    grid = find_grid(values, 100, 23)
    assert (grid.zeros_stay, grid.bottom) == (stay, 0)


@pytest.mark.parametrize(("zeros", "cut"), [(10, False), (11, True)])
def test_from_a_thousandth_of_zeros_on_small_weights_may_be_cut_away(zeros: int, cut: bool) -> None:
    values = normal(10_000)
    values[:zeros] = 0
    grid = find_grid(values, 100, 23)
    assert grid.zeros_stay
    smallest = float(np.abs(values[zeros:]).min())
    assert grid.bottom == (smallest if cut else 0)


@pytest.mark.parametrize(("size", "found"), [(255, False), (256, True)])
def test_few_values_are_not_searched_for_scales(size: int, found: bool) -> None:
    codes = np.random.default_rng(1).integers(-7, 8, size)
    codes[:2] = 7, -7
    values = (codes * np.float32(0.0123)).astype(np.float32)
    assert (find_grid(values, size, 23).multiples is not None) == found


def test_the_top_is_the_largest_value_on_the_grid() -> None:
    values = short(normal(10_000))
    top = float(np.abs(values).max())
    assert find_grid(values, 100, 23).top == top
    values[5] = 3 * top + 1e-5
    assert find_grid(values, 100, 23).top == top
    assert find_grid(-values, 100, 23).top == top
    plain = normal(10_000)
    plain[7] = -1.5
    assert find_grid(plain, 100, 23).top == 1.5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_squares_that_vanish_are_refused(dtype: type) -> None:
    least = float(np.sqrt(float(np.finfo(dtype).tiny)))
    file_mantissa = 23 if dtype is np.float32 else 52
    values: npt.NDArray[np.floating] = (
        np.random.default_rng(0).uniform(0.5, 1.0, 1000).astype(dtype)
    )
    values[0] = 1.0
    assert find_grid((values * dtype(least * 1.001)).astype(dtype), 10, file_mantissa).top > 0
    with pytest.raises(UnsuitableTensorError, match="vanish"):
        find_grid((values * dtype(least * 0.999)).astype(dtype), 10, file_mantissa)


def test_one_infinity_of_either_sign_is_refused() -> None:
    for bad in (np.inf, -np.inf, np.nan):
        values = normal(1000)
        values[17] = bad
        with pytest.raises(NonFiniteError):
            find_grid(values, 10, 23)


@pytest.mark.parametrize("bits", [1, 2, 5, 12, 16, 22])
def test_any_number_of_mantissa_bits_is_found(bits: int) -> None:
    grid = find_grid(short(normal(20_000), bits), 100, 23)
    assert (grid.mantissa, grid.multiples) == (bits, None)


def test_multiples_are_counted() -> None:
    rng = np.random.default_rng(2)
    codes = rng.integers(-7, 8, 4096)
    codes[:2] = 7, -7
    found = find_steps((codes * np.float32(0.0123)).astype(np.float32), 64, 23, 0.0)
    assert found is not None
    assert found.whole
    assert not found.gaps
    assert not found.unclear
    assert found.largest == 7
    assert found.multiples.steps.tolist() == [float(np.float32(0.0123))]
    assert (found.multiples.lows.tolist(), found.multiples.highs.tolist()) == ([-7], [7])
    for multiple in range(-9, 10):
        assert found.count(multiple) == np.count_nonzero(codes == multiple)
    anchor = int(found.multiples.anchors[0])
    assert abs(codes[anchor]) == 7


def test_a_common_multiple_that_is_never_used_is_a_gap() -> None:
    codes = np.random.default_rng(3).choice([-7, -3, -2, -1, 0, 1, 2, 3, 7], 4096)
    found = find_steps((codes * np.float32(0.0123)).astype(np.float32), 64, 23, 0.0)
    assert found is not None
    assert found.gaps
    rare = np.where(np.abs(codes) == 7, 0, codes)
    rare[:40:2] = 7  # too few for its neighbours to be missed
    found = find_steps((rare * np.float32(0.0123)).astype(np.float32), 64, 23, 0.0)
    assert found is not None
    assert not found.gaps


def test_scales_of_rows_and_groups_are_theirs() -> None:
    rng = np.random.default_rng(4)
    for block, scales in ((64, 64), (32, 128)):
        codes = rng.integers(-7, 8, (scales, block))
        codes[:, 0] = 7
        steps = rng.uniform(0.5, 1.0, scales).astype(np.float32)
        values = (codes * steps[:, None]).astype(np.float32).reshape(-1)
        found = find_steps(values, 64, 23, 0.0)
        assert found is not None
        assert (found.multiples.block, found.whole) == (block, False)
        np.testing.assert_allclose(found.multiples.steps, steps, rtol=1e-6)
        anchors = found.multiples.anchors
        assert (anchors // block).tolist() == list(range(scales))
        assert (np.abs(codes.reshape(-1)[anchors]) == 7).all()


@pytest.mark.parametrize("place", [10, 70_000, 199_999])
def test_a_tensor_in_several_pieces_has_one_scale(place: int) -> None:
    codes = np.random.default_rng(5).integers(-5, 6, 200_000)
    codes[place] = -7
    codes[(place + 100_000) % 200_000] = 6
    found = find_steps((codes * np.float32(0.0123)).astype(np.float32), 100, 23, 0.0)
    assert found is not None
    assert found.whole
    assert found.multiples.anchors.tolist() == [place]
    assert found.multiples.steps.tolist() == [float(np.float32(0.0123))]
    assert (found.multiples.lows.tolist(), found.multiples.highs.tolist()) == ([-7], [6])
    assert found.count(5) == np.count_nonzero(codes == 5)


@pytest.mark.parametrize(("most", "scaled"), [(255, True), (256, False)])
def test_a_scale_has_255_steps_at_most(most: int, scaled: bool) -> None:
    codes = np.random.default_rng(6).integers(-most, most + 1, 65_536)
    codes[0] = most
    found = find_steps((codes * np.float32(0.0123)).astype(np.float32), 256, 23, 0.0)
    assert (found is not None) == scaled
    if found is not None:
        assert found.largest == 255


@pytest.mark.parametrize(("share", "refused"), [(0.4, False), (0.6, True), (1.0, True)])
def test_values_of_which_most_are_from_a_list_are_refused(share: float, refused: bool) -> None:
    rng = np.random.default_rng(7)
    values = normal(4000, seed=8)
    listed = rng.random(4000) < share
    values[listed] = normal(16, seed=9)[rng.integers(0, 16, 4000)][listed]
    if refused:
        with pytest.raises(UnsuitableTensorError, match="short list"):
            find_grid(values, 50, 23)
    else:
        assert find_grid(values, 50, 23).name == "float32"


def test_the_layout_of_the_values_does_not_matter() -> None:
    wide = short(normal(20_000)).reshape(100, 200)
    for layout in (wide, wide[:, ::2], wide.T):
        grid, flat = find_grid(layout, 100, 23), find_grid(layout.reshape(-1).copy(), 100, 23)
        assert (grid.name, grid.top) == (flat.name, flat.top) == ("bfloat16", grid.top)


def test_the_scale_of_a_tensor_explains_all_its_pieces() -> None:
    """The first piece has small multiples only, which many scales round to."""
    codes = np.random.default_rng(10).integers(-100, 101, 200_000)
    codes[:65_536] = np.sign(codes[:65_536])
    codes[-1] = 100
    scale = 0.0123456
    exact = np.asarray(codes * scale, np.float64)
    values = Grid("bfloat16", 7, 9.0).nearest(exact).astype(np.float32)
    found = find_steps(values, 100, 7, 0.0)
    assert found is not None
    assert found.whole
    (step,) = found.multiples.steps.tolist()
    again = Grid("bfloat16", 7, 9.0).nearest(np.asarray(codes * step, np.float64))
    assert np.mean(again == values) > 0.999


@pytest.mark.parametrize(
    ("dtype", "mantissa", "least"),
    [("F16", 10, 2.0**-24), ("F8_E4M3", 3, 2.0**-9), ("F8_E5M2", 2, 2.0**-16)],
)
def test_a_format_has_its_smallest_step_also_where_no_value_is_near_zero(
    dtype: str, mantissa: int, least: float
) -> None:
    rng = np.random.default_rng(11)
    wide = rng.choice([-1.0, 1.0], 20_000) * rng.uniform(0.1, 0.9, 20_000)
    grid = find_grid(rounded(wide, dtype).astype(np.float32), 100, 23)
    assert (grid.mantissa, grid.least, grid.multiples) == (mantissa, least, None)


def test_a_list_of_values_of_both_signs_is_refused() -> None:
    """A negative value one digit from a positive one is as far from it as any other."""
    listed = np.sort(np.abs(normal(16, seed=12)))
    listed[1::2] = -np.nextafter(listed[::2], np.float32(1))
    values = listed[np.random.default_rng(13).integers(0, 16, 4000)]
    with pytest.raises(UnsuitableTensorError, match="short list"):
        find_grid(values, 50, 23)
