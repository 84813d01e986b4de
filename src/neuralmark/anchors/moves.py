"""How one axis of a suspect's tensor becomes the same axis of the anchor's.

A move is a gather (each channel of the anchor is a channel of the suspect, times a factor), with
mixtures inside runs of it (rotated heads), or a matrix (each channel of the anchor is a mixture of
the suspect's: a rotated stream, channels that were split). Channels of the anchor that the suspect
does not have are all zeros, and `found` says which are there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuralmark.structures.structure import Array, Indices

Mask = npt.NDArray[np.bool_]

MISSING = -1
"""Stands in a gather for a channel that the suspect does not have."""

GRID = 2.0**-20
"""What an aligner decides is rounded to this, so that another BLAS decides the same."""
_PART = 1 << 20


@dataclass(frozen=True, eq=False)
class Move:
    """One axis: where each channel of the anchor comes from.

    Done in this order: the suspect's channels are multiplied, gathered, mixed, multiplied.
    """

    index: Indices | None = None
    """For each channel of the anchor its place in the suspect, or MISSING."""
    factor: Array | None = None
    """What each channel of the anchor is multiplied by at last; None: by 1."""
    matrix: Array | None = None
    """Instead of a gather: anchor's channels x suspect's channels."""
    also: tuple["Move", ...] = ()
    """Further gathers that are added to it: the other parts of channels that were split."""
    blocks: Array | None = None
    """Mixtures within equal runs of the gathered channels: runs x size x size."""
    before: Array | None = None
    """What each channel of the suspect is multiplied by at first; None: by 1."""

    @classmethod
    def same(cls, size: int) -> "Move":
        """Everything stays where it is."""
        return cls(np.arange(size))

    @property
    def size(self) -> int:
        """How many channels the anchor has."""
        held = self.matrix if self.index is None else self.index
        assert held is not None
        return len(held)

    @property
    def found(self) -> Mask:
        """Which of the anchor's channels the suspect has."""
        if self.index is None:
            assert self.matrix is not None
            return np.asarray(self.matrix.any(axis=1))
        there = self.index != MISSING
        if self.blocks is not None:
            runs = there.reshape(len(self.blocks), 1, -1)
            there = ((self.blocks != 0) & runs).any(axis=2).reshape(-1)
        return np.asarray(there)

    @property
    def is_same(self) -> bool:
        """Whether it changes nothing."""
        return (
            self.index is not None
            and all(x is None for x in (self.factor, self.blocks, self.before))
            and not self.also
            and bool((self.index == np.arange(len(self.index))).all())
        )

    def rounded(self) -> "Move":
        """With factors and matrices on the grid."""
        return Move(
            self.index,
            _on_grid(self.factor),
            _on_grid(self.matrix),
            tuple(each.rounded() for each in self.also),
            _on_grid(self.blocks),
            _on_grid(self.before),
        )

    def of(self, values: Array, axis: int) -> Array:
        """The suspect's values with this axis as the anchor has it."""
        if self.is_same and values.shape[axis] == self.size:
            return values
        values = np.asarray(values, np.float32)
        if self.before is not None:
            values = values * _along(self.before, axis, values.ndim)
        made = self._mixed(values, axis) if self.index is None else self._gathered(values, axis)
        if self.factor is not None:
            with np.errstate(invalid="ignore"):  # infinity in a channel that is left out
                made = made * _along(self.factor, axis, values.ndim)
        for each in self.also:
            each._add_to(made, values, axis)
        return made

    def _mixed(self, values: Array, axis: int) -> Array:
        assert self.matrix is not None
        first = np.moveaxis(values, axis, 0)
        made = _product(self.matrix[None], first.reshape(1, len(first), -1))
        whole = made.reshape(len(self.matrix), *first.shape[1:])
        return np.ascontiguousarray(np.moveaxis(whole, 0, axis))

    def _gathered(self, values: Array, axis: int) -> Array:
        assert self.index is not None
        taken = np.take(values, np.maximum(self.index, 0), axis=axis)
        there = self.index != MISSING
        if not there.all():
            with np.errstate(invalid="ignore"):
                taken *= _along(there.astype(np.float32), axis, values.ndim)
        if self.blocks is None:
            return taken
        first = np.moveaxis(taken, axis, 0)
        runs = first.reshape(len(self.blocks), self.blocks.shape[2], -1)
        made = _product(self.blocks, runs).reshape(first.shape)
        return np.ascontiguousarray(np.moveaxis(made, 0, axis))

    def _add_to(self, taken: Array, values: Array, axis: int) -> None:
        """Add the channels that this gather finds."""
        assert self.index is not None
        onto, part = np.moveaxis(taken, axis, 0), np.moveaxis(values, axis, 0)
        found = np.flatnonzero(self.found)
        added = part[self.index[found]].astype(np.float32)
        if self.factor is not None:
            added *= self.factor[found].astype(np.float32).reshape(-1, *[1] * (values.ndim - 1))
        onto[found] += added


Moves = tuple[Move, ...]
"""One for each of the first two axes (one for a vector); kernel positions never move."""


def moved(values: Array, moves: Sequence[Move]) -> Array:
    """A suspect's tensor in the anchor's coordinates."""
    for axis, move in enumerate(moves):
        values = move.of(values, axis)
    return values


def _product(matrices: Array, values: Array) -> Array:
    """Products of stacked matrices in float64, a part at a time: the same with every BLAS."""
    sharp = matrices.astype(np.float64)
    made = np.empty((*matrices.shape[:2], values.shape[2]), np.float32)
    step = max(1, _PART // max(1, matrices.shape[0] * matrices.shape[2]))
    with np.errstate(over="ignore", invalid="ignore"):
        for at in range(0, values.shape[2], step):
            part = slice(at, at + step)
            made[..., part] = sharp @ values[..., part].astype(np.float64)
    return made


def _along(factors: Array, axis: int, ndim: int) -> Array:
    """Factors shaped to multiply along an axis."""
    shape = [1] * ndim
    shape[axis] = -1
    return factors.astype(np.float32).reshape(shape)


def _on_grid(values: Array | None) -> Array | None:
    if values is None:
        return None
    return (np.rint(np.asarray(values, np.float64) / GRID) * GRID).astype(np.float32)
