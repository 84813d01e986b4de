"""Small integers in larger words, and the element types of four bits."""

from math import gcd

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints.readers.blocks import Numbers, Values

FP4 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
FP4 = np.concatenate([FP4, -FP4])
"""The values of e2m1, by code."""

EXPONENTS: Values = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan).astype(np.float32)
"""The values of e8m0, by code: powers of two, of which the last stands for no number."""


def words_for(count: int, bits: int) -> int:
    """How many 32-bit words hold this many integers without a gap."""
    return -(-count * bits // 32)


def unpacked(words: Numbers, bits: int, axis: int) -> npt.NDArray[np.uint8]:
    """The integers in 32-bit words along an axis: the first in the lowest bits, without gaps.

    >>> unpacked(np.array([[0x76543210]], np.uint32), 4, axis=1)
    array([[0, 1, 2, 3, 4, 5, 6, 7]], dtype=uint8)
    """
    words = np.moveaxis(words, axis, 0).view(np.uint32)
    period, each = bits // gcd(bits, 32), 32 // gcd(bits, 32)
    missing = -len(words) % period
    if missing:
        words = np.concatenate([words, np.zeros((missing, *words.shape[1:]), np.uint32)])
    words = words.reshape(-1, period, *words.shape[1:])
    out = np.empty((len(words), each, *words.shape[2:]), np.uint8)
    mask = np.uint32((1 << bits) - 1)
    for k in range(each):
        word, shift = divmod(k * bits, 32)
        found = words[:, word] >> np.uint32(shift)
        if shift + bits > 32:
            found = found | (words[:, word + 1] << np.uint32(32 - shift))
        out[:, k] = found & mask
    return np.moveaxis(out.reshape(-1, *out.shape[2:]), 0, axis)


def nibbles(packed: npt.NDArray[np.uint8], *, high_first: bool = False) -> npt.NDArray[np.uint8]:
    """Two integers from each byte, along the last axis.

    >>> nibbles(np.array([0x21, 0x43], np.uint8))
    array([1, 2, 3, 4], dtype=uint8)
    """
    out = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.uint8)
    out[..., 1 if high_first else 0 :: 2] = packed & 15
    out[..., 0 if high_first else 1 :: 2] = packed >> 4
    return out
