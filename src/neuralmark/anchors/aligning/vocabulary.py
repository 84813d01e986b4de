"""Tokens that were numbered anew (pure).

A rotated stream keeps the inner products of the tokens' embeddings. How these are spread, for one
token against all, tells tokens apart well enough for a first guess; then stream and tokens put each
other in order, in turns.
"""

import numpy as np

from neuralmark.anchors.aligning.assigning import matched
from neuralmark.anchors.aligning.hidden import sketched
from neuralmark.anchors.aligning.sides import Floats, unit_rows
from neuralmark.anchors.aligning.streams import Moments
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.structures.structure import Array, Indices

_SAMPLE = 4096
"""Tokens against which a token is held."""
_QUANTILES = 32
_ROUNDS = 30
_TINY = 1e-12


def match_tokens(one: Array, two: Array) -> tuple[Indices, Move]:
    """For each row of the anchor's embeddings one of the suspect's; and the stream's rotation."""
    index = _neighbours(*_standard(_profiles(one), _profiles(two)))
    turn, before = Move.same(one.shape[1]), index
    for _ in range(_ROUNDS):
        turn = _turn(one, two, index)
        before, index = index, nearest_tokens(one, turn.of(two, 1))
        if np.array_equal(before, index):
            break
    return index, turn


def nearest_tokens(one: Array, two: Array) -> Indices:
    """Tokens by their embeddings along a stream that is the anchor's already."""
    mine, theirs = unit_rows(sketched(one)), unit_rows(sketched(two))
    return matched(lambda rows: mine[rows] @ theirs.T, len(mine), len(theirs)).index


def _turn(one: Array, two: Array, index: Indices) -> Move:
    moments = Moments.empty(one.shape[1], two.shape[1])
    there = index != MISSING
    moments.add(one[there], two[index[there]])
    return moments.rotation()


def _profiles(values: Array) -> Floats:
    """How the inner products of each row with all are spread."""
    scale = max(float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))), _TINY)
    rows = values / np.float32(scale)
    sample = rows[np.arange(min(_SAMPLE, len(rows))) * len(rows) // min(_SAMPLE, len(rows))]
    levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    found = []
    for start in range(0, len(rows), _SAMPLE):
        part = rows[start : start + _SAMPLE]
        spread = np.quantile(part @ sample.T, levels, axis=1).T
        found.append(np.column_stack([np.square(part, dtype=np.float64).sum(axis=1), spread]))
    return np.concatenate(found)


def _standard(one: Floats, two: Floats) -> tuple[Floats, Floats]:
    """Every number in units of its own spread."""
    middle, spread = np.median(one, axis=0), np.maximum(one.std(axis=0), _TINY)
    return (one - middle) / spread, (two - middle) / spread


def _neighbours(one: Floats, two: Floats) -> Indices:
    """Rows that are each other's nearest."""
    squares = np.square(two).sum(axis=1)

    def blocks(rows: Indices) -> Floats:
        return np.asarray(2 * one[rows] @ two.T - squares)

    return matched(blocks, len(one), len(two)).index
