"""Quantisers for GGUF types that the gguf package can only read: Q4_K, Q6_K and IQ4_NL.

Plain rounding, block by block; llama.cpp's own search for better scales, which changes the
figures a little and the layout not at all.
"""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
CODEBOOK = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)


def half(values: Array) -> Bytes:
    return values.astype("<f2").reshape(-1, 1).view(np.uint8)


def safe(values: Array) -> Array:
    return np.where(values == 0, np.float32(1), values)


def q4_k(array: Array) -> Bytes:
    """Eight groups of 32 codes of 4 bits, each with a scale and a minimum of 6 bits."""
    groups = array.reshape(-1, 8, 32)
    low = np.minimum(groups.min(-1), 0)
    step = (groups.max(-1) - low) / 15
    d, dmin = step.max(-1) / 63, (-low).max(-1) / 63
    scales = np.rint(step / safe(d)[:, None]).astype(np.uint8)
    mins = np.rint(-low / safe(dmin)[:, None]).astype(np.uint8)
    unit = safe((d[:, None] * scales).astype(np.float32))[..., None]
    shift = (dmin[:, None] * mins).astype(np.float32)[..., None]
    codes = np.clip(np.rint((groups + shift) / unit), 0, 15).astype(np.uint8)
    packed = np.concatenate(
        [
            (scales[:, :4] & 63) | ((scales[:, 4:] >> 4) << 6),
            (mins[:, :4] & 63) | ((mins[:, 4:] >> 4) << 6),
            (scales[:, 4:] & 15) | ((mins[:, 4:] & 15) << 4),
        ],
        axis=1,
    )
    pairs = codes.reshape(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).reshape(len(groups), -1)
    return rows(np.hstack([half(d), half(dmin), packed, nibbles]), array)


def q6_k(array: Array) -> Bytes:
    """Sixteen groups of 16 codes of 6 bits, each with a scale of 8 bits."""
    groups = array.reshape(-1, 16, 16)
    step = np.abs(groups).max(-1) / 31
    d = step.max(-1) / 127
    scales = np.rint(step / safe(d)[:, None]).astype(np.int8)
    unit = safe((d[:, None] * scales).astype(np.float32))[..., None]
    codes = (np.clip(np.rint(groups / unit), -32, 31) + 32).astype(np.uint8)
    lines = codes.reshape(-1, 2, 4, 32)
    low = np.stack([lines[:, :, 0] & 15, lines[:, :, 1] & 15], 2).reshape(-1, 2, 64)
    high = np.stack([lines[:, :, 2] & 15, lines[:, :, 3] & 15], 2).reshape(-1, 2, 64)
    ql = (low | (high << 4)).reshape(len(groups), -1)
    tops = lines >> 4
    qh = tops[:, :, 0] | (tops[:, :, 1] << 2) | (tops[:, :, 2] << 4) | (tops[:, :, 3] << 6)
    qh = qh.reshape(len(groups), -1)
    return rows(np.hstack([ql, qh, scales.view(np.uint8), half(d)]), array)


def iq4_nl(array: Array) -> Bytes:
    """32 codes of 4 bits for values of a fixed, uneven scale."""
    groups = array.reshape(-1, 32)
    d = np.abs(groups).max(-1) / 113
    found = np.abs(groups[..., None] / safe(d)[:, None, None] - CODEBOOK).argmin(-1)
    codes = found.astype(np.uint8)
    return rows(np.hstack([half(d), codes[:, :16] | (codes[:, 16:] << 4)]), array)


def rows(blocks: Bytes, array: Array) -> Bytes:
    return np.ascontiguousarray(blocks).reshape(*array.shape[:-1], -1)
