"""Number formats of checkpoints, by their safetensors names: raw bytes to values and back.

numpy knows neither bfloat16 nor float8, so these are widened here; rounding is to nearest, ties
to even, and saturates at the largest finite value (a mark never writes an infinity).
"""

from functools import cache

import numpy as np
import numpy.typing as npt

from neuralmark.core.key import Float

Raw = npt.NDArray[np.uint8]

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
"""The types a mark can be read from and written to."""

ITEMSIZE = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2},
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"), 1),
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1},
    **{"C64": 8, "C128": 16},
}
"""Bytes per element of every type whose size is a whole number of bytes."""

MANTISSA = {
    **{"F64": 52, "F32": 23, "F16": 10, "BF16": 7},
    **{"F8_E4M3": 3, "F8_E5M2": 2, "F8_E4M3FNUZ": 3, "F8_E5M2FNUZ": 2},
}
"""Bits after the leading one that a value of each type can have."""

# exponent bits, mantissa bits, exponent bias, and which code stands for infinity or NaN
_FLOAT8 = {
    "F8_E4M3": (4, 3, 7, "one-nan"),
    "F8_E5M2": (5, 2, 15, "ieee"),
    "F8_E4M3FNUZ": (4, 3, 8, "unsigned-zero"),
    "F8_E5M2FNUZ": (5, 2, 16, "unsigned-zero"),
}


def decode(
    raw: Raw, dtype: str, room: npt.NDArray[np.uint32] | None = None
) -> npt.NDArray[np.floating]:
    """Values of raw little-endian bytes, as float32 (float64 for F64).

    Who decodes piece after piece may give `room` for the values of one, to be used again.
    """
    if dtype == "F64":
        return raw.view("<f8")
    if dtype == "F32":
        return raw.view("<f4")
    if dtype == "F16":
        return raw.view("<f2").astype(np.float32)
    if dtype == "BF16":
        codes = raw.view("<u2")
        word = np.empty(len(codes), np.uint32) if room is None else room[: len(codes)]
        np.left_shift(codes, 16, out=word, dtype=np.uint32, casting="unsafe")
        return word.view(np.float32)
    return _float8_values(dtype)[raw]


def encode(values: npt.NDArray[np.floating], dtype: str) -> Raw:
    """Raw little-endian bytes of the nearest values that `dtype` can hold."""
    if dtype == "F64":
        return np.ascontiguousarray(values, "<f8").view(np.uint8)
    if dtype in ("F32", "F16"):
        top = float(np.finfo(np.float32 if dtype == "F32" else np.float16).max)
        kind = "<f4" if dtype == "F32" else "<f2"
        short: npt.NDArray[np.floating] = np.clip(values, -top, top).astype(kind)
        return short.view(np.uint8)
    if dtype == "BF16":
        top = 3.3895313892515355e38
        single: npt.NDArray[np.float32] = np.clip(values, -top, top).astype(np.float32)
        word = single.view(np.uint32)
        word = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(
            16
        )
        return word.astype("<u2").view(np.uint8)
    return _encode_float8(values, dtype)


def rounded(values: Float, dtype: str) -> Float:
    """The nearest values that `dtype` can hold."""
    return decode(encode(values, dtype), dtype).astype(np.float64)


@cache
def _float8_values(dtype: str) -> npt.NDArray[np.float32]:
    """The 256 values of a float8 type, by code."""
    exponent_bits, mantissa_bits, bias, specials = _FLOAT8[dtype]
    code = np.arange(256)
    sign = np.where(code >> 7, -1.0, 1.0)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    normal = (1.0 + fraction) * 2.0 ** (exponent - bias)
    value = sign * np.where(exponent > 0, normal, fraction * 2.0 ** (1 - bias))
    if specials == "ieee":
        top = exponent == (1 << exponent_bits) - 1
        value[top] = np.where(fraction[top] > 0, np.nan, sign[top] * np.inf)
    elif specials == "one-nan":
        value[(code & 0x7F) == 0x7F] = np.nan
    else:
        value[0x80] = np.nan
    return value.astype(np.float32)


@cache
def _float8_grid(dtype: str) -> tuple[npt.NDArray[np.uint8], Float]:
    """Codes of the finite values in ascending order (one zero), and the midpoints between them."""
    values = _float8_values(dtype).astype(np.float64)
    codes = np.flatnonzero(np.isfinite(values))
    codes = codes[~((values[codes] == 0) & (codes != 0))]
    codes = codes[np.argsort(values[codes])]
    grid = values[codes]
    return codes.astype(np.uint8), (grid[1:] + grid[:-1]) / 2


def _encode_float8(values: npt.NDArray[np.floating], dtype: str) -> Raw:
    codes, midpoints = _float8_grid(dtype)
    index = np.searchsorted(midpoints, values, side="left")
    tie = (index < len(midpoints)) & (values == midpoints[np.minimum(index, len(midpoints) - 1)])
    index += tie & (codes[index] & 1).astype(bool)
    return codes[index]
