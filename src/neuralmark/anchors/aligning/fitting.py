"""Tensors put in order together: channels that several of them share get one order (pure).

One bundle is put in order at a time, by all of its pieces, as the channels on their other axes lie
at present; first without signs, then with signs, which every piece has for itself (batch norms undo
them, and positive factors are balanced away).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.aligning import contents
from neuralmark.anchors.aligning.assigning import Blocks, matched
from neuralmark.anchors.aligning.puzzle import (
    GUESS,
    Bundle,
    Fit,
    Floats,
    Order,
    Orders,
    Puzzle,
    PuzzlePiece,
    Signs,
)
from neuralmark.anchors.moves import MISSING
from neuralmark.structures.structure import Indices

_SWEEPS = 16
_WORK = 1 << 33
"""Multiplications spent on comparing the channels of one bundle by one piece, about."""
_FEWEST = 1024
"""Numbers by which two channels are compared at least, where there are so many."""
_BLOCK = 1 << 21
_POWERS = 20
_DOUBT = 0.25
"""Weight of a channel whose place is not the best for both sides."""
_BEYOND_LUCK = 1.5
_MANY = 1 << 19
_STEP, _PATIENCE = 1.005, 3
"""Sweeps that make nothing likelier by so much are the last, after so many."""


@dataclass(frozen=True, eq=False)
class _Term:
    """How one piece sees the channels of a bundle: unit rows of both models, and their weight."""

    anchor: Floats
    suspect: Floats
    weight: float
    numbers: int
    """By how many independent numbers channels are compared, about."""


def fits(puzzle: Puzzle, start: Orders) -> bool:
    """Whether the other channels find places from this start that are better than luck."""
    orders = _completed(puzzle, dict(start))
    others = [order for number, order in orders.items() if number not in start]
    return not others or any(order.trust > _BEYOND_LUCK * order.luck for order in others)


def fit(puzzle: Puzzle, start: Orders, fixed: Orders | None = None) -> Fit:
    """From a start, in turn until nothing moves any more."""
    held = fixed or {}
    orders = _completed(puzzle, {**start, **held})
    orders = _settled(puzzle, orders, held, signed=False)
    if not _hopeless(puzzle, orders):
        orders = _settled(puzzle, orders, held, signed=True)
    products = [_products(piece, orders) for piece in puzzle.pieces]
    found = tuple(rank_one_signs(product) for product in products)
    return Fit(orders, found, _score(puzzle, orders, products, found))


def _hopeless(puzzle: Puzzle, orders: Orders) -> bool:
    """Whether many channels found no places better than luck: not worth the time."""
    large = any(bundle.anchor * bundle.suspect > _MANY for bundle in puzzle.bundles)
    return large and all(order.trust < _BEYOND_LUCK * order.luck for order in orders.values())


def guessed(puzzle: Puzzle, number: int) -> Order:
    """The order of a bundle by profiles alone, which see nothing of the other axes."""
    bundle = puzzle.bundles[number]
    terms = []
    for at, axis in bundle.sides:
        piece = puzzle.pieces[at]
        one, two = contents.profiles(piece.anchor, piece.suspect, axis)
        weight = float(piece.anchor.size / piece.anchor.shape[axis])
        units = contents.unit_rows(one), contents.unit_rows(two)
        terms.append(_Term(*units, weight, one.shape[1]))
    found = _placed(bundle, terms, signed=False)
    return Order(found.index, found.alike, found.sure, GUESS)


def rank_one_signs(products: Floats) -> Signs:
    """Signs of rows and columns for which most of the products become positive.

    The products are of rank one in them: power iteration from the largest row.
    """
    if not products.any():
        return np.ones(len(products)), np.ones(products.shape[1])
    columns: Floats = products[np.einsum("ij,ij->i", products, products).argmax()]
    rows: Floats = products[:, 0]
    for _ in range(_POWERS):
        rows = _clipped(products @ columns)
        columns = _clipped(rows @ products)
    one, two = (np.where(v < 0, -1.0, 1.0) for v in (rows, columns))
    turn = -1.0 if two.sum() < 0 else 1.0
    return one * turn, two * turn


def _clipped(values: Floats) -> Floats:
    """At most 1, so that few large channels do not decide for all."""
    top = np.abs(values).mean()
    return np.asarray(np.clip(values / top, -1, 1)) if top > 0 else values


def _completed(puzzle: Puzzle, orders: dict[int, Order]) -> dict[int, Order]:
    """Bundles without an order, the best known first; those of a puzzle hang together."""
    while left := [n for n in range(len(puzzle.bundles)) if n not in orders]:
        number = max(left, key=lambda n: (_known(puzzle, n, orders), -n))
        orders[number] = _update(puzzle, number, orders, None)
    return orders


def _known(puzzle: Puzzle, number: int, orders: Orders) -> float:
    """By how many numbers a bundle can be put in order, as far as others are trusted."""
    return float(
        sum(
            puzzle.pieces[at].anchor.size
            / puzzle.pieces[at].anchor.shape[axis]
            * orders[puzzle.pieces[at].bundles[1 - axis]].trust
            for at, axis in puzzle.bundles[number].sides
            if puzzle.pieces[at].bundles[1 - axis] in orders
        )
    )


def _settled(
    puzzle: Puzzle, orders: dict[int, Order], held: Orders, *, signed: bool
) -> dict[int, Order]:
    """Each bundle in turn, until none changes or nothing gets better."""
    stale = {n for n in range(len(puzzle.bundles)) if n not in held}
    best, patience = 0.0, _PATIENCE
    for _ in range(_SWEEPS):
        reached = sum(order.trust for order in orders.values())
        patience = _PATIENCE if reached > best * _STEP else patience - 1
        best = max(best, reached)
        if not stale or not patience:
            break
        for number in sorted(stale):
            signs = _signs_around(puzzle, number, orders) if signed else None
            fresh = _update(puzzle, number, orders, signs)
            stale.discard(number)
            if not np.array_equal(fresh.index, orders[number].index):
                stale |= _beside(puzzle, number) - set(held)
            orders[number] = fresh
    return orders


def _beside(puzzle: Puzzle, number: int) -> set[int]:
    """Bundles that share a piece with this one."""
    return {puzzle.pieces[at].bundles[1 - axis] for at, axis in puzzle.bundles[number].sides}


def _signs_around(puzzle: Puzzle, number: int, orders: Orders) -> dict[int, Signs]:
    touched = {at for at, _ in puzzle.bundles[number].sides}
    return {at: rank_one_signs(_products(puzzle.pieces[at], orders)) for at in sorted(touched)}


def _update(
    puzzle: Puzzle, number: int, orders: Orders, signs: Mapping[int, Signs] | None
) -> Order:
    """The order of one bundle, by all its pieces."""
    bundle = puzzle.bundles[number]
    terms = []
    for at, axis in bundle.sides:
        other = orders.get(puzzle.pieces[at].bundles[1 - axis])
        if other is None:
            continue
        turned = None if signs is None else signs[at][1 - axis]
        term = _seen(puzzle.pieces[at], axis, other, turned)
        if term is not None:
            terms.append(term)
    return _placed(bundle, terms, signed=signs is not None)


def _seen(piece: PuzzlePiece, axis: int, other: Order, signs: Floats | None) -> _Term | None:
    """The channels of an axis, by those of the other axis that have a place."""
    one, two = np.moveaxis(piece.anchor, axis, 0), np.moveaxis(piece.suspect, axis, 0)
    basis = piece.basis if signs is None else None
    depth = one.shape[2] if basis is None else _outline_size(basis.shape[1])
    places = _sample(np.flatnonzero(other.index != MISSING), len(one) * len(two), depth)
    if not len(places):
        return None
    weight = np.sqrt(np.where(other.sure[places], 1.0, _DOUBT)).astype(one.dtype)
    one, two = one[:, places], two[:, other.index[places]]
    if basis is None:
        assert signs is not None
        two = two * signs[places, None].astype(two.dtype)
    else:
        one, two = (contents.outlines(contents.seen_in(cube, basis)) for cube in (one, two))
        one, two = one - one.mean(axis=0), two - two.mean(axis=0)
    flat = [contents.unit_rows((c * weight[:, None]).reshape(len(c), -1)) for c in (one, two)]
    numbers = len(places) * piece.anchor.shape[2]
    return _Term(flat[0], flat[1], numbers * other.trust, numbers)


def _outline_size(positions: int) -> int:
    return 1 if positions == 1 else positions * (positions + 1) // 2


def _sample(places: Indices, pairs: int, depth: int) -> Indices:
    """Evenly spaced, as many as there is time for."""
    count = max(_FEWEST, _WORK // max(pairs, 1)) // depth
    if len(places) <= max(count, 1):
        return places
    return places[np.linspace(0, len(places) - 1, max(count, 1)).astype(np.intp)]


def _placed(bundle: Bundle, terms: list[_Term], *, signed: bool) -> Order:
    """The best order by the weighted mean of what the pieces see."""
    found = matched(_blocks(bundle, terms, signed=signed), bundle.anchor, bundle.suspect)
    trust = float(np.clip(found.alike, 0, 1).mean()) if bundle.anchor else 0.0
    numbers = sum(term.numbers for term in terms)
    luck = np.sqrt(2 * np.log(max(bundle.suspect, 2)) / max(numbers, 1))
    return Order(found.index, found.alike, found.sure, max(trust, 1e-3), float(luck))


def _blocks(bundle: Bundle, terms: list[_Term], *, signed: bool) -> Blocks:
    whole = sum(term.weight for term in terms) or 1.0

    def blocks(rows: Indices) -> Floats:
        total = np.zeros((len(rows), bundle.suspect))
        for term in terms:
            part = term.anchor[rows] @ term.suspect.T
            total += (term.weight / whole) * (np.abs(part) if signed else part)
        return total

    return blocks


def _products(piece: PuzzlePiece, orders: Orders) -> Floats:
    """Inner products of the kernels of both models, as the orders lie."""
    rows, columns = (orders[number].index for number in piece.bundles)
    products = np.zeros(piece.anchor.shape[:2], piece.anchor.dtype)
    places = np.maximum(columns, 0)
    step = max(1, _BLOCK // max(piece.anchor[0].size, 1))
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        taken = piece.suspect[np.maximum(rows[some], 0)[:, None], places]
        products[some] = np.einsum("ijk,ijk->ij", piece.anchor[some], taken)
    products[rows == MISSING] = 0
    products[:, columns == MISSING] = 0
    return products


def _score(
    puzzle: Puzzle, orders: Orders, products: list[Floats], signs: tuple[Signs, ...]
) -> float:
    total = whole = 0.0
    for piece, product, (rows, columns) in zip(puzzle.pieces, products, signs, strict=True):
        total += float(rows @ product @ columns)
        whole += float(np.square(piece.anchor, dtype=np.float64).sum())
    return total / whole if whole else 0.0
