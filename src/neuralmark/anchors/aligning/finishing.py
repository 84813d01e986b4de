"""From an order of channels to moves, with what was done to each tensor in words (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuralmark.anchors.aligning.contract import FLIPPED, JOINED, PERMUTED, Aligned
from neuralmark.anchors.aligning.joining import Joints
from neuralmark.anchors.aligning.puzzle import Fit, Floats, Order, Puzzle
from neuralmark.anchors.factors import LEAST_LIKENESS, likeness
from neuralmark.anchors.moves import MISSING, Mask, Move, moved
from neuralmark.structures.structure import Array, Indices

_CHANCE = 3.0
"""Likeness that a match must have, in deviations of the cosine of two random channels."""
_SILENT = 1e-6
"""Share of the mean energy of channels below which one counts as nothing."""
_ENOUGH = 0.5
"""Likeness that is always enough."""


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of a tensor: places and signs of its channels, and how these were joined before."""

    index: Indices
    signs: Floats
    block: int = 1
    joints: Joints | None = None
    reads: bool = False
    """Whether the tensor reads the channels: then all parts of a split one are summed."""

    def move(self) -> Move:
        """From the suspect's own channels."""
        if self.joints is None:
            return _gather(self.index, self.signs, self.block)
        first = _gather(self.joints.places(self.index), self.signs, self.block)
        others = self.joints.others(self.index) if self.reads else []
        also = [_gather(places, self.signs * shares, self.block) for places, shares in others]
        return replace(first, also=tuple(also))


def kept_orders(puzzle: Puzzle, fit: Fit) -> dict[int, Indices]:
    """Of every bundle, places of the channels that are more alike than chance makes them."""
    return {number: _kept(puzzle, number, order) for number, order in fit.orders.items()}


def aligned(axes: Sequence[Axis], values: Array, anchor: Array) -> Aligned:
    """The moves of a tensor, what they undo, and how alike it is then."""
    moves = tuple(axis.move() for axis in axes)
    words = described(axes, values.shape, [_silent(anchor, n, a.block) for n, a in enumerate(axes)])
    if any(axis.joints is not None and axis.joints.parts for axis in axes):
        words += (JOINED,)
    return Aligned(moves, words, likeness(moved(values, moves), anchor))


def _kept(puzzle: Puzzle, number: int, order: Order) -> Indices:
    bundle = puzzle.bundles[number]
    numbers = sum(
        puzzle.pieces[at].anchor.size / max(puzzle.pieces[at].anchor.shape[axis], 1)
        for at, axis in bundle.sides
    )
    least = min(max(LEAST_LIKENESS, _CHANCE / np.sqrt(max(numbers, 1))), _ENOUGH)
    return np.where(order.alike >= least, order.index, MISSING)


def _gather(index: Indices, factor: Floats, block: int) -> Move:
    """Each channel from its place, times its factor; channels of several entries stay in runs."""
    if block > 1:
        runs = index[:, None] * block + np.arange(block)
        index = np.where(index[:, None] == MISSING, MISSING, runs).reshape(-1)
        factor = np.repeat(factor, block)
    along = np.where(index == MISSING, 1.0, factor)
    return Move(index, None if (along == 1).all() else along.astype(np.float32))


def described(
    axes: Sequence[Axis], shape: Sequence[int], silent: Sequence[Mask]
) -> tuple[str, ...]:
    """What the moves undo; channels that are silent in the anchor are not missed.

    Where as many channels are left over along an axis as are missing, none need have been added or
    removed: they could not be told apart, as nearly dead ones cannot.
    """
    words = []
    found = [axis.index[axis.index != MISSING] for axis in axes]
    if any((np.diff(index) < 0).any() for index in found):
        words.append(PERMUTED)
    if any((axis.signs[axis.index != MISSING] < 0).any() for axis in axes):
        words.append(FLIPPED)
    extra = lost = unmatched = 0
    for axis, size, quiet in zip(axes, shape, silent, strict=False):
        there = size // axis.block if axis.joints is None else len(axis.joints.chief)
        absent = axis.index == MISSING
        over, short = max(0, there - int((~absent | quiet).sum())), int((absent & ~quiet).sum())
        if over == short:
            unmatched += over
        else:
            extra, lost = extra + over, lost + short
    if unmatched:
        words.append(f"{unmatched:,} channel{'' if unmatched == 1 else 's'} not matched")
    if extra:
        words.append(f"{extra:,} {'dummy' if extra == 1 else 'dummies'} dropped")
    if lost:
        words.append(f"{lost:,} channel{'' if lost == 1 else 's'} missing")
    return tuple(words)


def _silent(anchor: Array, axis: int, block: int) -> Mask:
    """Channels that are as good as nothing."""
    turned = np.moveaxis(anchor, axis, 0)
    sizes = np.square(turned, dtype=np.float64).sum(axis=tuple(range(1, turned.ndim)))
    sizes = sizes.reshape(-1, block).sum(axis=1)
    return np.asarray(sizes <= _SILENT * sizes.mean())
