"""Grids: found from the values alone, found again after moves, and never where there is none."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralmark.checkpoints.readers.dtypes import rounded
from neuralmark.core.grid import Grid, Multiples, _own_noise
from neuralmark.core.grid_finding import find_grid
from neuralmark.core.key import Float
from neuralmark.core.steps import find_steps
from neuralmark.errors import NonFiniteError, UnsuitableTensorError

Single = npt.NDArray[np.float32]

ROWS, ROW = 64, 512
MANTISSA = {"F64": 52, "F32": 23, "F16": 10, "BF16": 7, "F8_E4M3": 3, "F8_E5M2": 2}
NAMES = {
    **{"F32": "float32", "F16": "float16", "BF16": "bfloat16"},
    **{"F8_E4M3": "float8 e4m3", "F8_E5M2": "float8 e5m2"},
}


def gaussian(seed: int = 0, rows: int = ROWS, row: int = ROW) -> Float:
    """Weights whose rows have scales of their own."""
    rng = np.random.default_rng(seed)
    scales = 0.03 * np.exp(0.3 * rng.standard_normal((rows, 1)))
    return (scales * rng.standard_normal((rows, row))).reshape(-1)


def stored(values: Float, dtype: str) -> Single:
    return rounded(values, dtype).astype(np.float32)


def shortened(values: Float, mantissa: int) -> Single:
    """Rounded to so many mantissa bits, with no smallest step."""
    fraction, exponent = np.frexp(values)
    unit = 2.0 ** (mantissa + 1)
    return np.ldexp(np.rint(fraction * unit) / unit, exponent).astype(np.float32)


def quantised(values: Float, bits: int, block: int, zero_point: bool = False) -> Float:
    """Multiples of one float32 scale for each block, as a dequantiser gives them."""
    blocks = values.reshape(-1, block)
    if zero_point:
        low, high = blocks.min(1, keepdims=True), blocks.max(1, keepdims=True)
        scales = ((high - low) / (2**bits - 1)).astype(np.float32).astype(np.float64)
        zero = np.rint(-low / scales)
        codes = np.clip(np.rint(blocks / scales) + zero, 0, 2**bits - 1) - zero
    else:
        most = 2 ** (bits - 1) - 1
        scales = np.abs(blocks).max(1, keepdims=True) / most
        scales = scales.astype(np.float32).astype(np.float64)
        codes = np.clip(np.rint(blocks / scales), -most, most)
    return np.asarray((codes * scales).reshape(-1))


def moved(grid: Grid, values: Single, shift: float, seed: int = 1) -> Single:
    rng = np.random.default_rng(seed)
    new = grid.moved(values, np.full(len(values), shift), rng.random(len(values)))
    assert new.dtype == values.dtype
    return np.asarray(new)


FLOATS: dict[str, tuple[Single, int, str]] = {
    **{f"{dtype} in float32": (stored(gaussian(), dtype), 23, NAMES[dtype]) for dtype in NAMES},
    **{
        f"{dtype} file": (stored(gaussian(), dtype), MANTISSA[dtype], NAMES[dtype])
        for dtype in NAMES
    },
    "e4m3 in bfloat16": (stored(gaussian(), "F8_E4M3"), 7, "float8 e4m3"),
    "e5m2 in bfloat16": (stored(gaussian(), "F8_E5M2"), 7, "float8 e5m2"),
    "e4m3 in float16": (stored(gaussian(), "F8_E4M3"), 10, "float8 e4m3"),
    "fnuz file": (stored(gaussian(), "F8_E4M3FNUZ"), 3, "float8 e4m3"),
    "tf32": (shortened(gaussian(), 10), 23, "10 bits of mantissa"),
    "5 bits": (shortened(gaussian(), 5), 23, "5 bits of mantissa"),
    "15 bits": (shortened(gaussian(), 15), 23, "15 bits of mantissa"),
    "wide e4m3": (stored(5 * gaussian(), "F8_E4M3"), 7, "float8 e4m3"),
    "scaled e4m3": (stored(32 * gaussian(), "F8_E4M3") / np.float32(32), 7, "3 bits of mantissa"),
    "powers of two": (shortened(gaussian(), 0), 23, "0 bits of mantissa"),
    "small float16": (stored(gaussian() / 1000, "F16"), 23, "float16"),
}


@pytest.mark.parametrize("case", FLOATS)
def test_float_grids_are_found_and_kept(case: str) -> None:
    values, file_mantissa, name = FLOATS[case]
    grid = find_grid(values, ROW, file_mantissa)
    assert (grid.name, grid.multiples, grid.zeros_stay) == (name, None, False)
    new = moved(grid, values, 2e-3 * float(np.abs(values).max()))
    assert np.mean(new != values) > 0.01
    assert np.all(grid.movable(new) | (np.abs(new) == grid.top))
    again = find_grid(new, ROW, file_mantissa)
    assert (again.name, again.mantissa, again.least) == (grid.name, grid.mantissa, grid.least)
    assert np.abs(new).max() <= np.abs(values).max()


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F8_E4M3", "F8_E5M2"])
def test_written_values_are_those_of_the_format(dtype: str) -> None:
    values = stored(gaussian(), dtype)
    for shift in (-3e-3, 1e-4, 0.05):
        new = moved(find_grid(values, ROW, 23), values, shift)
        np.testing.assert_array_equal(stored(new.astype(np.float64), dtype), new)


STEPS = [
    (bits, block, dtype, zero_point)
    for bits in (8, 4)
    for block in (ROWS * ROW, ROW, 128, 64, 32)
    for dtype in ("F32", "F16", "BF16")
    for zero_point in (False, True)
] + [(3, ROW, "F32", False), (3, ROW, "BF16", False), (2, ROW, "F16", True), (2, 64, "F32", True)]


@pytest.mark.parametrize(("bits", "block", "dtype", "zero_point"), STEPS)
def test_multiples_are_found_and_kept(bits: int, block: int, dtype: str, zero_point: bool) -> None:
    values = stored(quantised(gaussian(), bits, block, zero_point), dtype)
    grid = find_grid(values, ROW, MANTISSA[dtype])
    assert grid.multiples is not None
    assert grid.multiples.block == block
    step = float(np.median(grid.multiples.steps))
    new = moved(grid, values, 0.3 * step)
    assert np.mean(new != values) > 0.05
    again = find_grid(new, ROW, MANTISSA[dtype])
    assert again.multiples is not None
    assert (again.name, again.multiples.block) == (grid.name, block)
    same = np.isclose(again.multiples.steps, grid.multiples.steps, rtol=2e-3)
    assert same.mean() > 0.98
    assert np.mean(again.movable(new)[new != 0]) > (0.95 if block < ROW else 0.97)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("block", [ROW, 64])
def test_no_new_value_appears_in_a_block(block: int, dtype: str) -> None:
    """A weight that moves to a multiple that others have gets exactly their value."""
    values = stored(quantised(gaussian(), 4, block), dtype)
    grid = find_grid(values, ROW, MANTISSA[dtype])
    assert grid.multiples is not None
    new = moved(grid, values, 0.3 * float(np.median(grid.multiples.steps)))
    steps = grid.multiples.steps[:, None]
    for before, after in zip(values.reshape(-1, block), new.reshape(-1, block), strict=True):
        sizes = np.unique(np.abs(np.append(before, after)))
        assert np.all(np.diff(sizes) > 0.5 * np.abs(before).max() / 7)
    np.testing.assert_array_equal(
        np.abs(new.reshape(-1, block)).max(1), np.abs(values.reshape(-1, block)).max(1)
    )
    assert np.all(np.abs(new.reshape(-1, block) / steps) < 7.5)


def test_rows_of_zeros_stay_and_a_row_of_its_own_kind_is_left_alone() -> None:
    values = stored(quantised(gaussian(rows=2048), 4, ROW), "F32").reshape(2048, ROW)
    values[3] = 0
    values[5] = gaussian()[:ROW]
    flat = values.reshape(-1)
    grid = find_grid(flat, ROW, 23)
    assert grid.name == "multiples of 2048 row scales"
    may = grid.movable(flat).reshape(values.shape)
    assert not may[[3, 5]].any()
    assert may[[2, 4, 6]].mean() > 0.99
    new = moved(grid, flat, 0.01).reshape(values.shape)
    np.testing.assert_array_equal(new[[3, 5]], values[[3, 5]])


def test_few_multiples_use_few_bits_by_chance_only() -> None:
    """The bits of the common multiples must not shorten the rare ones."""
    codes = np.rint(np.clip(gaussian() / 0.03, -1, 1)).astype(np.int64)
    codes[:20] = 3
    codes[20:40] = 2
    values = (codes * _even(np.float32(0.0246))).astype(np.float32)
    grid = find_grid(values, ROW, 23)
    assert (grid.name, grid.mantissa) == ("multiples of one scale", 23)


def _even(scale: np.float32) -> np.float32:
    """The scale with its lowest bit cleared and the next one set: 22 bits, but 3x takes 23."""
    word = (np.array(scale).view(np.int32) & ~3) | 2
    return np.float32(word.view(np.float32))


def test_positions_tell_the_block() -> None:
    values = stored(quantised(gaussian(), 4, 64), "F32")
    grid = find_grid(values, ROW, 23)
    at = np.sort(np.random.default_rng(0).permutation(len(values))[:3000])
    shift, noise = np.full(len(values), 0.005), np.random.default_rng(1).random(len(values))
    whole = grid.moved(values, shift, noise)
    np.testing.assert_array_equal(grid.moved(values[at], shift[at], noise[at], at), whole[at])


def test_multiples_in_an_upcast_file() -> None:
    values = stored(quantised(gaussian(), 8, ROW), "BF16")
    grid = find_grid(values, ROW, 23)
    assert (grid.name, grid.mantissa) == (f"multiples of {ROWS} row scales", 7)
    new = moved(grid, values, 1e-4)
    np.testing.assert_array_equal(stored(new.astype(np.float64), "BF16"), new)


def test_multiples_of_a_power_of_two_win_over_their_mantissa() -> None:
    codes = np.clip(np.rint(gaussian() * 100), -7, 7)
    grid = find_grid((codes / 64).astype(np.float32), ROW, 23)
    assert grid.name == "multiples of one scale"
    assert grid.multiples is not None
    assert grid.multiples.steps.tolist() == [1 / 64]


@pytest.mark.parametrize("case", ["BF16 in float32", "F16 in float32", "5 bits", "wide e4m3"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_mean_shift_is_met(case: str, sign: int) -> None:
    values, file_mantissa, _ = FLOATS[case]
    grid = find_grid(values, ROW, file_mantissa)
    step = 2.0 ** (np.floor(np.log2(np.abs(values[values != 0]))) - grid.mantissa)
    shift = sign * 0.1 * float(np.median(step))
    change = moved(grid, values, shift).astype(np.float64) - values
    error = change.std() / len(values) ** 0.5
    assert abs(shift) > 5 * error
    assert change.mean() == pytest.approx(shift, abs=4 * error)


@pytest.mark.parametrize(("bits", "block"), [(8, ROW), (4, ROW), (8, 64)])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_the_mean_shift_is_met_by_multiples(bits: int, block: int, dtype: str) -> None:
    values = stored(quantised(gaussian(), bits, block), dtype)
    grid = find_grid(values, ROW, MANTISSA[dtype])
    assert grid.multiples is not None
    inner = np.abs(values.reshape(-1, block))
    inside = (inner < 0.9 * inner.max(1, keepdims=True)).reshape(-1)
    shift = 0.1 * float(np.median(grid.multiples.steps))
    change = (moved(grid, values, shift).astype(np.float64) - values)[inside]
    assert change.mean() == pytest.approx(shift, abs=4 * change.std() / len(change) ** 0.5)


def every_grid() -> dict[str, tuple[Single, int]]:
    cases = {name: case[:2] for name, case in FLOATS.items()}
    for bits, block, dtype, zero_point in STEPS[::5]:
        values = stored(quantised(gaussian(), bits, block, zero_point), dtype)
        cases[f"int{bits} {block} {dtype}"] = values, MANTISSA[dtype]
    return cases


@pytest.mark.parametrize("case", every_grid())
def test_a_zero_shift_changes_nothing(case: str) -> None:
    values, file_mantissa = every_grid()[case]
    values = values.copy()
    values[values == 0] *= -1.0
    grid = find_grid(values, ROW, file_mantissa)
    noise = np.full(len(values), np.nextafter(1.0, 0.0))
    new = grid.moved(values, np.zeros(len(values)), noise)
    np.testing.assert_array_equal(new.view(np.uint32), values.view(np.uint32))


@pytest.mark.parametrize("case", every_grid())
def test_torch_and_numpy_agree(case: str) -> None:
    values, file_mantissa = every_grid()[case]
    grid = find_grid(values, ROW, file_mantissa)
    at = np.random.default_rng(2).permutation(len(values))[:5000]
    noise = np.random.default_rng(3).random(5000).astype(np.float32)
    shift = (np.random.default_rng(4).standard_normal(5000) * 0.01).astype(np.float32)
    by_numpy = grid.moved(values[at], shift, noise, at)
    tensors = [torch.from_numpy(array) for array in (values[at], shift, noise, at)]
    by_torch = grid.moved(*tensors)
    np.testing.assert_array_equal(by_torch.numpy().view(np.uint32), by_numpy.view(np.uint32))
    may = grid.movable(tensors[0], tensors[3])
    np.testing.assert_array_equal(may.numpy(), grid.movable(values[at], at))


def test_torch_bfloat16_stays_bfloat16() -> None:
    values = stored(gaussian(), "BF16")
    grid = find_grid(values, ROW, 7)
    noise, shift = torch.rand(len(values)), torch.full((len(values),), 1e-4)
    live = torch.from_numpy(values).bfloat16()
    new = grid.moved(live, shift, noise)
    assert new.dtype == torch.bfloat16
    expected = grid.moved(values, shift.numpy(), noise.numpy())
    np.testing.assert_array_equal(new.float().numpy(), expected)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "F8_E5M2"])
def test_zeros_of_a_pruned_tensor_stay(dtype: str) -> None:
    kept = np.random.default_rng(5).random(ROWS * ROW) < 0.5
    values = stored(gaussian() * kept, dtype)
    grid = find_grid(values, ROW, MANTISSA[dtype])
    assert grid.zeros_stay
    assert not grid.movable(values)[values == 0].any()
    new = moved(grid, values, 0.01)
    np.testing.assert_array_equal(
        new[values == 0].view(np.uint32), values[values == 0].view(np.uint32)
    )
    assert np.mean(new[values != 0] != values[values != 0]) > 0.5


def test_zeros_of_pruned_multiples_stay_and_natural_ones_move() -> None:
    whole = quantised(gaussian(), 4, ROW)
    kept = np.random.default_rng(5).random(len(whole)) < 0.5
    pruned, natural = stored(whole * kept, "F32"), stored(whole, "F32")
    grids = [find_grid(values, ROW, 23) for values in (pruned, natural)]
    assert [grid.zeros_stay for grid in grids] == [True, False]
    assert np.all(moved(grids[0], pruned, 0.01)[pruned == 0] == 0)
    assert np.any(moved(grids[1], natural, 0.01)[natural == 0] != 0)


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_values_clipped_at_a_bound_stay_and_none_join_them(dtype: str) -> None:
    values = stored(np.clip(gaussian(), -0.05, 0.05), dtype)
    top = np.abs(values).max()
    clipped = np.abs(values) == top
    assert clipped.sum() > 1000
    grid = find_grid(values, ROW, MANTISSA["F32"])
    noise = np.random.default_rng(1).random(len(values))
    for shift in (0.01, -0.01):
        new = grid.moved(values, np.full(len(values), shift), noise)
        assert np.abs(new).max() == top
        joined = (np.abs(new) == top) & ~clipped
        assert joined.mean() < (1e-4 if dtype == "F32" else 0.02)
        assert (np.abs(new) == top)[clipped].all()


@pytest.mark.parametrize("sign", [1, -1])
def test_what_pruning_left_moves_within_its_room(sign: int) -> None:
    values = stored(gaussian(), "F32")
    cut = np.quantile(np.abs(values), 0.5)
    values[np.abs(values) < cut] = 0.0
    grid = find_grid(values, ROW, MANTISSA["F32"])
    noise = np.random.default_rng(1).random(len(values))
    new = grid.moved(values, np.full(len(values), sign * cut / 2), noise)
    kept = values != 0
    assert (np.abs(new[kept]) >= np.abs(values[kept]).min()).all()
    assert ((new - values)[kept] * sign >= 0).mean() > 0.999
    near = kept & (values * sign < 0) & (np.abs(values) < 1.4 * cut)
    assert ((new - values)[near] * sign > 0).mean() > 0.9


def test_a_few_values_off_the_grid_are_left_alone() -> None:
    values = stored(gaussian(), "BF16")
    odd = np.arange(0, len(values), 1500)
    values[odd] = gaussian()[odd]
    values[odd[0]] = 1.2345678
    grid = find_grid(values, ROW, 23)
    assert grid.name == "bfloat16"
    stay = ~grid.movable(values) & (np.abs(values) != grid.top)
    assert np.flatnonzero(stay).tolist() == odd.tolist()
    assert grid.top == np.abs(np.delete(values, odd)).max()
    np.testing.assert_array_equal(moved(grid, values, 0.01)[odd], values[odd])


def test_float64_files() -> None:
    values = gaussian()
    assert find_grid(values, ROW, 52).name == "float64"
    for dtype in ("F32", "BF16"):
        narrow = rounded(values, dtype)
        grid = find_grid(narrow, ROW, 52)
        assert grid.name == NAMES[dtype]
        new = grid.moved(
            narrow, np.full(len(values), 1e-3), np.random.default_rng(0).random(len(values))
        )
        assert new.dtype == np.float64
        np.testing.assert_array_equal(rounded(new, dtype), new)


NF4 = np.array(
    [
        *(-1.0, -0.6962, -0.52507, -0.39492, -0.28444, -0.18477, -0.09105, 0.0),
        *(0.07958, 0.16093, 0.24611, 0.33792, 0.44071, 0.56262, 0.72296, 1.0),
    ]
)
FP4 = np.array([0, 1 / 192, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1])
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]) / 6


def listed(code: Float, block: int) -> Float:
    """The nearest entry of a list, scaled to each block."""
    blocks = gaussian().reshape(-1, block)
    tops = np.abs(blocks).max(1, keepdims=True)
    nearest = np.abs((blocks / tops)[..., None] - code).argmin(-1)
    return np.asarray((code[nearest] * tops).reshape(-1))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_lists_of_values_are_refused(dtype: str) -> None:
    palettes = [np.quantile(gaussian(), (np.arange(size) + 0.5) / size) for size in (16, 256)]
    tables = [
        *(listed(np.append(-half[1:], half), 64) for half in (FP4, E2M1)),
        listed(NF4, 64),
        *(palette[np.searchsorted(palette[1:], gaussian())] for palette in palettes),
        np.where(gaussian() > 0, 0.1234, -0.1234),
        rounded(32 * gaussian(), "F8_E4M3") * 0.0123,
    ]
    for values in tables:
        with pytest.raises(UnsuitableTensorError, match="short list"):
            find_grid(stored(values, dtype), ROW, MANTISSA[dtype])


def test_multiples_that_were_rounded_twice_are_refused() -> None:
    """q·absmax·(1/127) in float32: a weight that moved would differ from its like by a bit."""
    rows = stored(gaussian(), "F32").reshape(ROWS, ROW)
    tops = np.abs(rows).max(1, keepdims=True)
    values = (np.rint(rows / tops * 127) * tops) * np.float32(1 / 127)
    with pytest.raises(UnsuitableTensorError, match="cannot be repeated"):
        find_grid(values.astype(np.float32).reshape(-1), ROW, 23)


def test_what_becomes_zero_has_no_sign() -> None:
    grid, step = Grid("float16", 10, 1.0, 2.0**-24), 2.0**-24
    values = np.array([step, 0.0, -0.0, -step], np.float32)
    new = grid.moved(values, np.array([-1.5, -0.5, -0.5, 0.5]) * step, np.zeros(4))
    assert new.tolist() == [0, 0, 0, 0]
    assert np.signbit(new).tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.zeros(8192), "all values are zero"),
        (np.full(8192, 0.1), "all values are the same"),
        (gaussian() * 1e-25, "squares vanish"),
        (gaussian() * 1e-42, "squares vanish"),
        (np.zeros(0), "empty"),
    ],
)
def test_tensors_that_cannot_carry_a_mark(values: Float, reason: str) -> None:
    with pytest.raises(UnsuitableTensorError, match=reason):
        find_grid(values.astype(np.float32), 1, 23)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_values(bad: float) -> None:
    values = stored(gaussian(), "F32")
    values[77] = bad
    with pytest.raises(NonFiniteError):
        find_grid(values, ROW, 23)


SHAPES = [(64, 128), (256, 32), (16, 512), (910, 9), (64, 576), (2048, 4), (8192, 1)]


def natural(kind: str, rng: np.random.Generator, size: int) -> Float:
    if kind == "few exponents":
        return rng.uniform(1.0, 2.0, size)
    if kind == "many repeat":
        return np.asarray(1 + 0.02 * rng.standard_normal(size))
    if kind == "heavy tails":
        return np.asarray(rng.standard_t(3, size))
    return np.asarray(rng.standard_normal(size))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    shape=st.sampled_from(SHAPES),
    kind=st.sampled_from(["normal", "few exponents", "many repeat", "heavy tails"]),
    dtype=st.sampled_from(["F32", "F16", "BF16"]),
    scale=st.floats(1e-3, 1.0),
    upcast=st.booleans(),
)
def test_ordinary_weights_are_never_taken_for_quantised(
    seed: int, shape: tuple[int, int], kind: str, dtype: str, scale: float, upcast: bool
) -> None:
    rng = np.random.default_rng(seed)
    values = stored(scale * natural(kind, rng, shape[0] * shape[1]), dtype)
    grid = find_grid(values, shape[1], 23 if upcast else MANTISSA[dtype])
    assert (grid.name, grid.zeros_stay) == (NAMES[dtype], False)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    value=st.floats(-4, 4, width=16),
    shift=st.floats(-8, 8, width=32),
    noise=st.floats(0, 1, exclude_max=True),
    mantissa=st.integers(0, 10),
)
def test_a_move_ends_at_one_of_the_two_points_around_the_target(
    value: float, shift: float, noise: float, mantissa: int
) -> None:
    least = 2.0**-12
    grid = Grid("test", mantissa, 4.0, least)
    values = grid.nearest(np.array([value]))
    new = float(grid.moved(values, np.array([shift]), np.array([noise]))[0])
    target = float(np.float32(values[0] + shift))
    size = max(abs(target), 2.0**mantissa * least)
    step = 2.0 ** (np.floor(np.log2(size)) - mantissa)
    assert abs(new) <= 4.0
    if abs(values[0]) == 4:  # the end of the grid
        assert new == values[0]
    elif abs(target) <= 4:
        assert abs(new - target) < step
        assert bool(grid.movable(np.array([new]))[0]) or abs(new) == 4
    else:
        assert abs(new) >= abs(values[0])
    assert new != 0 or not np.signbit(new) or np.signbit(values[0])


def test_a_small_sum_of_full_precision_does_not_end_in_zeros() -> None:
    """Carriers that land near zero would be found by their empty digits."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal(400_000).astype(np.float32) * np.float32(0.02)
    grid = find_grid(values, 1000, 23)
    shift = np.full(len(values), 0.004)
    moved = grid.moved(values, shift, rng.random(len(values), np.float32))
    small = np.abs(moved) < 0.0002
    assert small.sum() > 1000

    def empty(array: Any) -> float:
        return float(((array.view(np.int32) & 15) == 0).mean())

    assert empty(moved[small]) < 2 / 16
    assert empty((values + shift.astype(np.float32))[small]) > 4 / 16
    assert not (grid.moved(values, 0 * shift, rng.random(len(values), np.float32)) != values).any()


