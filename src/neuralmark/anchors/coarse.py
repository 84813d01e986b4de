"""Rows of weights as small signed integers and one scale each, and back (pure).

Every step is an elementwise IEEE operation, or a sum of whole numbers that float64 holds exactly:
the same bits on every machine, whatever the order of a sum. A row is cut into lines of at most
`LINE` weights; a line's values are `code · scale`. Of several steps the one with the least squared
error is taken (a few outliers must not make everything else zero), and the scale is then fitted to
the codes, so that regression of the row on its coarse copy gives the factor 1.
"""

from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from neuralmark.errors import NonFiniteError, ParameterError

Codes = npt.NDArray[np.int8]
Packed = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]
Scales = npt.NDArray[np.float64]

LINE = 1 << 16
"""A longer row is cut into lines of this many weights, each with a scale of its own."""
SHORT = 4
"""Rows of fewer weights are kept value by value, as vectors are: a scale would not pay."""
LEAST_BITS, MOST_BITS, USUAL_BITS = 2, 8, 4

_FINE = 2047
"""A line is brought to whole numbers up to this before anything is decided."""
_REACHES = (1.0, 0.70710678, 0.5, 0.35355339, 0.25, 0.125)
"""Candidates for the largest value that a code reaches, as shares of the line's largest weight."""
_BIN_SHIFT = 3
_BINS = (_FINE + 1) >> _BIN_SHIFT
_TINY = 2.0**-100
_BLOCK, _MOST_LINES = 1 << 16, 256
_LARGEST = float(np.finfo(np.float32).max) / 2 * 1.99999
_HALF_LARGEST = float(np.finfo(np.float16).max)
_HALF_SMALLEST = 2.0**-14
_SMALL = 2.0**-10
"""Vectors of which no value is larger are kept in float32: float16 has few digits there."""


def check_bits(bits: int) -> int:
    """The number of bits of a code, if it can be one."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not LEAST_BITS <= bits <= MOST_BITS:
        raise ParameterError(
            f"an anchor has {LEAST_BITS} to {MOST_BITS} bits per weight, not {bits!r:.40}"
        )
    return bits


def lines_of(length: int) -> tuple[int, ...]:
    """How a row of this many weights is cut: the length of each line."""
    whole, rest = divmod(length, LINE)
    return (LINE,) * whole + ((rest,) if rest else ())


def packed_length(length: int, bits: int) -> int:
    """Bytes that the codes of a line take; every line begins with a byte of its own."""
    return (length * bits + 7) // 8


def blocks(pieces: Iterable[npt.NDArray[np.floating]], length: int) -> Iterator[Values]:
    """Lines of one length, several at a time, from a tensor that comes in pieces of any size."""
    left: Values = np.empty(0, np.float32)
    widths = lines_of(length)
    turn = 0
    for piece in pieces:
        left = np.concatenate([left, _single(piece)])
        while len(left) >= widths[turn]:
            width = widths[turn]
            count = 1 if len(widths) > 1 else min(len(left), _together(width)) // width
            yield left[: count * width].reshape(count, width)
            left = left[count * width :]
            turn = (turn + 1) % len(widths)
    if len(left):
        raise ParameterError("a tensor that ends inside a row has no coarse copy")


def _together(width: int) -> int:
    """Weights of lines of this length that are worked on at once."""
    return max(min(_BLOCK, _MOST_LINES * width), width)


def _single(piece: npt.NDArray[np.floating]) -> Values:
    """In float32; what is larger becomes infinite and is refused later."""
    with np.errstate(over="ignore"):
        return piece.astype(np.float32)


def coarsen(lines: Values, bits: int) -> tuple[Codes, Scales]:
    """Codes and scales of lines (one per row of the array); NaN and infinity are an error."""
    largest = np.abs(lines).max(axis=1)
    if not np.isfinite(largest).all():
        raise NonFiniteError("weights are NaN, infinite or beyond float32: no anchor of them")
    tiny = largest < _TINY  # a power of two is multiplied exactly
    raise_by = np.where(tiny, np.float32(1 / _TINY), np.float32(1.0))
    unit = np.where(largest == 0, np.float32(1.0), largest * raise_by)
    if tiny.any():
        lines = lines * raise_by[:, None]
    whole = np.rint(lines * (np.float32(_FINE) / unit)[:, None]).astype(np.int16)
    table, squares = _table(bits)
    chosen = _least_error(whole, squares)
    places = whole + (chosen * len(table[0]) + _FINE)[:, None]
    codes = table.reshape(-1).take(places)
    along, square = _exact(whole, codes), _exact(codes, codes)
    scale = unit.astype(np.float64) / raise_by / _FINE
    scales = scale * (along / np.maximum(square, 1.0))
    return codes, np.minimum(scales, largest_scale(bits))


def codes_up_to(bits: int) -> int:
    """The largest code; the smallest is its negative."""
    return int((1 << (bits - 1)) - 1)


def largest_scale(bits: int) -> float:
    """No scale is larger: every code times it is a float32."""
    return _LARGEST / (1 << (bits - 1))


@cache
def _table(bits: int) -> tuple[Codes, Scales]:
    """For each candidate step the code of every whole number from -_FINE on, and its errors.

    Errors are squared, of the numbers in the middle of each bin of a histogram of sizes.
    """
    top = codes_up_to(bits)
    steps = np.array([max(round(_FINE * reach / top), 1) for reach in _REACHES])[:, None]
    codes = np.clip(np.rint(np.arange(-_FINE, _FINE + 1) / steps), -top, top)
    middles = np.arange(_BINS) * (_FINE + 1) // _BINS + (_FINE + 1) // _BINS // 2
    missed = middles - np.clip(np.rint(middles / steps), 0, top) * steps
    return codes.astype(np.int8), np.square(missed)


def _least_error(whole: npt.NDArray[np.int16], squares: Scales) -> npt.NDArray[np.intp]:
    """For each line the candidate with the least squared error, the first of equals."""
    count = len(whole)
    bins = (np.abs(whole) >> np.int16(_BIN_SHIFT)) + np.arange(count)[:, None] * _BINS
    held = np.bincount(bins.reshape(-1), minlength=count * _BINS).reshape(count, _BINS)
    errors = held.astype(np.float64) @ squares.T  # of whole numbers, so exact
    return np.asarray(np.argmin(errors, axis=1))


def _exact(one: npt.NDArray[np.integer], other: npt.NDArray[np.integer]) -> Scales:
    """Inner products of lines of whole numbers: all partial sums are below 2^53, so exact."""
    products = np.einsum("ij,ij->i", one.astype(np.float64), other.astype(np.float64))
    return np.asarray(products)


def fitting_scales(scales: Scales) -> npt.NDArray[np.floating]:
    """Scales as they are kept: in float16 where all of them are normal there, else in float32."""
    used = scales[scales > 0]
    fits = bool(((used >= _HALF_SMALLEST) & (used <= _HALF_LARGEST)).all())
    return scales.astype("<f2" if fits else "<f4")


def fitting_values(values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Values of a vector as they are kept: in float16 where its range suffices, else in float32."""
    single = _single(values)
    if not np.isfinite(single).all():
        raise NonFiniteError("weights are NaN, infinite or beyond float32: no anchor of them")
    largest = float(np.abs(single).max(initial=0.0))
    fits = largest == 0 or _SMALL <= largest <= _HALF_LARGEST
    return single.astype("<f2" if fits else "<f4")


