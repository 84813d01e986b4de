"""Factors of a whole tensor, its rows and columns, where much else was done to it (pure).

`factors` regresses a suspect on the anchor. Where a thief has added many times the weights, that
says nothing; what is left when his addition is set aside does. Weight decay in a long training
shrinks all of a tensor, its mark included, so that even a small share of it may be what is left.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuralmark.structures.structure import Array

Floats = npt.NDArray[np.float64]

CLEAR = 5.0
"""Deviations that a factor must lie away from 1 (and from 0) to be believed."""
NOTICEABLE = 0.05
"""Factors nearer to 1 than this are left alone."""
UNEVEN = 0.1
"""Sizes of rows or columns that differ from the anchor's by this (logarithm, the median)."""
_FARTHEST = 1000.0
_FARTHER = 20.0
_SWEEPS = 2


def overall(values: Array, anchor: Array) -> float:
    """What the anchor is multiplied with to be most like the values; 1 where that is not clear.

    Pruned weights say nothing.
    """
    one, two = (each.reshape(len(anchor), -1) for each in (values, anchor))
    there = np.where(one == 0, np.float32(0), two)
    pairs = ((one, two), (one, one), (there, there))
    shared, own, wanted = (
        float(np.einsum("ij,ij->i", *pair, dtype=np.float64).sum()) for pair in pairs
    )
    if wanted <= 0 or own <= 0:
        return 1.0
    factor, spread = shared / wanted, CLEAR * float(np.sqrt(own / wanted / values.size))
    told = factor > spread and abs(factor - 1) > max(spread, NOTICEABLE)
    return factor if told and 1 / _FARTHEST < factor < _FARTHEST else 1.0


def by_size(values: Array, anchor: Array) -> Array | None:
    """Factors that bring rows and columns to sizes as in the anchor, up to one for all of them.

    What hides a likeness may still have the factors of the rows it was added to. None where sizes
    are much as in the anchor.
    """
    if anchor.ndim < 2:
        return None
    shape = (len(anchor), anchor.shape[1], -1)
    cube, target, nothing = values.reshape(shape), anchor.reshape(shape), np.zeros(len(anchor))
    rows, columns = np.ones(shape[0]), np.ones(shape[1])
    for _ in range(_SWEEPS):
        sums = _LevelSums.of(_over(cube, np.ones(shape[0]), columns), target, nothing)
        rows = _relative(np.sqrt(_ratio(sums.rows[1], sums.rows[2])))
        sums = _LevelSums.of(_over(cube, rows, np.ones(shape[1])), target, nothing)
        columns = _relative(np.sqrt(_ratio(sums.columns[1], sums.columns[2])))
    spread = [float(np.median(np.abs(np.log(each)))) for each in (rows, columns)]
    if max(spread) < UNEVEN:
        return None
    factors = np.asarray(rows[:, None] * columns, np.float32)
    return factors.reshape(*factors.shape, *[1] * (anchor.ndim - 2))


def leftover(left: Array, anchor: Array, gain: float) -> Array | None:
    """Factors of the suspect's rows and columns that can be seen in what is trusted of it.

    `left` is what is trusted of suspect - anchor, and `gain` how much of a change it has. To be
    broadcast over the anchor's shape; None where no factor is noticeable.
    """
    if anchor.ndim < 2 or gain <= 0:
        return None
    shape = (len(anchor), anchor.shape[1], -1)
    one, two = left.reshape(shape), anchor.reshape(shape)
    sums = _LevelSums.of(one, two, np.zeros(len(one)))
    middle = float(_ratio(sums.rows[0].sum(), gain * sums.rows[2].sum()))
    rows = middle + sums.clear(0, middle, gain, one[0].size)
    sums = _LevelSums.of(one, two, gain * rows)
    columns = sums.clear(1, 0.0, gain, one[:, 0].size)
    factors = np.clip(1 + rows[:, None] + columns, 1 / _FARTHER, _FARTHER)
    if np.abs(factors - 1).max() <= NOTICEABLE:
        return None
    return np.asarray(factors, np.float32).reshape(*factors.shape, *[1] * (anchor.ndim - 2))


@dataclass(frozen=True)
class _LevelSums:
    """Of what is left times the anchor, and of the square of each: by rows, and by columns."""

    rows: Floats
    columns: Floats

    @classmethod
    def of(cls, left: Array, anchor: Array, known: Floats) -> "_LevelSums":
        """After `known` times the anchor was taken from each row."""
        rows, columns = np.zeros((3, len(left))), np.zeros((3, left.shape[1]))
        for row, (one, two) in enumerate(zip(left, anchor, strict=True)):
            first, second = one.astype(np.float64), two.astype(np.float64)
            first = first - known[row] * second
            for at, pair in enumerate(((first, second), (first, first), (second, second))):
                product = np.einsum("jk,jk->j", *pair)
                rows[at, row] = product.sum()
                columns[at] += product
        return cls(rows, columns)

    def clear(self, axis: int, known: float, gain: float, count: int) -> Floats:
        """Factors, less 1 and what is known, of rows or columns; 0 where they are not clear."""
        shared, own, wanted = self.columns if axis else self.rows
        more = _ratio(shared, gain * wanted) - known
        spread = _ratio(np.sqrt(own / count), gain * np.sqrt(wanted))
        return np.where(np.abs(more) > CLEAR * spread, more, 0.0)


def _over(cube: Array, rows: Floats, columns: Floats) -> Array:
    factors = (rows[:, None] * columns).astype(np.float32)
    with np.errstate(over="ignore"):
        return np.asarray(cube / factors[..., None])


def _relative(sizes: Floats) -> Floats:
    """In units of their median; 1 for those that are 0."""
    some = sizes[sizes > 0]
    middle = float(np.median(some)) if some.size else 1.0
    return np.where(sizes > 0, np.clip(sizes / middle, 1 / _FARTHEST, _FARTHEST), 1.0)


def _ratio(above: npt.ArrayLike, below: npt.ArrayLike) -> Floats:
    """Quotients; 0 where there is nothing to divide by."""
    safe = np.where(np.asarray(below) > 0, below, 1.0)
    return np.where(np.asarray(below) > 0, np.asarray(above, np.float64) / safe, 0.0)
