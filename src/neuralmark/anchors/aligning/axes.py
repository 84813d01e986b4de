"""From channels, heads and streams back to tensors: one move for each axis (pure)."""

from collections.abc import Sequence

import numpy as np

from neuralmark.anchors.aligning.contract import Aligned
from neuralmark.anchors.aligning.layers import Run, View
from neuralmark.anchors.aligning.sides import Both, cosine
from neuralmark.anchors.moves import MISSING, Move, moved
from neuralmark.structures.structure import Array

_SMALL = 0.01
"""Gains below this share of the usual are not divided by."""
_ALIKE = 0.2
"""Gains that differ by less than this are the same: nothing was folded."""


def aligned(both: Both, name: str, runs: Sequence[Run], view: View) -> Aligned | None:
    """The moves of one tensor; None where an axis cannot be explained."""
    shape = both.anchor.entry(name).shape
    theirs = both.suspects[name].shape
    if len(shape) != len(theirs):
        return None
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
    one, two = both.whole(name)
    turned = moved(two, moves)
    if not moves or turned.shape != one.shape:
        return None
    dropped = _dropped(moves, theirs)
    return Aligned(tuple(moves), (*sorted(changes), *dropped), cosine(one, turned))


def stream_move(name: str, view: View) -> Move:
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


def _stream_changes(view: View) -> set[str]:
    turn = view.turn
    if turn.index is None:
        return {"rotated"}
    there = turn.index != MISSING
    found = {"permuted"} if (turn.index != np.arange(len(there)))[there].any() else set()
    return found | ({"flipped"} if turn.factor is not None else set())


def _dropped(moves: Sequence[Move], theirs: tuple[int, ...]) -> list[str]:
    """How many of the suspect's channels have no counterpart."""
    counts = [
        theirs[axis] - int((move.index != MISSING).sum())
        for axis, move in enumerate(moves)
        if move.index is not None
    ]
    return [f"{count} dummies dropped" for count in counts if count > 0]


def _joined(both: Both, name: str, runs: Sequence[Run], axis: int) -> Move:
    """The runs of one axis as one move; what none of them covers stays where it is."""
    length, there = both.anchor.entry(name).shape[axis], both.suspects[name].shape[axis]
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