def restored(codes: Codes, scales: npt.NDArray[np.floating]) -> Values:
    """Coarse values of lines: one multiplication each, in float32."""
    values: Values = codes.astype(np.float32)
    values *= scales.astype(np.float32)[:, None]
    return values


def pack(codes: Codes, bits: int) -> Packed:
    """Codes of lines as bytes: two's complement, the first code in the lowest bits."""
    mask = np.uint8((1 << bits) - 1)
    plain = codes.view(np.uint8) & mask
    if bits == 8:
        return plain
    if bits in (2, 4):
        per_byte = 8 // bits
        padded = np.zeros((len(plain), packed_length(plain.shape[1], bits) * per_byte), np.uint8)
        padded[:, : plain.shape[1]] = plain
        packed = padded[:, 0::per_byte].copy()
        for place in range(1, per_byte):
            packed |= padded[:, place::per_byte] << np.uint8(bits * place)
        return packed
    single = np.unpackbits(plain[..., None], axis=-1, bitorder="little", count=bits)
    return np.packbits(single.reshape(len(plain), -1), axis=1, bitorder="little")


def unpack(packed: Packed, length: int, bits: int) -> Codes:
    """What `pack` was given, for lines of this length."""
    if bits == 8:
        return packed.view(np.int8)
    if bits in (2, 4):
        per_byte = 8 // bits
        plain = np.empty((len(packed), packed.shape[1] * per_byte), np.uint8)
        for place in range(per_byte):
            np.right_shift(packed, np.uint8(bits * place), out=plain[:, place::per_byte])
        plain = plain[:, :length]
    else:
        single = np.unpackbits(packed, axis=1, bitorder="little", count=length * bits)
        plain = np.packbits(single.reshape(len(packed), length, bits), axis=2, bitorder="little")
        plain = plain[..., 0]
    shift = np.uint8(8 - bits)
    raised: Packed = plain << shift
    return raised.view(np.int8) >> np.int8(shift)
