"""Factors of rows and columns, by regression on the anchor (pure; ANCHORS.md section 3).

A folded batch norm, weight norm, scales of a quantisation, or an attacker who scales channels up
and down: the suspect is the anchor times a factor for every row and every column. They are
regressed and divided out. What is then still far from the anchor (a nearly dead channel, blown up)
is drawn in.
"""

import numpy as np
import numpy.typing as npt

from neuralmark.structures.structure import Array

Floats = npt.NDArray[np.float64]

LEAST_LIKENESS = 0.12
"""Channels whose cosine is below this are not taken for the same."""
RESCALED, DRAWN_IN = "rescaled", "outlying channels drawn in"
FLIPPED = "flipped"

_SWEEPS = 12
_NOTICEABLE = 0.05
"""Typical deviation of the factors (logarithm) from which they are spoken of."""
_STRAY = 0.01
"""The share of weights whose factor may be negative by chance."""
_FARTHEST = 3.0
"""A channel whose residual is so many times the median of all is drawn in."""


def rescaled(values: Array, anchor: Array) -> tuple[Array, tuple[str, ...]]:
    """A tensor in the anchor's order with the factors of its rows and columns divided out.

    Rows and columns without likeness stay as they are; a tensor with one axis stays whole, as a
    factor for each of its values would only copy the anchor.
    """
    if values.ndim < 2 or not values.size:
        return values, ()
    cube = _finite(_cube(values))
    target = _cube(anchor)
    rows, columns = _factors(cube, target)
    noticed = [RESCALED] if _noticeable(rows) or _noticeable(columns) else []
    whole = (rows[:, None, None] * columns[None, :, None]).astype(np.float32)
    noticed += [FLIPPED] if (whole < 0).mean() > _STRAY else []
    found, drawn = _tempered(np.asarray(cube / whole), target)
    if drawn:
        noticed.append(DRAWN_IN)
    return found.reshape(values.shape), tuple(noticed)


def _cube(values: Array) -> Array:
    return values.reshape(values.shape[0], values.shape[1], -1)


def _finite(cube: Array) -> Array:
    there = np.isfinite(cube)
    return cube if there.all() else np.asarray(np.where(there, cube, 0), np.float32)


def _factors(cube: Array, anchor: Array) -> tuple[Floats, Floats]:
    """Of rows and columns; 1 where there is no likeness."""
    shared = np.einsum("ijk,ijk->ij", cube, anchor, dtype=np.float64)
    own = np.einsum("ijk,ijk->ij", cube, cube, dtype=np.float64)
    wanted = np.einsum("ijk,ijk->ij", anchor, anchor, dtype=np.float64)
    rows, columns = np.ones(len(own)), np.ones(own.shape[1])
    for _ in range(_SWEEPS):
        for axis, factors in ((1, rows), (0, columns)):
            whole = rows[:, None] * columns[None, :]
            factors *= _regressed(
                (shared / whole).sum(axis), (own / whole**2).sum(axis), wanted.sum(axis)
            )
    size = np.median(np.abs(columns[columns != 1])) if (columns != 1).any() else 1.0
    return rows * size, columns / size


def _regressed(shared: Floats, own: Floats, wanted: Floats) -> Floats:
    """One factor for each channel."""
    alike = shared**2 > LEAST_LIKENESS**2 * own * wanted
    safe = np.where(wanted > 0, wanted, 1.0)
    return np.where(alike & (shared != 0), shared / safe, 1.0)


def _noticeable(factors: Floats) -> bool:
    spread = np.abs(np.log(np.abs(factors)))
    return bool(np.median(np.abs(spread - np.median(spread))) > _NOTICEABLE)


def _tempered(found: Array, anchor: Array) -> tuple[Array, bool]:
    """Rows, then columns, farther from the anchor than most and than its size: drawn in."""
    drawn = False
    size = float(np.sqrt(np.mean(np.square(anchor, dtype=np.float64))))
    for axes in ((1, 2), (0, 2)):
        residual = found - anchor
        far = np.sqrt(np.mean(np.square(residual, dtype=np.float64), axis=axes, keepdims=True))
        reach = max(_FARTHEST * float(np.median(far)), size)
        if (far > reach).any():
            drawn = True
            shrink = np.minimum(1.0, reach / np.maximum(far, 1e-300)).astype(np.float32)
            found = np.asarray(anchor + residual * shrink)
    return found, drawn