@pytest.mark.parametrize("power", [12, 16])
def test_a_fixed_point_is_found_and_kept(power: int) -> None:
    rng = np.random.default_rng(power)
    step = 2.0**-power
    values = (np.rint(rng.standard_normal(65_536) * 0.02 / step) * step).astype(np.float32)
    grid = find_grid(values, 256, 23)
    assert grid.least == step
    new = grid.moved(values, np.full(len(values), 0.3 * step), rng.random(len(values), np.float32))
    assert np.array_equal(np.rint(new / step) * step, new)
    assert (new - values).mean() == pytest.approx(0.3 * step, rel=0.05)


@pytest.mark.parametrize("kind", ["columns", "blocks of float8"])
def test_scales_that_are_not_known_are_refused(kind: str) -> None:
    rng = np.random.default_rng(3)
    w = rng.standard_normal((512, 512)).astype(np.float32) * np.float32(0.02)
    if kind == "columns":
        scale = np.abs(w).max(axis=0) / np.float32(127)
        made = np.rint(w / scale) * scale
    else:
        blocks = w.reshape(8, 64, 8, 64).transpose(0, 2, 1, 3)
        scale = np.abs(blocks).max(axis=(2, 3), keepdims=True) / np.float32(448)
        coarse = rounded((blocks / scale).reshape(-1).astype(np.float64), "F8_E4M3")
        made = coarse.reshape(blocks.shape) * scale
        made = made.transpose(0, 2, 1, 3).reshape(512, 512)
    with pytest.raises(UnsuitableTensorError, match="short list"):
        find_grid(made.astype(np.float32).reshape(-1), 512, 23)


