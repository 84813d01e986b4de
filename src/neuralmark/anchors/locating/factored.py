"""Layers that were taken apart into several of one module, by their names (pure).

Tensors that lie in the place of one of the anchor's, their names the same but for one part, or one
of them under the old name: their product, W = A·B or A·B·C, their sum, W = A + B, or one and the
product of two others, W = A + B·C, is offered under that name. It is not like the anchor where it
was moved as well, so that likeness (`products`) cannot tell.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations

from neuralmark.anchors.locating.combined import Product, Sum
from neuralmark.anchors.locating.layouts import layouts, size_of
from neuralmark.anchors.locating.suspect import Shape
from neuralmark.anchors.locating.wholes import Whole

MOST_BRANCHES = 8
"""Tensors that are added."""
_LONGEST = 16
"""Names of more parts are not looked at."""

Knows = Callable[[str], bool]


def factored(wholes: Iterable[Whole], knows: Knows) -> Iterator[Whole]:
    """All products of pairs that together go by a name that is known."""
    for name, found in _together(wholes, knows):
        if len(found) == 2:
            yield from _products(name, found)


def branched(wholes: Iterable[Whole], knows: Knows) -> Iterator[Whole]:
    """All sums, products of three, and sums with a product, that go by a name that is known."""
    for name, found in _together(wholes, knows):
        if 1 < len(found) <= MOST_BRANCHES and len({each.shape for each in found}) == 1:
            yield Whole(name, Sum(tuple(each.view for each in found)), found[0].shape)
        if len(found) == 3:
            yield from _products(name, found)
            yield from _adapted(name, found)


def _together(wholes: Iterable[Whole], knows: Knows) -> Iterator[tuple[str, list[Whole]]]:
    """Tensors whose names differ in one part, and the name of all; with what has it already too."""
    places: dict[tuple[str, str], dict[str, Whole]] = defaultdict(dict)
    own: dict[str, Whole] = {}
    for whole in wholes:
        parts = whole.name.split(".")
        if whole.adapter is None and len(whole.shape) > 1 and len(parts) <= _LONGEST:
            own.setdefault(whole.name, whole)
            for at in range(len(parts)):
                key = ".".join(parts[:at]), ".".join(parts[at + 1 :])
                places[key].setdefault(whole.name, whole)
    for (before, behind), table in places.items():
        names = (f"{before}.{behind}".strip("."), f"{before}.weight")
        some = before and len(table) <= MOST_BRANCHES
        name = next(filter(knows, names), None) if some else None
        if name is not None:
            found = list(table.values())
            yield name, found
            if name in own and name not in table:
                yield name, [own[name], *found]


def _products(name: str, factors: Sequence[Whole]) -> Iterator[Whole]:
    """In every order in which each reads what the next one makes: as they are numbered first.

    What is first in the file is what reads first, the last in the product; or the other way round.
    """
    usual = tuple(reversed(factors)), tuple(factors)
    for first, *others in dict.fromkeys((*usual, *permutations(factors))):
        made: Whole | None = first
        for each in others:
            made = _product(name, made, each) if made is not None and _fit(made, each) else None
        if made is not None:
            yield made


def _product(name: str, left: Whole, right: Whole) -> Whole:
    kernel = tuple(a * b for a, b in zip(left.shape[2:], right.shape[2:], strict=True))
    shape: Shape = (left.shape[0], right.shape[1], *kernel)
    return Whole(name, Product(left.view, right.view), shape)


def _fit(left: Whole, right: Whole) -> bool:
    """Whether one reads what the other makes, and one of them has no kernel."""
    if len(left.shape) != len(right.shape) or left.shape[1] != right.shape[0]:
        return False
    return 1 in (size_of(left.shape[2:]), size_of(right.shape[2:]))


def _adapted(name: str, found: Sequence[Whole]) -> Iterator[Whole]:
    """One of three, and the product of the others: at any scale where that is of low rank."""
    for base, left, right in permutations(found):
        made = _product(name, left, right) if _fit(left, right) else None
        view = next(layouts(made.view, made.shape, base.shape), None) if made else None
        if view is not None:
            yield Whole(name, Sum((base.view, view)), base.shape)
            if left.shape[1] < min(base.shape[:2]):
                yield replace(base, name=name, adapter=view)
