"""How alike two tensors are that lie in the same order, as strangers with their spectra are not.

Much of a trained tensor may lie in one direction: the mean of an embedding has more than half of
its energy. Two strangers put in order have such directions in common, and a cosine sees little
else. Here no direction counts for more than the middle one, and rows and columns have the sizes
of the first tensor, whatever factors they were given.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from neuralmark.structures.structure import Array

Floats = npt.NDArray[np.float64]

LEAST_SIZE = 1000
"""Smaller tensors are not compared, nor are vectors: a norm's weights are alike in all models."""
LEAST_SIDE = 8
"""Nor are those whose rows or columns have fewer weights: given the sizes of the others' they are
these, up to signs."""
SIDE = 1024
"""Of larger tensors, so many rows and columns are compared, evenly spaced."""

_SWEEPS = 4
_OPPOSED = -0.5
"""Rows and columns whose cosine is below this were flipped: strangers never come so far."""
_NOTHING = 1e-6
"""Directions with less than this share of the largest are rounding."""
_TURNS = 2


def comparable(shape: Sequence[int]) -> bool:
    """Whether likeness of tensors of this shape says anything.

    >>> [comparable(shape) for shape in ((64, 64), (64,), (1, 4096), (512, 1, 3, 3), (9, 9))]
    [True, False, False, True, False]
    """
    if len(shape) < 2 or math.prod(shape) < LEAST_SIZE:
        return False
    return min(shape[:2]) * math.prod(shape[2:]) >= LEAST_SIDE


def resemblance(values: Array, anchor: Array) -> float:
    """The cosine of two tensors of one shape when no direction stands out of the others.

    0 for what is not finite. Rows and columns may have any factors.
    """
    if values.shape != anchor.shape or values.ndim < 2 or not values.size:
        return 0.0
    one, two = _sample(values), _sample(anchor)
    if not (np.isfinite(one).all() and np.isfinite(two).all() and one.any() and two.any()):
        return 0.0
    flats = [_flattened(each) for each in (_sized(one, two), two)]
    whole = float(np.sqrt(np.prod([np.sum(each * each) for each in flats])))
    return float(np.sum(flats[0] * flats[1])) / whole if whole > 0 else 0.0


def turned(values: Array, seed: int) -> Array:
    """A stranger: rows and columns turned at random, so that the spectrum is all that stays."""
    from scipy.fft import dct  # slow to import, and needed by lineage only

    rng = np.random.default_rng(seed)
    made = np.nan_to_num(np.asarray(values, np.float32), posinf=0.0, neginf=0.0)
    for axis in range(min(2, values.ndim) if values.ndim > 1 else 0):
        for _ in range(_TURNS):
            made = np.take(made, rng.permutation(made.shape[axis]), axis=axis)
            signs = rng.choice(np.array([-1, 1], np.float32), made.shape[axis])
            made = made * signs.reshape([-1 if a == axis else 1 for a in range(made.ndim)])
            made = dct(made, axis=axis, norm="ortho")
    return np.asarray(made, np.float32)


def _sample(values: Array) -> Floats:
    """Rows x columns x kernel positions, of millions of weights some."""
    cube = values.reshape(values.shape[0], values.shape[1], -1)
    for axis in (0, 1):
        length = cube.shape[axis]
        if length > SIDE:
            cube = np.take(cube, np.arange(SIDE) * length // SIDE, axis=axis)
    return np.asarray(cube, np.float64)


def _sized(values: Floats, anchor: Floats) -> Floats:
    """With the sizes of the anchor's rows and columns, and their signs where these are clear."""
    values = values / np.abs(values).max()
    for _ in range(_SWEEPS):
        for axes in ((1, 2), (0, 2)):
            own, wanted = (
                np.sqrt(np.sum(each * each, axis=axes, keepdims=True)) for each in (values, anchor)
            )
            shared = np.sum(values * anchor, axis=axes, keepdims=True)
            factor = np.divide(wanted, own, out=np.zeros_like(own), where=own > 0)
            values = values * np.where(shared < _OPPOSED * own * wanted, -factor, factor)
    return values


def _flattened(cube: Floats) -> Floats:
    """With no singular value above the median of those that are there."""
    matrix = cube.reshape(len(cube), -1)
    if len(matrix) > matrix.shape[1]:
        return _flattened(matrix.T[:, :, None]).T
    squares, directions = np.linalg.eigh(matrix @ matrix.T)
    sizes = np.sqrt(np.maximum(squares, 0))
    there = sizes > _NOTHING * sizes[-1]
    middle = float(np.median(sizes[there])) if there.any() else 0.0
    shrink = np.divide(middle, sizes, out=np.ones_like(sizes), where=sizes > middle)
    return np.asarray((directions * shrink) @ (directions.T @ matrix))
