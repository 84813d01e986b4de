"""How alike a suspect is to an anchor, scored as `lineage` scores two models, in no time.

Every verdict on an anchored mark has this score: a sign of descent, no proof of ownership. Only a
part of each tensor is compared. What an alignment finds in strangers is not tried on strangers, as
`lineage` does, but bounded: of N orders of independent weights the best one has a cosine of about
sqrt(2 ln N / weights).
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from neuralmark.anchors.anchor import MARKED, Anchor, AnchorEntry
from neuralmark.anchors.cleaning import clean
from neuralmark.anchors.effort import over_all_depths
from neuralmark.anchors.moves import Move
from neuralmark.anchors.resembling import comparable, resemblance
from neuralmark.anchors.standing import holding, left_of
from neuralmark.records.alignment import TensorFate, recorded
from neuralmark.records.lineage import Kinship, Lineage
from neuralmark.structures.structure import Array, Indices

SIDE = 128
"""So many rows and columns of a tensor are compared."""
MOST_IN_PLACE = 8
"""Of tensors that lie where they were, so many are compared, from all depths."""
TAUGHT = 0.6
"""The least chance of a tensor that was rotated. Trainings on the same text give tokens much the
same places up to a rotation: embeddings of strangers come to 0.39, of positions to 0.47."""

FAINTLY = 0.5
"""What is less alike is looked at behind what may have been added to it."""
ASIDE = "a part of it was set aside as added later"

_MOST_CHANCE = 0.999
_TURNED = 0.4
"""A turn of n channels brings strangers as near as the best of exp(0.4 n^2) orders would."""
_DIGITS = 4

RowReader = Callable[[str, Indices], Array | None]
"""Some rows of the tensor of this canonical name; None where the suspect does not have it whole."""


def taught(moves: Sequence[Move]) -> float:
    """The likeness that the same data may give to a tensor that is moved so."""
    return TAUGHT if any(move.matrix is not None for move in moves) else 0.0


def chance_of(moves: Sequence[Move], weights: int) -> float:
    """The likeness to which strangers with so many weights are brought by moves of this kind.

    >>> chance_of([Move.same(64), Move.same(64)], 64 * 64)
    0.0
    >>> round(chance_of([Move(np.arange(64)[::-1]), Move.same(64)], 64 * 64), 2)
    0.32
    """
    ways = sum(map(_ways, moves))
    return min(_MOST_CHANCE, max(taught(moves), math.sqrt(2 * ways / max(weights, 1))))


def _ways(move: Move) -> float:
    """The logarithm of how many moves of this kind there are; matrices count by what they teach."""
    if move.index is None or move.is_same:
        return 0.0
    size = len(move.index)
    ways = 0.0
    if not np.array_equal(move.index, np.arange(size)):
        ways += math.lgamma(size + 1)
    factors = [each for each in (move.factor, move.before) if each is not None]
    if any((each < 0).any() for each in factors):
        ways += size * math.log(2)
    if move.blocks is not None:
        runs, wide, _ = move.blocks.shape
        ways += _TURNED * runs * wide**2
    return ways


def kinship(
    fate: TensorFate, values: Array, anchor: Anchor, moves: Sequence[Move], set_aside: float = 0.0
) -> Kinship:
    """How alike a tensor is that was put back in order, and what chance would give.

    Where a share of it was set aside, `values` have the anchor's in its place, which makes them no
    more alike than the rest is: `fate.restored`.
    """
    entry = anchor.entry(fate.name)
    places = [_spaced(length) for length in entry.shape[:2]]
    for axis, taken in enumerate(places):
        values = np.take(values, taken, axis=axis)
    alike = resemblance(values, anchor.part(fate.name, places))
    alike = min(alike, fate.restored) if set_aside else alike
    size = math.prod(entry.shape)
    told = replace(fate, restored=recorded(alike))
    return Kinship(told, size, recorded(chance_of(moves, size)), recorded(set_aside))


def where_it_lies(name: str, stored: str, values: Array, anchor: Array, *, deep: bool) -> Kinship:
    """How alike a tensor is as it lies, nothing put in order.

    If `deep` and it shows no likeness, what was added to it is set aside, as far as that shows.
    """
    alike, share = resemblance(values, anchor), 0.0
    if deep and alike < FAINTLY:
        cleaned = clean(values, anchor, holding(values))
        left = left_of(cleaned)
        if left.firm:
            alike, share = 1 / math.sqrt(1 + left.noise), cleaned.share
    changes = (ASIDE,) if share else ()
    fate = TensorFate(name, stored, recorded(alike), recorded(alike), 1.0, changes)
    return Kinship(fate, anchor.size, 0.0, recorded(share))


def lost(entry: AnchorEntry, why: str) -> Kinship:
    """Of a tensor for which there is nothing to compare."""
    return Kinship(TensorFate(entry.name, "", 0.0, 0.0, 0.0, (why,)), math.prod(entry.shape))


def in_place(anchor: Anchor, read: RowReader) -> tuple[Kinship, ...]:
    """How alike tensors are that lie where they were: one run of rows of each, of some of them.

    Where a run begins follows from the anchor's digest.
    """
    marked = [e for e in anchor.entries if e.role == MARKED and comparable(e.shape)]
    order = over_all_depths(len(marked))
    told = []
    for entry in (marked[place] for place in sorted(order[:MOST_IN_PLACE])):
        rows = _run(entry, anchor.digest)
        values = read(entry.name, rows)
        if values is None:
            continue
        columns = _spaced(entry.shape[1])
        alike = resemblance(
            np.take(values, columns, axis=1), anchor.part(entry.name, [rows, columns])
        )
        fate = TensorFate(entry.name, entry.name, recorded(alike), recorded(alike), 1.0)
        told.append(Kinship(fate, math.prod(entry.shape)))
    return tuple(told)


def score_of(kinships: Sequence[Kinship]) -> float | None:
    """The score of all of them; None where too little could be compared to say anything."""
    found = Lineage("", "", tuple(kinships))
    return round(found.score, _DIGITS) if found.tensors and found.decided else None


def _spaced(length: int) -> Indices:
    """Places along an axis, evenly spaced."""
    count = min(length, SIDE)
    return np.arange(count) * length // count


def _run(entry: AnchorEntry, digest: bytes) -> Indices:
    """Rows that lie next to each other."""
    count = min(entry.shape[0], SIDE)
    drawn = hashlib.sha256(digest + entry.name.encode("utf-8", "replace")).digest()
    first = int.from_bytes(drawn[:8], "big") % (entry.shape[0] - count + 1)
    return np.arange(first, first + count)