def test_a_grid_holds_values_of_so_many_digits_only() -> None:
    grid = Grid("test", 3, 100.0)
    values = np.array([1.0, 1.125, 1.0625, 15.0, 17.0, -0.9375, 0.0, 2.0**-30], np.float32)
    assert grid.holds(values).tolist() == [True, True, False, True, False, True, True, True]
    stepped = Grid("test", 3, 100.0, 2.0**-4)
    small = np.array([2.0**-4, 3 * 2.0**-4, 2.0**-5, 1.5 * 2.0**-4, -(2.0**-4)], np.float32)
    assert stepped.holds(small).tolist() == [True, True, False, False, True]
    wide = Grid("test", 30, 100.0)
    doubles = np.array([1 + 2.0**-30, 1 + 2.0**-31, 0.1])
    assert wide.holds(doubles).tolist() == [True, False, False]
    single = Grid("float32", 23, 100.0)
    assert single.holds(np.array([0.5, 0.1])).tolist() == [True, False]


@pytest.mark.parametrize("mantissa", [0, 3, 7, 10, 23])
def test_the_nearest_value_is_that_of_rounding_to_even(mantissa: int) -> None:
    values = np.random.default_rng(mantissa).standard_normal(2000) * 3
    fraction, exponent = np.frexp(values)
    unit = 2.0 ** (mantissa + 1)
    expected = np.ldexp(np.rint(fraction * unit) / unit, exponent)
    np.testing.assert_array_equal(Grid("test", mantissa, 9.0).nearest(values), expected)


