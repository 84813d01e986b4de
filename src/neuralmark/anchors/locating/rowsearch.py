"""Rows found among rows: where a few rows of one tensor lie in another, and in which rhythm (pure).

Whoever fuses tensors puts their rows one after the other, head by head or one by one in turn. A
few rows are looked for among all; from where they lie follows the rhythm of all the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from neuralmark.anchors.locating.likeness import CONVINCING, Scores, even
from neuralmark.anchors.moves import GRID
from neuralmark.structures.structure import Array, Indices

COLUMNS = 256
"""Rows are compared in so many places, evenly spaced."""
NEEDLES = 24
"""So many rows are looked for; the first few first."""
FIRST = 6
_AGREED = 0.6
"""The share of the rows that were found that must lie in the rhythm."""
_WITNESSES = 5
"""Rows that must agree on a rhythm of several runs: two agree on any."""
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Rhythm:
    """`count` runs of `run` rows, `step` apart, from `offset` on."""

    offset: int
    run: int
    step: int
    count: int

    @property
    def end(self) -> int:
        """Behind its last row."""
        return self.offset + (self.count - 1) * self.step + self.run

    def places(self, rows: Indices) -> Indices:
        """Where these rows lie."""
        return np.asarray(self.offset + rows // self.run * self.step + rows % self.run)


def needles_of(length: int) -> Indices:
    """Rows to look for: scattered, so that no rhythm hides from them; each once."""
    drawn = np.floor(np.arange(1, NEEDLES + 1) * _GOLDEN % 1.0 * length).astype(np.intp)
    return np.array(list(dict.fromkeys(drawn.tolist())), np.intp)


def columns_of(length: int, kernel: int = 1) -> Indices:
    """Inputs at which rows are compared; each has so many kernel positions."""
    return even(length, max(8, COLUMNS // max(1, kernel)))


def unit_rows(values: Array) -> Array:
    """Each row of length 1; rows of zeros stay."""
    flat = values.reshape(len(values), -1)
    lengths = np.sqrt(np.square(flat, dtype=np.float64).sum(axis=1, keepdims=True))
    return (flat / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def found_rows(needles: Array, hay: Array) -> tuple[Indices, Scores]:
    """For each needle the likest row, and how alike it is (both of unit rows), on the grid."""
    cosines = np.abs(needles @ hay.T)
    cosines = np.rint(cosines.astype(np.float64) / GRID) * GRID
    best = cosines.argmax(axis=1)
    return best, cosines[np.arange(len(needles)), best]


def threshold(rows: int, width: int) -> float:
    """What the likest of so many unrelated rows does not reach."""
    chance = float(np.sqrt(2 * np.log(max(2, rows)) / max(1, width)))
    return min(0.95, max(CONVINCING, 1.5 * chance))


def rhythms(
    rows: Indices, places: Indices, length: int, room: int, orders: Sequence[Indices] = ()
) -> Iterator[tuple[Rhythm, int]]:
    """Rhythms of a tensor of `length` rows inside `room` that agree with where rows were found.

    `orders` are other orders of the tensor's rows; with each rhythm comes the number of the order,
    -1 for the plain one. The longest runs first.
    """
    for number in range(-1, len(orders)):
        mine = rows if number < 0 else orders[number][rows]
        for run in divisors(length):
            found = _fitted(mine, places, run, length // run)
            if found is not None and found.offset >= 0 and found.end <= room:
                yield found, number
                break


def _fitted(rows: Indices, places: Indices, run: int, count: int) -> Rhythm | None:
    groups, starts = rows // run, places - rows % run
    if count == 1:
        steps = [(int(np.bincount(starts - starts.min()).argmax() + starts.min()), run)]
    else:
        steps = list(_lines(groups, starts))
    for offset, step in steps:
        made = Rhythm(offset, run, step, count)
        agreed = made.places(rows) == places
        enough = agreed.sum() >= (_WITNESSES if count > 1 else min(2, run))
        if step >= run and enough and agreed.mean() >= _AGREED:
            return made
    return None


def _lines(groups: Indices, starts: Indices) -> Iterator[tuple[int, int]]:
    """Offsets and steps through pairs that lie far apart: some rows may have been found wrongly."""
    order = np.argsort(groups, kind="stable").tolist()
    for near, far in product(order[:3], order[::-1][:3]):
        distance = int(groups[far] - groups[near])
        if distance > 0 and (starts[far] - starts[near]) % distance == 0:
            step = int(starts[far] - starts[near]) // distance
            yield int(starts[near] - groups[near] * step), step


@cache
def divisors(number: int) -> tuple[int, ...]:
    """The largest first."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}, reverse=True))
