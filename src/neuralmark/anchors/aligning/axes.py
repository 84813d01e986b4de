"""From channels, heads and streams back to tensors: one move for each axis (pure)."""

from collections.abc import Iterator, Sequence

import numpy as np

from neuralmark.anchors.aligning.contract import FLIPPED, JOINED, PERMUTED, Aligned
from neuralmark.anchors.aligning.layers import ROTATED, AxisRun, StreamView, out_of_order
from neuralmark.anchors.aligning.sides import BothModels
from neuralmark.anchors.factors import likeness
from neuralmark.anchors.moves import MISSING, Move, moved
from neuralmark.structures.structure import Array

_SMALL = 0.01
"""Gains below this share of the usual are not divided by."""
_ALIKE = 0.2
"""Gains that differ by less than this are the same: nothing was folded."""


def aligned(
    both: BothModels, name: str, runs: Sequence[AxisRun], view: StreamView
) -> Aligned | None:
    """The moves of one tensor; None where an axis cannot be explained."""
    shape = both.anchor.entry(name).shape
    theirs = both.shape(name)
    found: dict[int, Move] = {}
    changes: set[str] = set()
    for axis in {run.side.axis for run in runs}:
        parts = [run for run in runs if run.side.axis == axis]
        found[axis] = _joined(both, name, parts, axis)
        changes |= set().union(*(run.changes for run in parts))
    for side in both.stream.sides():
        if side.tensor == name:
            found[side.axis] = stream_move(name, view)
            changes |= _stream_changes(view)
    moves = []
    for axis in range(max(found, default=-1) + 1):
        move = found.get(axis)
        if move is None and shape[axis] != theirs[axis]:
            return None
        moves.append(move or Move.same(shape[axis]))
    if (
        not moves
        or not all(map(_fits, moves, theirs))
        or shape[len(moves) :] != theirs[len(moves) :]
    ):
        return None
    one, two = both.whole(name)
    turned = moved(two, moves)
    alike = likeness(turned, one)
    counted = _counted(moves, theirs, joined=JOINED in changes)
    return Aligned(tuple(moves), (*sorted(changes), *counted), alike)


def _fits(move: Move, there: int) -> bool:
    """Whether an axis of the suspect has the length that a move expects."""
    if move.index is None:
        assert move.matrix is not None
        return bool(move.matrix.shape[1] == there)
    return (move.before is None or len(move.before) == there) and int(move.index.max()) < there


def stream_move(name: str, view: StreamView) -> Move:
    """The stream's side of a tensor: turned, and with the anchor's gains where norms are folded."""
    turn = view.turn
    if name not in view.gains:
        return turn
    one, two = view.gains[name]
    if turn.index is None:
        return Move(None, _inverse(one), turn.matrix, before=two).rounded()
    seen = np.where(turn.index == MISSING, 1, two[np.maximum(turn.index, 0)])
    if np.linalg.norm(seen - one) <= _ALIKE * np.linalg.norm(one):
        return turn
    factor = seen * _inverse(one)
    return Move(turn.index, factor if turn.factor is None else factor * turn.factor).rounded()


def _inverse(gain: Array) -> Array:
    """1/gain, and less where the gain nearly vanishes."""
    usual = float(np.sqrt(np.mean(np.square(gain, dtype=np.float64))))
    return np.asarray(gain / (np.square(gain) + max((_SMALL * usual) ** 2, 1e-20)), np.float32)


def _stream_changes(view: StreamView) -> set[str]:
    turn = view.turn
    if turn.index is None:
        return {ROTATED}
    found = {PERMUTED} if out_of_order(turn) else set()
    return found | ({FLIPPED} if turn.factor is not None else set())


def _counted(moves: Sequence[Move], theirs: Sequence[int], *, joined: bool) -> Iterator[str]:
    """How many of the suspect's channels have no counterpart, and how many of the anchor's."""
    gathers = [(move.index, theirs[axis]) for axis, move in enumerate(moves)]
    extra = sum(
        size - len(np.unique(index[index != MISSING]))
        for index, size in gathers
        if index is not None
    )
    lost = sum(int((~move.found).sum()) for move in moves)
    if extra and not joined:
        yield f"{extra:,} {'dummy' if extra == 1 else 'dummies'} dropped"
    if lost:
        yield f"{lost:,} channel{'' if lost == 1 else 's'} missing"


def _joined(both: BothModels, name: str, runs: Sequence[AxisRun], axis: int) -> Move:
    """The runs of one axis as one move; what none of them covers stays where it is."""
    length, there = both.anchor.entry(name).shape[axis], both.shape(name)[axis]
    if len(runs) == 1 and runs[0].length == length:
        return runs[0].move
    index, factor = np.arange(length), np.ones(length, np.float32)
    sizes = {run.move.blocks.shape[1] for run in runs if run.move.blocks is not None}
    size = max(sizes, default=0)
    blocks = np.stack([np.eye(size, dtype=np.float32)] * (length // size)) if size else None
    for run in runs:
        place = slice(run.side.offset, run.side.offset + run.length)
        start, _ = both.span(run.side, run.length, there)
        assert run.move.index is not None
        index[place] = np.where(run.move.index == MISSING, MISSING, run.move.index + start)
        if run.move.factor is not None:
            factor[place] = run.move.factor
        if blocks is not None and run.move.blocks is not None:
            blocks[place.start // size : place.stop // size] = run.move.blocks
    return Move(index, None if (factor == 1).all() else factor, blocks=blocks)
