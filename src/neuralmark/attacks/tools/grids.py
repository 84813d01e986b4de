"""The grid that a tensor's values lie on, and the values that lie off it.

Weights that were bfloat16 or float16 and are stored as float32 have empty low bits; those of a
dequantised tensor are whole multiples of a scale. Whoever shifts some of them by any number takes
them off the grid, and shows which they are.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Phases = npt.NDArray[np.complex128]

SHALLOW = 4
"""Fewer empty bits than this are not a grid."""
_PEAK = 0.05
_NEAR = 2e-5
_OFTEN = 3
_RUN = 24
_SKIPS = np.array([*range(25), -1, -2, -3, -4])
_SURE, _AGREED = 4.0, 0.75


def empty_bits(w: Array) -> npt.NDArray[np.int64]:
    """How many low bits of the significand of each float32 are empty: 0 to 23; 24 for zeros.

    >>> empty_bits(np.array([1.0, 1.5, 1 + 2.0**-23, 0.0], np.float32)).tolist()
    [23, 22, 0, 24]
    """
    raw = np.ascontiguousarray(w, np.float32).reshape(-1).view(np.uint32)
    significand = (raw & np.uint32(0x7FFFFF)) | np.uint32(0x800000)
    lowest = significand & (~significand + np.uint32(1))
    empty = (lowest.astype(np.float32).view(np.uint32) >> np.uint32(23)).astype(np.int64) - 127
    empty[(raw & np.uint32(0x7FFFFFFF)) == 0] = 24
    return empty


def grid_depth(w: Array) -> int:
    """How many low bits are empty on the grid that many of the values share; 0: no such grid.

    On a grid that leaves t bits empty, half of the values have exactly t, a quarter t + 1, and so
    on: the peak beyond the first few tells t, even if half of the values have left the grid.
    """
    empty = empty_bits(w)
    counts = np.bincount(empty, minlength=25)[:24]
    total = int(counts.sum())
    depth = SHALLOW + int(np.argmax(counts[SHALLOW:]))
    return depth if total and counts[depth] > _PEAK * total else 0


def row_scales(w: Array) -> Floats:
    """The step of which a row's frequent values are whole multiples; 0 where there is none."""
    rows = w.reshape(len(w), -1) if w.ndim > 1 else w.reshape(1, -1)
    return np.array([_scale(row) for row in rows])


def scale_distance(w: Array) -> Floats:
    """Distance of each weight from the nearest multiple of its row's step, in steps; else 0."""
    rows = w.reshape(len(w), -1) if w.ndim > 1 else w.reshape(1, -1)
    scales = row_scales(w)[:, None]
    steps = np.divide(rows, scales, out=np.zeros(rows.shape), where=scales > 0)
    return np.asarray(np.abs(steps - np.rint(steps)), np.float64).reshape(-1)


def off_grid(w: Array) -> Mask:
    """Where a tensor's values lie off the grid of the others; nowhere, if they have no grid."""
    depth = grid_depth(w)
    if depth:
        return np.asarray(empty_bits(w) < depth, np.bool_)
    if not _repeats(w):
        return np.zeros(w.size, np.bool_)
    return np.asarray(scale_distance(w) > _NEAR, np.bool_)


def phases(w: Array, at: npt.NDArray[np.int64]) -> Phases:
    """Where between two points of the grid each of these weights lies, as an angle; 0: unknown.

    All carriers of a pool were shifted by the same amount, so they lie alike between the points
    of one grid. It is the one of the binade that three quarters of them reach.
    """
    depth, values = grid_depth(w), w.reshape(-1)[at].astype(np.float64)
    found: Phases = np.zeros(len(values), np.complex128)
    if not depth or not len(values):
        return found
    least = 2.0 ** np.floor(np.log2(max(float(np.quantile(np.abs(values), 0.25)), 1e-30)))
    steps = values / (least * 2.0 ** (depth - 23))
    known = np.abs(values) >= least
    found[known] = np.exp(2j * np.pi * (steps[known] % 1.0))
    return found


def ranks(angles: Phases, pools: int) -> npt.NDArray[np.int64]:
    """The order of carriers of which some are missing: gaps are left where the angles ask for it.

    A shift that ends on the grid hides its carrier, and each one that is missing moves what follows
    by one pool. Angles of one pool agree, so a few carriers at a time are compared with what their
    pools had before, as they stand and moved by one pool or more.
    """
    order = np.arange(len(angles), dtype=np.int64)
    seen: Phases = np.zeros(pools, np.complex128)
    moved = 0
    for start in range(0, len(angles), _RUN):
        run = angles[start : start + _RUN]
        at = order[start : start + _RUN] + moved
        expected = seen[(at[None, :] + _SKIPS[:, None]) % pools]
        agreement = (expected / np.maximum(np.abs(expected), 1e-30) * run.conj()).real.sum(axis=1)
        best = int(np.argmax(agreement))
        if agreement[best] > agreement[0] + _SURE and agreement[best] > _AGREED * np.abs(run).sum():
            at, moved = at + _SKIPS[best], moved + int(_SKIPS[best])
        np.add.at(seen, at % pools, run)
        order[start : start + _RUN] = at
    return order


def _repeats(w: Array) -> bool:
    """Whether a fifth of the first few thousand weights at least repeat within their row."""
    rows = w.reshape(len(w), -1)[:4] if w.ndim > 1 else w.reshape(1, -1)[:, :4096]
    share = []
    for row in rows:
        _, counts = np.unique(np.abs(row[row != 0]), return_counts=True)
        share.append(counts[counts >= _OFTEN].sum() / max(1, row.size))
    return bool(share) and float(np.mean(share)) > 0.2


def _scale(row: Array) -> float:
    """The usual distance between neighbouring frequent values, made exact by the largest."""
    levels, counts = np.unique(np.abs(row).astype(np.float64), return_counts=True)
    levels = levels[(counts >= _OFTEN) & (levels > 0)]
    if len(levels) < _OFTEN:
        return 0.0
    step = float(np.median(np.diff(levels)))
    return float(levels[-1] / max(1.0, np.rint(levels[-1] / step)))