def test_around_zero_the_nearest_value_is_a_multiple_of_the_least_step() -> None:
    grid, step = Grid("test", 3, 9.0, 2.0**-6), 2.0**-6
    values = np.array([0.4, 0.5, 0.6, 1.5, 7.4, 7.6, 8.4, 9.0, 17.0, -2.6]) * step
    expected = np.array([0, 0, 1, 2, 7, 8, 8, 9, 16, -3]) * step
    np.testing.assert_array_equal(grid.nearest(values), expected)
    assert Grid("float64", 52, 9.0).nearest(np.array([0.1])).tolist() == [0.1]


@pytest.mark.parametrize("noise", [0.0, 0.25, 0.3, 0.999])
def test_dithering_goes_up_where_noise_and_remainder_reach_one(noise: float) -> None:
    grid, step = Grid("test", 10, 4.0, 2.0**-12), 2.0**-12
    values = np.array([10.0, -10.0, 3.0]) * step
    places = np.array([10.25, -10.25, 3.75])
    new = grid.moved(values, places * step - values, np.full(3, noise))
    up = (np.abs(places) % 1) + noise >= 1
    expected = np.sign(places) * (np.floor(np.abs(places)) + up)
    assert (new / step).tolist() == expected.tolist()


def test_only_zeros_that_have_to_stay_are_not_movable() -> None:
    values = np.array([0.0, 0.5, -0.0, -1.0, 0.3], np.float32)
    stays = Grid("test", 3, 2.0, zeros_stay=True)
    assert stays.movable(values).tolist() == [False, True, False, True, False]
    free = Grid("test", 3, 2.0)
    assert free.movable(values).tolist() == [True, True, True, True, False]


