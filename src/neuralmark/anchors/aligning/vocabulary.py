"""Tokens that were numbered anew (pure).

Their embeddings alone tell little when the stream was rotated too. What the layers make of them
tells them apart; then stream and tokens put each other in order, in turns.
"""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from neuralmark.anchors.aligning.assigning import matched
from neuralmark.anchors.aligning.contract import PERMUTED
from neuralmark.anchors.aligning.fingerprints import match_vectors
from neuralmark.anchors.aligning.layers import AxisRun, StreamView
from neuralmark.anchors.aligning.sides import BothModels, Gains, Two, sketched, unit_rows, with_gain
from neuralmark.anchors.aligning.streams import Moments, nearest_rotation
from neuralmark.anchors.aligning.witnesses import LayerProduct
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.structures.structure import Array, Indices

_ROUNDS = 5
_PLACED = 0.98
"""Tokens that are as alike as this where they lay, in units of any other order, lie there."""
_ENOUGH = 1.5
"""Tokens for each channel of the stream with which the two can put each other in order."""


def renumbered(
    both: BothModels, products: Sequence[LayerProduct], gains: Gains, limit: int
) -> Indices | None:
    """Where the suspect has each token of which the anchor keeps the embedding; else MISSING."""
    vocabulary = both.structure.vocabulary
    forms = [] if vocabulary is None else _forms(both, gains)
    if vocabulary is None or not forms or len(forms[0][0]) * len(forms[0][1]) > limit:
        return None
    index = match_vectors(both, products, gains, ([x[0] for x in forms], [x[1] for x in forms]))
    if index is None:
        return None
    tokens = np.full(vocabulary.size, MISSING, np.intp)
    rows = both.anchor.entry(vocabulary.inputs[0].tensor).kept_rows
    tokens[rows] = _settled(*forms[0], index)
    return tokens


def _forms(both: BothModels, gains: Gains) -> list[Two]:
    """Embeddings, and what else has a row along the stream for each of the same tokens."""
    assert both.structure.vocabulary is not None
    found: list[Two] = []
    for side in both.structure.vocabulary.sides():
        name = side.tensor
        if side.axis or not both.shares(name) or len(both.anchor.entry(name).shape) != 2:
            continue
        one, two = with_gain(both.whole(name), gains.get(name))
        if not found or (one.shape, two.shape) == (found[0][0].shape, found[0][1].shape):
            found.append((one, two))
    return found


def token_runs(
    both: BothModels, view: StreamView, names: Collection[str], limit: int
) -> Iterator[AxisRun]:
    """The order of the tokens in those of these tensors that have all of them, if it is another."""
    vocabulary = both.structure.vocabulary
    sides = [] if vocabulary is None else vocabulary.sides()
    wanted = [side for side in sides if side.tensor in names and both.has(side.tensor)]
    index = _order(both, view, limit) if wanted else None
    if index is None:
        return
    for side in wanted:
        if both.anchor.entry(side.tensor).shape[side.axis] == len(index):
            yield AxisRun(side, len(index), Move(index), frozenset({PERMUTED}))


def _order(both: BothModels, view: StreamView, limit: int) -> Indices | None:
    """Where the suspect has each token, if not where the anchor has it or beyond the limit."""
    assert both.structure.vocabulary is not None
    stream = both.stream.tensors()
    for side in both.structure.vocabulary.sides():
        if side.axis or side.tensor not in stream or not both.has_matrix(side.tensor):
            continue
        one, two = with_gain(both.whole(side.tensor), view.gains.get(side.tensor))
        two = view.turn.of(two, 1)
        if len(one) * len(two) > limit:
            return None
        index = nearest_tokens(one, two)
        return None if _in_place(one, two, index) else index
    return None


def _in_place(one: Array, two: Array, index: Indices) -> bool:
    """Whether tokens lie where they lay, rather than in this order."""
    if len(one) != len(two):
        return False
    there = index != MISSING
    mine, theirs = unit_rows(one), unit_rows(two)
    plain = float(np.vdot(mine, theirs))
    found = float(np.vdot(mine[there], theirs[index[there]]))
    return plain >= _PLACED * found


def nearest_tokens(one: Array, two: Array) -> Indices:
    """Tokens by their embeddings along a stream that is the anchor's already."""
    mine, theirs = (sketched([unit_rows(x)]) for x in (one, two))
    return matched(lambda rows: mine[rows] @ theirs.T, len(mine), len(theirs)).index


def _settled(one: Array, two: Array, index: Indices) -> Indices:
    """Tokens and stream put each other in order, where there are tokens enough."""
    if len(one) < _ENOUGH * one.shape[1]:
        return index
    for _ in range(_ROUNDS):
        before, there = index, index != MISSING
        moments = Moments.empty(one.shape[1], two.shape[1])
        moments.add(one[there], two[index[there]])
        turn = Move(matrix=nearest_rotation(moments.cross).astype(np.float32))
        index = nearest_tokens(one, turn.of(two, 1))
        if (before == index).mean() > 0.99:
            break
    return index
