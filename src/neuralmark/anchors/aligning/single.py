"""One tensor put in order without any knowledge of the network (ANCHORS.md section 3; pure).

Enough for convolutions and for linear layers whose weights are not too Gaussian. Several starts:
from the rows or the columns by their profiles, or with one axis taken to be in place; the likest
end is kept.
"""

from neuralmark.anchors.aligning.assigning import require_within
from neuralmark.anchors.aligning.contents import balanced, laid
from neuralmark.anchors.aligning.contract import Aligned
from neuralmark.anchors.aligning.finishing import Axis, aligned, kept_orders
from neuralmark.anchors.aligning.fitting import fit, fits, guessed
from neuralmark.anchors.aligning.puzzle import Bundle, Fit, Order, Puzzle, PuzzlePiece
from neuralmark.anchors.moves import Move
from neuralmark.structures.structure import Array

_GOOD = 0.5
"""A start that ends so alike needs no other."""


def align_single(
    values: Array, anchor: Array, limit: int, known: tuple[Move | None, Move | None] = (None, None)
) -> Aligned:
    """Order and signs of rows and columns; axes whose move is known (a gather) keep it."""
    if not can_be(values.shape, anchor.shape):
        raise ValueError(f"a tensor of the shape {values.shape} cannot be one of {anchor.shape}")
    for axis in (0, 1):
        require_within(anchor.shape[axis], values.shape[axis], limit)
    fixed = {axis: _order(move) for axis, move in enumerate(known) if move is not None}
    return aligned(_axes(_puzzle(values, anchor), fixed), values, anchor)


def can_be(shape: tuple[int, ...], anchor: tuple[int, ...]) -> bool:
    """Whether a tensor may be another with channels moved, added or taken away."""
    fits = len(shape) == len(anchor) >= 2 and shape[2:] == anchor[2:]
    return fits and 0 not in (*shape, *anchor)


def _axes(puzzle: Puzzle, fixed: dict[int, Order]) -> list[Axis]:
    best = _best(puzzle, fixed)
    kept = kept_orders(puzzle, best)
    return [Axis(kept[axis], best.signs[0][axis]) for axis in (0, 1)]


def _puzzle(values: Array, anchor: Array) -> Puzzle:
    one, two = balanced(laid(anchor)), balanced(laid(values))
    piece = PuzzlePiece("", one, two, (0, 1))
    sizes = zip(one.shape[:2], two.shape[:2], strict=True)
    return Puzzle((piece,), tuple(Bundle(a, b, ((0, n),)) for n, (a, b) in enumerate(sizes)))


def _order(move: Move) -> Order:
    if move.index is None:
        raise ValueError("a known move must be a gather")
    return Order(move.index, move.found.astype(float), move.found, 1.0)


def _best(puzzle: Puzzle, fixed: dict[int, Order]) -> Fit:
    if fixed:
        return fit(puzzle, {}, fixed)
    best: Fit | None = None
    for number, bundle in enumerate(puzzle.bundles):
        start = {number: Order.same(bundle.anchor)}
        better = best is None or best.score < _GOOD
        if better and bundle.anchor == bundle.suspect and fits(puzzle, start):
            best = _likest(best, fit(puzzle, start))
    for number in (0, 1):
        if best is None or best.score < _GOOD:
            best = _likest(best, fit(puzzle, {number: guessed(puzzle, number)}))
    assert best is not None
    return best


def _likest(one: Fit | None, two: Fit) -> Fit:
    return two if one is None or two.score > one.score else one