def test_no_weight_comes_closer_to_zero_than_the_bottom_or_beyond_the_top() -> None:
    rng = np.random.default_rng(0)
    for mantissa in (23, 10):
        grid = Grid("test", mantissa, 1.0, zeros_stay=True, bottom=0.25)
        values = rng.uniform(0.25, 1.0, 4000) * rng.choice([-1, 1], 4000)
        values = grid.nearest(values).astype(np.float32)
        for shift in (0.4, -0.4, 3.0):
            new = grid.moved(values, np.full(4000, shift), rng.random(4000))
            assert np.abs(new).min() >= 0.25
            assert np.abs(new).max() <= 1.0
            assert (np.sign(new) == np.sign(values)).all() or abs(shift) >= 0.5
            assert ((new - values) * shift >= 0).mean() > 0.99
            assert (new != values).mean() > 0.3


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_shift_far_beyond_the_room_fills_it_without_heaps(sign: int) -> None:
    grid = Grid("float32", 23, 1.0)
    values = np.random.default_rng(0).uniform(-0.3, 0.9, 20_000).astype(np.float32)
    new = sign * grid.moved(sign * values, np.full(20_000, sign * 0.6), np.zeros(20_000))
    moved = values + 0.6 > 1.0
    assert (new[moved] >= values[moved]).all()
    assert (new[moved] <= 1).all()
    assert (new[moved] > 0.999).mean() < 0.5
    np.testing.assert_allclose(new[~moved], values[~moved] + np.float32(0.6), atol=1e-6)


