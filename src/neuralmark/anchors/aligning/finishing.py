"""From an order of channels to moves, with what was done to each tensor in words (pure)."""

from collections.abc import Mapping, Sequence

import numpy as np

from neuralmark.anchors.aligning.contract import FLIPPED, PERMUTED, Aligned
from neuralmark.anchors.aligning.fitting import Fit, Floats, Order, Puzzle
from neuralmark.anchors.factors import LEAST_LIKENESS, rescaled
from neuralmark.anchors.moves import MISSING, Move, moved
from neuralmark.structures.structure import Array, Indices

Sizes = Mapping[str, Array]

_CHANCE = 3.0
"""Likeness that a match must have, in deviations of the cosine of two random channels."""
_ENOUGH = 0.5
"""Likeness that is always enough."""


def finished(puzzle: Puzzle, fit: Fit, suspects: Sizes, anchor: Sizes) -> dict[str, Aligned]:
    """The moves of every piece."""
    kept = {number: _kept(puzzle, number, order) for number, order in fit.orders.items()}
    found = {}
    for piece, signs in zip(puzzle.pieces, fit.signs, strict=True):
        found[piece.name] = _aligned(
            [(kept[n], s) for n, s in zip(piece.bundles, signs, strict=True)],
            suspects[piece.name],
            anchor[piece.name],
        )
    return found


def _kept(puzzle: Puzzle, number: int, order: Order) -> Indices:
    """Places of the channels that are more alike than chance makes them."""
    bundle = puzzle.bundles[number]
    numbers = sum(
        puzzle.pieces[at].anchor.size / max(puzzle.pieces[at].anchor.shape[axis], 1)
        for at, axis in bundle.sides
    )
    least = min(max(LEAST_LIKENESS, _CHANCE / np.sqrt(max(numbers, 1))), _ENOUGH)
    return np.where(order.alike >= least, order.index, MISSING)


def _aligned(axes: list[tuple[Indices, Floats]], values: Array, anchor: Array) -> Aligned:
    moves = []
    for axis, (index, signs) in enumerate(axes):
        block = anchor.shape[axis] // max(len(index), 1)
        moves.append(gather(index, signs, block))
    back, more = rescaled(moved(values, moves), anchor)
    changes = (*described(moves, values.shape), *more)
    return Aligned(tuple(moves), changes, cosine(back, anchor))


def gather(index: Indices, signs: Floats, block: int = 1) -> Move:
    """Each channel from its place, with its sign; channels of several entries keep their order."""
    if block > 1:
        runs = index[:, None] * block + np.arange(block)
        index = np.where(index[:, None] == MISSING, MISSING, runs).reshape(-1)
        signs = np.repeat(signs, block)
    turned = np.where(index == MISSING, 1.0, signs)
    return Move(index, turned.astype(np.float32) if (turned < 0).any() else None)


def described(moves: Sequence[Move], shape: Sequence[int]) -> tuple[str, ...]:
    """What the moves undo."""
    words = []
    if any(_out_of_order(move) for move in moves):
        words.append(PERMUTED)
    if any(move.factor is not None and (move.factor < 0).any() for move in moves):
        words.append(FLIPPED)
    extra = sum(size - _used(move) for move, size in zip(moves, shape, strict=False))
    if extra:
        words.append(f"{extra:,} {'dummy' if extra == 1 else 'dummies'} dropped")
    lost = sum(int((~move.found).sum()) for move in moves)
    if lost:
        words.append(f"{lost:,} channel{'' if lost == 1 else 's'} missing")
    return tuple(words)


def cosine(values: Array, anchor: Array) -> float:
    """Likeness of two tensors; 0 where one is nothing."""
    one, two = values.reshape(-1), anchor.reshape(-1)

    def product(a: Array, b: Array) -> float:
        return float(np.einsum("i,i->", a, b, dtype=np.float64))

    whole = np.sqrt(product(one, one) * product(two, two))
    return product(one, two) / float(whole) if whole > 0 else 0.0


def _out_of_order(move: Move) -> bool:
    assert move.index is not None
    return bool((np.diff(move.index[move.found]) < 0).any())


def _used(move: Move) -> int:
    assert move.index is not None
    return len(np.unique(move.index[move.found]))
