"""Joined pieces: tensors that were cut into shards, or taken out of a fused one.

Rows of every shorter tensor are looked for among those of the anchor's; from where they lie follows
how the pieces are put together again. A piece that is missing leaves zeros.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.locating.combined import Absent, Joined
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
from neuralmark.anchors.locating.slices import along, same_layer
from neuralmark.anchors.locating.suspect import Index, Shape, SuspectWeights
from neuralmark.anchors.locating.views import Spaced, Taken, View
from neuralmark.anchors.locating.wholes import Whole
from neuralmark.anchors.moves import Mask
from neuralmark.core.names import natural
from neuralmark.structures.structure import Array, Indices

MOST_PIECES = 1024
"""How many pieces (or runs of one) a tensor is put together from."""
_NUMBERS = re.compile(r"[0-9]+")
_SINGLE = 0.9
"""How alike a piece of one row must be."""
_LEAST_SHARE = 0.25
"""Of the rows of a tensor, so many must be there."""


@dataclass(frozen=True, eq=False)
class Shard:
    """A shorter tensor of the suspect, and some of its rows."""

    whole: Whole
    view: View
    length: int
    rows: Indices
    values: Array


@dataclass(frozen=True)
class Run:
    """Where a run of a piece's rows lies in the anchor's tensor."""

    place: int
    length: int
    start: int
    view: View
    whole: bool
    """Whether the run is all of the piece."""

    def part(self, axis: int) -> View:
        """The rows of this run."""
        return self.view if self.whole else Taken(self.view, axis, self.start, self.length)


def by_joins(quest: Quest, left: Sequence[Wanted], found: Found) -> list[Candidate]:
    """What was stored as several tensors."""
    sought = [each for each in left if len(each.shape) > 1 and each.entry.rows is None]
    kinds: dict[tuple[int, Shape], list[Wanted]] = defaultdict(list)
    for wanted in sought:
        for axis in (0, 1):
            kinds[axis, (*wanted.shape[:axis], 0, *wanted.shape[axis + 1 :])].append(wanted)
    busy = quest.busy(found)
    seen = [each for wanted in left for each in _vocabularies(quest, wanted, busy)]
    done = {each.name for each in seen if each.direct}
    for (axis, rest), members in kinds.items():
        most = max(wanted.shape[axis] for wanted in members)
        sound = most > 1 and not quest.exhausted
        shards = list(_shorter(quest, axis, rest, most, busy)) if sound else []
        for wanted in members:
            if wanted.name not in done and shards:
                candidate = _joined(quest, wanted, axis, shards)
                seen += [] if candidate is None else [candidate]
                done |= {each.name for each in seen[-1:] if each.direct}
    return seen


def _vocabularies(quest: Quest, wanted: Wanted, busy: set[str]) -> Iterator[Candidate]:
    """An embedding of which the anchor has some rows, cut into pieces that are named in order."""
    if wanted.entry.rows is None:
        return
    groups: dict[str, list[Whole]] = defaultdict(list)
    for whole in quest.wholes:
        fits = len(whole.shape) == 2 and whole.shape[1] == wanted.shape[1]
        if fits and busy.isdisjoint(whole.view.stored()):
            groups[_NUMBERS.sub("#", whole.view.describe())].append(whole)
    for group in groups.values():
        if 1 < len(group) <= MOST_PIECES and sum(w.shape[0] for w in group) >= wanted.shape[0]:
            parts = sorted((w.view for w in group), key=lambda view: natural(view.describe()))
            joined = Joined(tuple(parts), 0)
            yield quest.judged(Spaced(joined, wanted.shape[0], wanted.entry.rows), wanted)


def _shorter(quest: Quest, axis: int, rest: Shape, most: int, busy: set[str]) -> Iterator[Shard]:
    """All that can be seen with these lengths but for one axis, which is shorter."""
    others = size_of(tuple(length for k, length in enumerate(rest) if k != axis))
    count = 0
    for whole in quest.wholes:
        here = size_of(whole.shape)
        fits = (
            whole.adapter is None
            and len(whole.shape) > 1
            and here % others == 0
            and here // others < most
        )
        if not fits or not busy.isdisjoint(whole.view.stored()):
            continue
        for view in oriented(whole.view, whole.shape, rest, axis):
            rows = needles_of(here // others)
            values = _rows_of(quest.suspect, view, axis, rows)
            yield Shard(whole, view, here // others, rows, unit_rows(values))
            count += 1
            if count >= quest.limit:
                return


def _rows_of(suspect: SuspectWeights, view: View, axis: int, rows: Indices) -> Array:
    shape = view.shape(suspect.shapes)
    columns = columns_of(shape[1 - axis], size_of(shape[2:]))
    pair = (rows, columns) if axis == 0 else (columns, rows)
    index: Index = (*pair, *(None for _ in shape[2:]))
    return finite(view.take(suspect, index).swapaxes(0, axis))


def _joined(quest: Quest, wanted: Wanted, axis: int, shards: Sequence[Shard]) -> Candidate | None:
    """The tensor put together; None where too little of it is found."""
    hay = unit_rows(finite(along(quest.anchor[wanted.name], axis)))
    runs: list[Run] = []
    free = np.ones(len(hay), np.bool_)
    for near in (True, False):
        mine = [s for s in shards if s.length < len(hay) and same_layer(wanted, s.whole) == near]
        if free.any():
            runs += _laid(_placed(quest, mine, hay), free)
    if not 1 < len(runs) + free.any() <= MOST_PIECES or free.mean() > 1 - _LEAST_SHARE:
        return None
    view = _assembled(wanted, axis, sorted(runs, key=lambda run: run.place))
    seen = quest.judged(view, wanted)
    return seen if seen.score >= CONVINCING * (1 - free.mean()) else None


def _laid(placed: Sequence[tuple[Shard, Rhythm]], free: Mask) -> Iterator[Run]:
    """The pieces where there is room for them, the likest first."""
    for shard, rhythm in placed:
        fresh = list(_runs(shard, rhythm))
        if all(free[run.place : run.place + run.length].all() for run in fresh):
            for run in fresh:
                free[run.place : run.place + run.length] = False
            yield from fresh


def _placed(quest: Quest, shards: Sequence[Shard], hay: Array) -> list[tuple[Shard, Rhythm]]:
    """Pieces whose rows lie among these, the likest first."""
    least = threshold(len(hay), hay.shape[1])
    found: list[tuple[float, int]] = []
    rhythm_of: dict[int, Rhythm] = {}
    for number, shard in enumerate(shards):
        if not quest.spend(float(hay.size) * FIRST):
            break
        _, alike = found_rows(shard.values[:FIRST], hay)
        if (alike >= least).sum() < max(1, len(alike) // 2):
            continue
        places, alike = found_rows(shard.values, hay)
        good = alike >= (least if shard.length > 1 else _SINGLE)
        if good.sum() < max(1, len(good) // 2):
            continue
        fits = rhythms(shard.rows[good], places[good], shard.length, len(hay))
        rhythm = next((each for each, _ in fits), None)
        if rhythm is not None and rhythm.count <= MOST_PIECES:
            rhythm_of[number] = rhythm
            found.append((-float(alike[good].mean()), number))
    return [(shards[number], rhythm_of[number]) for _, number in sorted(found)]


def _runs(shard: Shard, rhythm: Rhythm) -> Iterator[Run]:
    for number in range(rhythm.count):
        place = rhythm.offset + number * rhythm.step
        start = number * rhythm.run
        yield Run(place, rhythm.run, start, shard.view, rhythm.count == 1)


def _assembled(wanted: Wanted, axis: int, runs: Sequence[Run]) -> View:
    """The runs in the order of the anchor, with zeros where one is missing."""
    parts: list[View] = []
    at = 0

    def gap(to: int) -> None:
        if to > at:
            lengths = (*wanted.shape[:axis], to - at, *wanted.shape[axis + 1 :])
            parts.append(Absent(lengths))

    for run in runs:
        gap(run.place)
        parts.append(run.part(axis))
        at = run.place + run.length
    gap(wanted.shape[axis])
    return Joined(tuple(parts), axis)