def test_blocks_are_told_by_position() -> None:
    steps, lows, highs = np.array([0.5, 2.0]), np.array([-3.0, -1.0]), np.array([3.0, 5.0])
    multiples = Multiples(4, steps, lows, highs, np.array([1, 6]))
    local = multiples.at(np.array([0, 3, 4, 7]))
    assert local.steps.tolist() == [0.5, 0.5, 2.0, 2.0]
    assert local.lows.tolist() == [-3, -3, -1, -1]
    assert local.highs.tolist() == [3, 3, 5, 5]
    assert local.anchors.tolist() == [1, 1, 6, 6]
    grid = Grid("multiples", 23, 10.0, multiples=multiples)
    values = np.array([0.5, 1.5, 0.7, 0.0, 2.0, -2.0, 10.0, 4.0])
    assert grid.movable(values).tolist() == [True, False, False, True, True, True, False, True]
    pruned = Grid("multiples", 23, 10.0, zeros_stay=True, multiples=multiples)
    assert not pruned.movable(values)[3]
    new = grid.moved(values, np.full(8, 1.0), np.zeros(8))
    assert new.tolist() == [1.5, 1.5, 0.7, 1.0, 2.0, 0.0, 10.0, 4.0]
    far = grid.moved(values, np.full(8, -9.0), np.zeros(8))
    assert far.tolist() == [-1.5, 1.5, 0.7, -1.5, -2.0, -2.0, 10.0, -2.0]


