"""Rows of weights as small integers: close, the same everywhere, and sound at the edges."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralmark.anchors import coarse
from neuralmark.errors import NonFiniteError, ParameterError

BITS = range(2, 9)


def heavy(rows: int, length: int) -> np.ndarray:
    """Rows with outliers, as language models have them."""
    return np.random.default_rng(1).standard_t(3, (rows, length)).astype(np.float32)


def there_and_back(lines: np.ndarray, bits: int) -> np.ndarray:
    codes, scales = coarse.coarsen(lines, bits)
    packed = coarse.pack(codes, bits)
    assert packed.shape == (len(lines), coarse.packed_length(lines.shape[1], bits))
    again = coarse.unpack(packed, lines.shape[1], bits)
    np.testing.assert_array_equal(again, codes)
    return coarse.restored(again, coarse.fitting_scales(scales))


def cosine(one: np.ndarray, two: np.ndarray) -> float:
    a, b = one.astype(np.float64).reshape(-1), two.astype(np.float64).reshape(-1)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.parametrize("bits", BITS)
def test_every_code_is_kept(bits: int) -> None:
    top = coarse.codes_up_to(bits)
    codes = np.arange(-top, top + 1, dtype=np.int8)[None, :].repeat(3, axis=0)
    packed = coarse.pack(codes, bits)
    np.testing.assert_array_equal(coarse.unpack(packed, codes.shape[1], bits), codes)


@pytest.mark.parametrize(
    ("bits", "least"), [(2, 0.89), (3, 0.97), (4, 0.99), (5, 0.997), (8, 0.9999)]
)
def test_gaussian_rows_stay_alike(bits: int, least: float) -> None:
    rows = np.random.default_rng(0).standard_normal((64, 1000)).astype(np.float32)
    assert cosine(rows, there_and_back(rows, bits)) > least


def test_outliers_do_not_make_the_rest_zero() -> None:
    rows = heavy(32, 2000)
    rows[:, 0] = 40.0
    near = there_and_back(rows, 4)
    assert cosine(rows, near) > 0.88
    assert cosine(rows[:, 1:], near[:, 1:]) > 0.85
    assert (near[:, 1:] != 0).mean() > 0.4


def test_regression_on_the_coarse_copy_gives_the_factor_one() -> None:
    for rows in (heavy(64, 512), np.random.default_rng(2).random((64, 27), np.float32)):
        near = there_and_back(rows, 4).astype(np.float64)
        factors = (rows * near).sum(axis=1) / np.square(near).sum(axis=1)
        np.testing.assert_allclose(factors, 1.0, atol=1e-3)


def reference(line: np.ndarray, bits: int) -> tuple[list[int], Fraction]:
    """The same rule in exact fractions, one weight after the other."""
    top = coarse.codes_up_to(bits)
    largest = np.abs(line).max()
    factor = np.float32(2047) / largest
    whole = [int(np.rint(value * factor)) for value in line]
    best: tuple[int, int, list[int]] | None = None
    for turn, reach in enumerate((1.0, 0.70710678, 0.5, 0.35355339, 0.25, 0.125)):
        step = max(round(2047 * reach / top), 1)

        def code(number: int, step: int = step) -> int:
            return max(-top, min(top, int(np.rint(number / step))))

        middles = [abs(number) // 8 * 8 + 4 for number in whole]
        error = sum((middle - code(middle) * step) ** 2 for middle in middles)
        if best is None or error < best[0]:
            best = error, turn, [code(number) for number in whole]
    assert best is not None
    codes = best[2]
    along = sum(number * code for number, code in zip(whole, codes, strict=True))
    scale = Fraction(float(largest)) / 2047 * along / sum(code * code for code in codes)
    return codes, scale


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_exact_arithmetic_agrees(bits: int) -> None:
    rows = np.concatenate([heavy(6, 90), np.random.default_rng(3).random((6, 90), np.float32)])
    codes, scales = coarse.coarsen(rows, bits)
    for line, own, scale in zip(rows, codes, scales, strict=True):
        expected, exact = reference(line, bits)
        np.testing.assert_array_equal(own, expected)
        assert float(scale) == pytest.approx(float(exact), rel=1e-14)


def test_the_order_of_weights_does_not_matter() -> None:
    """Sums are exact, so another order (another machine's) gives the same scales, bit for bit."""
    rows = heavy(16, 5000)
    order = np.random.default_rng(4).permutation(5000)
    codes, scales = coarse.coarsen(rows, 4)
    turned, same = coarse.coarsen(np.ascontiguousarray(rows[:, order]), 4)
    np.testing.assert_array_equal(scales, same)
    np.testing.assert_array_equal(codes[:, order], turned)


def test_rows_do_not_depend_on_their_neighbours() -> None:
    rows = heavy(9, 300)
    codes, scales = coarse.coarsen(rows, 4)
    for number in range(9):
        own, scale = coarse.coarsen(rows[number : number + 1], 4)
        np.testing.assert_array_equal(own[0], codes[number])
        assert scale[0] == scales[number]


def test_zero_rows_stay_zero() -> None:
    rows = np.zeros((3, 8), np.float32)
    rows[1] = 1.0
    near = there_and_back(rows, 4)
    np.testing.assert_allclose(near, rows, rtol=1e-3)
    assert not near[0].any()


@pytest.mark.parametrize("size", [1.4e-45, 1e-40, 1e-30, 1e-8, 1e4, 1e30, 3.4e38])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_any_size_of_float32(size: float, bits: int) -> None:
    rows = (np.sign(heavy(4, 64)) * np.float32(size)).astype(np.float32)
    near = there_and_back(rows, bits)
    assert np.isfinite(near).all()
    if size > 1e-38:
        np.testing.assert_allclose(near, rows, rtol=0.51 if size > 3e38 else 0.02)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(bad: float) -> None:
    rows = heavy(2, 8)
    rows[1, 3] = bad
    with pytest.raises(NonFiniteError):
        coarse.coarsen(rows, 4)
    with pytest.raises(NonFiniteError):
        coarse.fitting_values(rows[1])
    with pytest.raises(NonFiniteError):
        coarse.fitting_values(np.array([1e39]))


@pytest.mark.parametrize("bits", [1, 9, 0, -4, True, 4.0, "4"])
def test_bits_out_of_range(bits: int) -> None:
    with pytest.raises(ParameterError):
        coarse.check_bits(bits)


def test_vectors_keep_float16_while_it_has_the_range() -> None:
    assert coarse.fitting_values(np.array([0.5, -2.0])).dtype == "<f2"
    assert coarse.fitting_values(np.array([0.5, 70000.0])).dtype == "<f4"
    assert coarse.fitting_values(np.array([1e-6, 3e-6])).dtype == "<f4"
    assert coarse.fitting_values(np.zeros(4)).dtype == "<f2"
    assert coarse.fitting_scales(np.array([0.0, 0.01])).dtype == "<f2"
    assert coarse.fitting_scales(np.array([0.01, 1e-6])).dtype == "<f4"
    assert coarse.fitting_scales(np.array([0.01, 1e6])).dtype == "<f4"


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200_000), st.integers(1, 4), st.integers(997, 300_000))
def test_pieces_of_any_size_give_the_same_lines(length: int, rows: int, piece: int) -> None:
    flat = np.arange(length * rows, dtype=np.float32)
    pieces = [flat[at : at + piece] for at in range(0, flat.size, piece)]
    found = list(coarse.blocks(pieces, length))
    widths = [len(line) for block in found for line in block]
    assert widths == list(coarse.lines_of(length)) * rows
    np.testing.assert_array_equal(np.concatenate([block.reshape(-1) for block in found]), flat)


def test_a_tensor_that_ends_inside_a_row() -> None:
    with pytest.raises(ParameterError):
        list(coarse.blocks([np.zeros(7, np.float32)], 4))
