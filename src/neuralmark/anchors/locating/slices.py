"""Slices of fused tensors: queries, keys and values in one, gates and ups, in any usual order.

Rows of the anchor's tensor are looked for among those of every tensor that is longer along one
axis. So orders need not be listed: one after the other, head by head, in groups, row by row in
turn. Rows of rotary heads are also looked for in their other usual order, in tensors of the same
length too.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.locating.cuts import HEADS
from neuralmark.anchors.locating.layouts import oriented, size_of
from neuralmark.anchors.locating.likeness import CONVINCING, finite
from neuralmark.anchors.locating.rowsearch import (
    FIRST,
    Rhythm,
    columns_of,
    found_rows,
    needles_of,
    rhythms,
    threshold,
    unit_rows,
)
from neuralmark.anchors.locating.seeking import Candidate, Found, Quest, Wanted
from neuralmark.anchors.locating.suspect import Index, Shape, SuspectWeights
from neuralmark.anchors.locating.views import Taken, Unrotated, View
from neuralmark.anchors.locating.wholes import Whole, items_of
from neuralmark.structures.structure import Array, Indices

MOST_FUSED = 128
"""A tensor that is longer than so many times the one that is sought is not looked through."""
_BLOCK = 1 << 25
"""Values of a tensor that are read at once."""


@dataclass(frozen=True, eq=False)
class Needles:
    """Rows of a wanted tensor, seen along one of its axes."""

    wanted: Wanted
    axis: int
    rows: Indices
    values: Array
    """Unit rows, in the places where rows are compared."""

    @property
    def length(self) -> int:
        """How many rows the tensor has."""
        return self.wanted.shape[self.axis]

    def fits(self, whole: Whole, near: bool | None) -> bool:
        """Whether it is looked for in a tensor: of the same layer, of another, or (None) of any."""
        return near is None or same_layer(self.wanted, whole) == near


def by_slices(quest: Quest, left: Sequence[Wanted], found: Found) -> list[Candidate]:
    """What lies in a longer tensor; layers of the same number first."""
    sought = [each for each in left if len(each.shape) > 1 and each.entry.rows is None]
    kinds = _kinds(quest, sought)
    busy = quest.busy(found)
    seen: dict[str, Candidate] = {}
    for (axis, rest), members in kinds.items():
        least = min(each.length for each in members)
        for near in (None,) if _few(members) else (True, False):
            for whole, view in longer(quest, axis, rest, least):
                if quest.exhausted:
                    return list(seen.values())
                rivals = [m for m in members if m.wanted.name not in seen and m.fits(whole, near)]
                if rivals and busy.isdisjoint(view.stored()):
                    seen |= {each.name: each for each in _in_one(quest, view, rivals)}
    return list(seen.values())


def _few(members: Sequence[Needles]) -> bool:
    """Whether it costs less to look for all of them than to read tensors twice."""
    width = size_of(members[0].wanted.shape) // members[0].length
    looks = len(members) * FIRST * int(members[0].values.shape[1])
    return looks < 64 * width


def _kinds(quest: Quest, sought: Sequence[Wanted]) -> dict[tuple[int, Shape], list[Needles]]:
    """Needles by what rows they are of: the axis, and the lengths of all others."""
    kinds: dict[tuple[int, Shape], list[Needles]] = defaultdict(list)
    for wanted in sought:
        whole = quest.anchor[wanted.name]
        for axis in (0, 1):
            rest = (*wanted.shape[:axis], 0, *wanted.shape[axis + 1 :])
            rows = needles_of(wanted.shape[axis])
            values = unit_rows(finite(along(whole, axis, rows)))
            kinds[axis, rest].append(Needles(wanted, axis, rows, values))
    return kinds


def longer(quest: Quest, axis: int, rest: Shape, least: int) -> Iterator[tuple[Whole, View]]:
    """All that can be seen with these lengths but for one axis, which is as long or longer."""
    others = size_of(tuple(length for k, length in enumerate(rest) if k != axis))
    for whole in quest.wholes:
        if whole.adapter is not None or size_of(whole.shape) % others:
            continue
        for each in (whole, *_layers(whole, len(rest))):
            for view in oriented(each.view, each.shape, rest, axis):
                length = size_of(each.shape) // others
                if least <= length <= MOST_FUSED * least:
                    yield each, view


def _layers(whole: Whole, axes: int) -> Iterator[Whole]:
    """The tensors of a stack, if they have so many axes."""
    if len(whole.shape) == axes + 1:
        yield from items_of(whole, {size_of(whole.shape[1:])})


def _in_one(quest: Quest, view: View, rivals: Sequence[Needles]) -> Iterator[Candidate]:
    """Those of the rivals that lie in one tensor."""
    axis = rivals[0].axis
    length = view.shape(quest.suspect.shapes)[axis]
    width = rivals[0].values.shape[1]
    if not quest.spend(float(length) * width * FIRST * len(rivals)):
        return
    hay = hay_of(quest.suspect, view, axis, length)
    least = threshold(length, width)
    for each in rivals:
        if length >= each.length:
            candidate = _lies(quest, view, each, hay, least)
            if candidate is not None:
                yield candidate


def _lies(quest: Quest, view: View, needles: Needles, hay: Array, least: float) -> Candidate | None:
    _, alike = found_rows(needles.values[:FIRST], hay)
    if (alike >= least).sum() < min(3, len(alike)):
        return None
    places, alike = found_rows(needles.values, hay)
    good = alike >= least
    heads = list(_heads(quest, needles)) if needles.axis == 0 else []
    orders = [Unrotated(view, *head).places(needles.length) for head in heads]
    best: Candidate | None = None
    for rhythm, order in rhythms(
        needles.rows[good], places[good], needles.length, len(hay), orders
    ):
        made = _sliced(view, needles.axis, rhythm, len(hay))
        if order >= 0:
            made = Unrotated(made, *heads[order])
        seen = quest.judged(made, needles.wanted)
        if seen.score >= CONVINCING and (best is None or seen.score > best.score):
            best = seen
    return best


def _sliced(view: View, axis: int, rhythm: Rhythm, length: int) -> View:
    if rhythm.count == 1 and rhythm.run == length:
        return view
    return Taken(view, axis, rhythm.offset, rhythm.run, rhythm.step, rhythm.count)


def _heads(quest: Quest, needles: Needles) -> Iterator[tuple[int, bool]]:
    """Sizes of rotary heads, stored in pairs or in halves."""
    lengths = {each.shape[0] for each in quest.wanted if len(each.shape) == 2}
    told = {n // quest.heads for n in lengths if quest.heads and n % quest.heads == 0}
    for size in dict.fromkeys((*sorted(told), *HEADS)):
        if size % 2 == 0 and 4 <= size <= needles.length and needles.length % size == 0:
            yield size, True
            yield size, False


def along(values: Array, axis: int, rows: Indices | None = None) -> Array:
    """Rows along an axis, in the places where rows are compared; None: all rows."""
    turned = values.swapaxes(0, axis)
    turned = turned if rows is None else turned[rows]
    kernel = size_of(turned.shape[2:])
    return turned[:, columns_of(turned.shape[1], kernel)]


def hay_of(suspect: SuspectWeights, view: View, axis: int, length: int) -> Array:
    """Unit rows of the whole view, read in blocks."""
    shape = view.shape(suspect.shapes)
    other = shape[1 - axis]
    columns = columns_of(other, size_of(shape[2:]))
    step = max(1, _BLOCK // max(1, size_of(shape) // length))
    parts = []
    for start in range(0, length, step):
        rows = np.arange(start, min(start + step, length))
        pair = (rows, columns) if axis == 0 else (columns, rows)
        index: Index = (*pair, *(None for _ in shape[2:]))
        parts.append(unit_rows(finite(view.take(suspect, index).swapaxes(0, axis))))
    return np.concatenate(parts)


_NUMBER = re.compile(r"\d+")


def same_layer(wanted: Wanted, whole: Whole) -> bool:
    """Whether the numbers in two names do not speak against each other."""
    mine, other = (set(_NUMBER.findall(name)) for name in (wanted.name, whole.view.describe()))
    return not mine or not other or not mine.isdisjoint(other)