def test_a_block_with_one_multiple_only_stays() -> None:
    one = np.array([1.0])
    multiples = Multiples(3, np.array([0.5]), one, one, np.array([0]))
    grid = Grid("multiples", 23, 10.0, multiples=multiples)
    assert not grid.movable(np.full(3, 0.5)).any()


def test_moves_in_pieces_are_those_of_the_whole() -> None:
    values = stored(gaussian(rows=300), "BF16")
    grid, rng = find_grid(values, ROW, 7), np.random.default_rng(0)
    shift, noise = rng.standard_normal(len(values)) * 1e-3, rng.random(len(values))
    whole = grid.moved(values, shift, noise)
    assert len(values) > 2 * 65536
    for start in (0, 60_000, 131_072):
        part = slice(start, start + 10_000)
        np.testing.assert_array_equal(
            grid.moved(values[part], shift[part], noise[part]), whole[part]
        )


def test_nothing_can_be_moved() -> None:
    nothing = np.zeros(0, np.float32)
    for grid in (Grid("float32", 23, 1.0), Grid("bfloat16", 7, 1.0, bottom=0.1)):
        assert grid.moved(nothing, nothing, nothing).tolist() == []


def test_shifts_below_the_last_digit_are_met_on_average() -> None:
    grid, rng = Grid("float32", 23, 4.0), np.random.default_rng(0)
    values = rng.uniform(1.0, 2.0, 400_000).astype(np.float32)
    for shift in (1e-9, -3e-9):
        new = grid.moved(values, np.full(len(values), shift), rng.random(len(values)))
        change = new.astype(np.float64) - values
        assert change.mean() == pytest.approx(shift, abs=5e-10)


def test_a_grid_shows_its_kind_not_its_weights() -> None:
    values = stored(quantised(gaussian(), 4, 64), "F32")
    assert "array" not in repr(find_grid(values, ROW, 23))


def test_parameters_that_learn_are_moved_too() -> None:
    values = stored(quantised(gaussian(), 4, 64), "F32")
    grid = find_grid(values, ROW, 23)
    live = torch.nn.Parameter(torch.from_numpy(values))
    noise = np.random.default_rng(1).random(len(values))
    shift = np.full(len(values), 0.005)
    new = grid.moved(live, torch.from_numpy(shift), torch.from_numpy(noise))
    np.testing.assert_array_equal(new.detach().numpy(), grid.moved(values, shift, noise))


def test_a_multiple_that_becomes_zero_has_no_sign() -> None:
    ends = np.array([-3.0]), np.array([3.0])
    grid = Grid(
        "multiples", 23, 10.0, multiples=Multiples(2, np.array([0.5]), *ends, np.array([1]))
    )
    new = grid.moved(np.array([-0.5, 1.5]), np.array([0.35, 0.0]), np.zeros(2))
    assert new.tolist() == [0.0, 1.5]
    assert not np.signbit(new[0])


def test_a_shift_that_ends_just_beyond_the_room_uses_all_of_it() -> None:
    values = np.linspace(0.3, 0.7, 1000).astype(np.float32)
    for sign in (1, -1):
        shift = sign * (1.0001 - values.astype(np.float64))
        new = Grid("float32", 23, 1.0).moved(sign * values, shift, np.full(1000, 0.9))
        assert (sign * new > 0.999).all()


def test_weights_near_the_bottom_still_move_towards_it() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(0.25, 0.4, 4000).astype(np.float32)
    grid = Grid("float32", 23, 2.0, zeros_stay=True, bottom=0.25)
    new = grid.moved(values, np.full(4000, -0.2), rng.random(4000))
    assert (new >= 0.25).all()
    assert (new <= values).all()
    assert (new < values).mean() > 0.9


