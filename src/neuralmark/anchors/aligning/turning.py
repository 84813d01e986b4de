"""Finding how the suspect's residual stream lies to the anchor's, and polishing it (pure).

Several turns are tried: none, a signed permutation, a rotation; from the embeddings as they are
numbered, from positions alone, from tokens matched anew. The one under which the products of the
layers are most like the anchor's is taken.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from neuralmark.anchors.aligning.layers import View, align_layer, layers_of
from neuralmark.anchors.aligning.sides import Both, Gains, Two, streamed
from neuralmark.anchors.aligning.streams import Moments, fixed_rows
from neuralmark.anchors.aligning.vocabulary import match_tokens
from neuralmark.anchors.aligning.witnesses import likeness
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.structures.structure import Indices

_CLEAR = 0.9
"""A turn that makes the layers so alike needs no better one at first."""
_DOUBTFUL = 0.5
"""Below this, tokens may have been numbered anew."""
_ROUNDS = 3
_LAYERS = 8
"""So many layers polish the stream."""
_BETTER = 1e-3


def found_view(both: Both, limit: int) -> View:
    """The stream from what lies at the model's edges, then from everything."""
    view = _first(both)
    for _ in range(_ROUNDS):
        better = _polished(both, view, limit)
        if better.likeness <= view.likeness + _BETTER:
            break
        view = better
    return view


def stream_width(both: Both) -> int:
    """How many channels the suspect's stream has: the most frequent length among its sides."""
    found = [
        both.suspects[side.tensor].shape[side.axis]
        for side in both.stream.sides()
        if side.tensor in both.suspects and both.suspects[side.tensor].ndim > side.axis
    ]
    return max(sorted(set(found)), key=found.count) if found else both.stream.size


def _first(both: Both) -> View:
    """The turn under which the layers are most alike."""
    best = View(Move.same(both.stream.size), both.gains(0.0), -1.0)
    for plus in _offsets(both):
        gains = both.gains(plus)
        for stage in (_plain, _placed, _unnumbered, _renumbered):
            for turn in stage(both, gains):
                best = _liker(best, View(turn, gains, likeness(both, turn, gains)))
            if best.likeness >= (_CLEAR if stage is _plain else _DOUBTFUL):
                break
    return best


def _offsets(both: Both) -> tuple[float, ...]:
    """What may be added to the stored gains: names do not tell Gemma from Llama."""
    rotary = any(layer.rotary for layer in both.structure.attentions)
    return (0.0, 1.0) if rotary and both.structure.gains else (0.0,)


def _liker(one: View | None, two: View) -> View:
    """The second only where it is clearly better."""
    return two if one is None or two.likeness > one.likeness + _BETTER else one


def _plain(both: Both, gains: Gains) -> Iterator[Move]:
    """As it is."""
    if both.stream.size == stream_width(both):
        yield Move.same(both.stream.size)


def _placed(both: Both, gains: Gains) -> Iterator[Move]:
    """By everything that lies where it lay."""
    return _fitted(both, fixed_rows(both, None, gains))


def _unnumbered(both: Both, gains: Gains) -> Iterator[Move]:
    """By all that, but for tokens."""
    vocabulary = both.structure.vocabulary
    if vocabulary is not None:
        nowhere = np.full(vocabulary.size, MISSING, np.intp)
        yield from _fitted(both, fixed_rows(both, nowhere, gains))


def _renumbered(both: Both, gains: Gains) -> Iterator[Move]:
    """By tokens that are found anew."""
    tokens = _tokens(both)
    if tokens is not None:
        yield from _fitted(both, fixed_rows(both, tokens, gains))


def _fitted(both: Both, rows: Iterable[Two]) -> Iterator[Move]:
    """The permutation and the rotation that suit these rows best; none without rows."""
    one, two = both.stream.size, stream_width(both)
    moments = Moments.empty(one, two)
    for pair in rows:
        if pair[0].shape[1] == one and pair[1].shape[1] == two:
            moments.add(*pair)
    if moments.one.any() and moments.two.any():
        yield moments.order()
        yield moments.rotation()


def _tokens(both: Both) -> Indices | None:
    """Where the suspect has the tokens of which the anchor keeps the embeddings."""
    vocabulary = both.structure.vocabulary
    if vocabulary is None:
        return None
    name = vocabulary.inputs[0].tensor
    if name not in both.suspects or name not in both.anchor:
        return None
    one, two = both.whole(name)
    tokens = np.full(vocabulary.size, MISSING, np.intp)
    tokens[both.anchor.entry(name).kept_rows] = match_tokens(one, two)[0]
    return tokens


def _polished(both: Both, view: View, limit: int) -> View:
    """The stream from all layers, each in the order that the present view gives it."""
    one, two = both.stream.size, stream_width(both)
    plain, stream = Move.same(two), both.stream.tensors()
    parts = layers_of(both)
    moments = Moments.empty(one, two)
    for layer in parts[:: max(1, -(-len(parts) // _LAYERS))]:
        for run in align_layer(both, layer, view, limit):
            name = run.side.tensor
            if name in stream and len(both.anchor.entry(name).shape) == 2:
                mine, theirs = streamed(both, run.side, run.length, plain, view.gains)
                moments.add(mine, run.move.of(theirs, 0))
    best = view
    if moments.one.any():
        for turn in (moments.order(), moments.rotation()):
            best = _liker(best, View(turn, view.gains, likeness(both, turn, view.gains)))
    return best
