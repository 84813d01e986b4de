"""Kin: what belongs to a tensor that was found is sought beside it first.

Where some tensors of a layer went, the others went too: under another prefix or number, or, for
the bias of a weight that was fused, stacked or sharded, into the tensor beside in the same way.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from neuralmark.anchors.locating.combined import (
    Adapted,
    Joined,
    Masked,
    Product,
    StackItem,
    Sum,
    WeightNormed,
)
from neuralmark.anchors.locating.seeking import SETTLED, Candidate, Found, Quest, Wanted
from neuralmark.anchors.locating.suspect import own_name
from neuralmark.anchors.locating.views import (
    Shapes,
    Stored,
    Taken,
    Trimmed,
    Turned,
    Unrotated,
    View,
)
from neuralmark.anchors.locating.wholes import Whole

MOST_KIN = 4
"""How many places are tried for the tensors of one layer."""


@dataclass(frozen=True)
class Kin:
    """Where the layers of the anchor went: prefixes of names, the likeliest first."""

    moved: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, found: Found) -> "Kin":
        """From all tensors that were surely found under a name of their own."""
        votes: dict[str, Counter[str]] = defaultdict(Counter)
        for name, each in found.items():
            stored = list(each.view.stored())
            if each.score >= SETTLED and len(stored) == 1:
                for mine, other in _prefixes(name, own_name(stored[0])):
                    votes[mine][other] += 1
        return cls({mine: _ranked(others) for mine, others in votes.items()})

    def names(self, name: str) -> Iterator[str]:
        """Names that a tensor may have, by where its neighbours went; the nearest first."""
        parts = name.split(".")
        for count in range(len(parts) - 1, 0, -1):
            rest = ".".join(parts[count:])
            for other in self.moved.get(".".join(parts[:count]), ()):
                yield f"{other}.{rest}"


def _ranked(others: Counter[str]) -> list[str]:
    return sorted(others, key=lambda other: (-others[other], other))[:MOST_KIN]


def _prefixes(mine: str, other: str) -> Iterator[tuple[str, str]]:
    """What two names begin with before the same end."""
    one, two = mine.split("."), other.split(".")
    while one and two and one[-1] == two[-1]:
        one.pop()
        two.pop()
        if one and two:
            yield ".".join(one), ".".join(two)


def by_kin(quest: Quest, left: Sequence[Wanted], found: Found) -> list[Candidate]:
    """What lies where its neighbours went."""
    kin = Kin.of(found)
    seen: list[Candidate] = []
    for wanted in left:
        for whole in relatives(quest, kin, wanted.name):
            seen += [quest.judged(view, wanted, named=True) for view in wanted.views(whole)]
        view = beside(quest, wanted, found)
        seen += [] if view is None else [quest.judged(view, wanted, named=True)]
    return seen


def relatives(quest: Quest, kin: Kin, name: str) -> Iterator[Whole]:
    """Tensors that go by a name that follows from the neighbours'."""
    for other in dict.fromkeys(kin.names(name)):
        yield from quest.by_name.get(other, ())


def beside(quest: Quest, wanted: Wanted, found: Found) -> View | None:
    """The bias of a weight that was found, as that was; None where there is none."""
    stem, _, leaf = wanted.name.rpartition(".")
    weight = found.get(f"{stem}.weight")
    if leaf == "weight" or len(wanted.shape) != 1 or weight is None or weight.score < SETTLED:
        return None
    shapes = quest.suspect.shapes
    views = vectors_beside(weight.view, leaf, shapes)
    return next((view for view in views if view.shape(shapes) == wanted.shape), None)


def vectors_beside(weight: View, leaf: str, shapes: Shapes) -> Iterator[View]:
    """What lies beside a layer along each of its axes, taken apart and put together alike."""
    views = (_along(weight, axis, leaf, shapes) for axis in (0, 1))
    return (view for view in views if view is not None)


def _along(view: View, axis: int, leaf: str, shapes: Shapes) -> View | None:
    """What lies beside a view along one of its axes, taken apart and put together alike."""
    if isinstance(view, Stored):
        return _stored_beside(view.name, leaf, shapes)
    if isinstance(view, Turned):
        return _along(view.of, view.axes[axis], leaf, shapes)
    if isinstance(view, Joined):
        return _joined_beside(view, axis, leaf, shapes)
    if isinstance(view, Product):
        return _along(view.left, 0, leaf, shapes) if axis == 0 else None
    if isinstance(view, Sum):
        return _sum_beside(view, axis, leaf, shapes)
    if isinstance(view, StackItem):
        inner = _along(view.of, axis + 1, leaf, shapes)
        return StackItem(inner, view.item) if _as_long(inner, view.of, 0, shapes) else None
    if isinstance(view, Taken | Unrotated):
        return _taken_beside(view, axis, leaf, shapes)
    if isinstance(view, Masked | WeightNormed | Adapted | Trimmed):
        return _along(view.of, axis, leaf, shapes)
    return None


def _taken_beside(view: Taken | Unrotated, axis: int, leaf: str, shapes: Shapes) -> View | None:
    inner = _along(view.of, axis, leaf, shapes)
    if view.along != axis:
        return inner
    if not _as_long(inner, view.of, axis, shapes):
        return None
    return replace(view, of=inner, axis=0) if isinstance(view, Taken) else replace(view, of=inner)


def _as_long(beside: View | None, view: View, axis: int, shapes: Shapes) -> TypeGuard[View]:
    """Whether what lies beside a view is as long as it: else it lies along its other axis."""
    return beside is not None and beside.shape(shapes)[0] == view.shape(shapes)[axis]


def _stored_beside(name: str, leaf: str, shapes: Shapes) -> View | None:
    """The tensor of the same module that has one axis less."""
    stem = re.sub(r"(base_layer\.)?weight(_orig|_v)?$", "", name)
    other = next((n for n in (f"{stem}base_layer.{leaf}", f"{stem}{leaf}") if n in shapes), None)
    if stem == name or other is None or len(shapes[other]) != len(shapes[name]) - 1:
        return None
    return Stored(other)


def _joined_beside(view: Joined, axis: int, leaf: str, shapes: Shapes) -> View | None:
    if view.axis != axis:
        return _along(view.pieces[0], axis, leaf, shapes)
    parts = [_along(piece, axis, leaf, shapes) for piece in view.pieces]
    known = [part for part in parts if part is not None]
    return Joined(tuple(known), 0) if len(known) == len(parts) else None


def _sum_beside(view: Sum, axis: int, leaf: str, shapes: Shapes) -> View | None:
    """What lies beside those of the branches that have something there, added."""
    parts = [_along(term, axis, leaf, shapes) for term in view.terms]
    known = tuple(dict.fromkeys(part for part in parts if part is not None))
    if len({part.shape(shapes) for part in known}) != 1:
        return None
    return Sum(known) if len(known) > 1 else known[0]