def test_multiples_in_a_float64_file() -> None:
    """A float32 scale is found to the last digit; one of a double's digits would be guessed."""
    step = float(np.float32(0.1 / 3))
    multiples = np.rint(gaussian() / step * 20)
    grid = find_grid(multiples * step, ROW, 52)
    assert grid.name == "multiples of one scale"
    noise = np.random.default_rng(0).random(len(multiples))
    new = grid.moved(multiples * step, np.full(len(multiples), step / 3), noise)
    assert (new != multiples * step).any()
    np.testing.assert_array_equal(np.rint(new / step) * step, new)
    with pytest.raises(UnsuitableTensorError, match="cannot be repeated"):
        find_grid(multiples * (0.1 / 3), ROW, 52)


def test_powers_of_two_keep_to_their_smallest() -> None:
    """Weights of a network that only shifts: ±1, 2, 4 or 8 times one power of two."""
    rng = np.random.default_rng(0)
    values = rng.choice([-1, 1], 65_536) * rng.choice([1, 2, 4, 8], 65_536) * 0.125
    grid = find_grid(values.astype(np.float32), 256, 23)
    assert (grid.mantissa, grid.least) == (0, 0.125)
    new = moved(grid, values.astype(np.float32), 0.03)
    assert (new != values).any()
    assert set(np.abs(new).tolist()) <= {0.0, 0.125, 0.25, 0.5, 1.0}


def test_few_values_have_the_grid_of_the_file() -> None:
    assert find_grid(gaussian()[:20].astype(np.float32), 20, 23).name == "float32"


def test_a_tensor_of_zeros_but_for_a_few_has_the_grid_of_the_file() -> None:
    """So few that a sample of the tensor has none of them."""
    values = np.zeros(1_000_000, np.float32)
    values[:2] = 1.0, 0.3
    assert find_grid(values, 1000, 23).name == "float32"


def test_ten_values_are_no_evidence_of_a_scale() -> None:
    values = 0.0137 * np.arange(3, 43, 4, dtype=np.float64)
    assert find_steps(rounded(values, "BF16"), 10, 7, 0.0) is None
    many = 0.0137 * np.random.default_rng(0).integers(-7, 8, 10_000).astype(np.float64)
    assert find_steps(rounded(many, "BF16"), 100, 7, 0.0) is not None


def test_scales_of_some_rows_only_are_none() -> None:
    """Rows that a sample of the tensor may miss are looked at too."""
    values = gaussian(rows=1000, row=256).reshape(1000, 256)
    seen = np.random.default_rng(0).integers(0, 1000, 128)
    values[seen] = quantised(values[seen].reshape(-1), 4, 256).reshape(-1, 256)
    assert find_steps(values.astype(np.float32).reshape(-1), 256, 23, 0.0) is None


def test_a_shift_that_ends_just_below_the_bottom_uses_all_the_room() -> None:
    values = np.linspace(0.8, 1.2, 1000).astype(np.float32)
    grid = Grid("float32", 23, 2.0, zeros_stay=True, bottom=0.5)
    for sign in (1, -1):
        shift = sign * (0.4999 - values.astype(np.float64))
        new = sign * grid.moved(sign * values, shift, np.full(1000, 0.9))
        assert ((new >= 0.5) & (new < 0.505)).all()


@pytest.mark.parametrize("noise", [0.0, 0.3, 0.99])
def test_what_ends_at_the_bottom_is_never_below_it(noise: float) -> None:
    values = np.random.default_rng(0).uniform(0.3, 1.9, 4000).astype(np.float32)
    fine = Grid("float32", 23, 2.0, zeros_stay=True, bottom=float(np.float32(0.1)))
    shift = float(np.float32(0.1)) - values.astype(np.float64)
    assert (fine.moved(values, shift, np.full(4000, noise)) >= np.float32(0.1)).all()
    coarse = Grid("bfloat16", 7, 2.0, zeros_stay=True, bottom=0.25)
    new = coarse.moved(np.full(10, 0.5, np.float32), np.full(10, -0.25), np.full(10, noise))
    assert new.tolist() == [0.25] * 10


def test_one_shift_for_all_and_float64_beyond_the_top() -> None:
    values, rng = np.random.default_rng(0).uniform(0.1, 0.9, 2000), np.random.default_rng(1)
    grid, noise = Grid("float64", 52, 1.0), rng.random(2000)
    one = grid.moved(values, np.float64(0.05), noise)
    np.testing.assert_array_equal(one, grid.moved(values, np.full(2000, 0.05), noise))
    far = grid.moved(values, np.full(2000, 0.5), noise)
    assert (far <= 1.0).all()
    assert len(np.unique(far)) > 1900


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_digits_decide_numbers_from_zero_to_one(kind: type) -> None:
    drawn = _own_noise(np.random.default_rng(0).standard_normal(20_000).astype(kind))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts, _ = np.histogram(drawn, 10, (0, 1))
    assert (np.abs(counts - 2000) < 250).all()


def test_the_last_digit_is_one_too_many_and_multiples_are_not_shown() -> None:
    odd = np.array([1.0, 1.0 + 2.0**-23], np.float32)
    assert Grid("22 bits", 22, 9.0).holds(odd).tolist() == [True, False]
    ones = np.ones(2)
    steps = Multiples(2, ones, ones, ones, np.arange(2))
    assert "array" not in repr(steps)
