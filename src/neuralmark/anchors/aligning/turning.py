"""Finding how the suspect's residual stream lies to the anchor's, and polishing it (pure).

Several turns are tried: none, a signed permutation, a rotation; from the embeddings as they are
numbered, from positions alone, from tokens matched anew. The one under which the products of the
layers are most like the anchor's is taken.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from neuralmark.anchors.aligning.fingerprints import match_channels
from neuralmark.anchors.aligning.layers import Run, View, align_layer, layers_of
from neuralmark.anchors.aligning.sides import Both, Two, streamed
from neuralmark.anchors.aligning.streams import Moments, fixed_rows
from neuralmark.anchors.aligning.vocabulary import renumbered
from neuralmark.anchors.aligning.witnesses import Witnesses, products_of
from neuralmark.anchors.moves import MISSING, Move

_DOUBTFUL = 0.5
"""Below this, tokens may have been numbered anew."""
_ROUNDS = 3
_LAYERS = 8
"""So many layers polish the stream."""
_BETTER = 1e-3

Runs = dict[str, list[Run]]
"""By the name of the layer."""


class Search:
    """The search for a turn: what is compared, and what was found last."""

    def __init__(self, both: Both, limit: int) -> None:
        """Nothing is found yet."""
        self.both, self.limit = both, limit
        self.width = stream_width(both)
        self.runs: Runs = {}
        """Layers that were aligned under the view that was found."""
        self._products = products_of(both)
        self._witnesses = Witnesses(both, self._products)

    def view(self) -> View:
        """The stream from what lies at the model's edges, then from everything."""
        view = self._first()
        for _ in range(_ROUNDS):
            better = self._polished(view)
            if better is view:
                break
            view, self.runs = better, {}
        return view

    def _first(self) -> View:
        best = View(Move.same(self.both.stream.size), self.both.gains(0.0), -1.0)
        for plus in _offsets(self.both):
            for stage in (self._placed, self._unnumbered, self._renumbered, self._inside):
                for turn in stage(plus):
                    best = self._liker(best, turn, plus)
                if best.likeness >= _DOUBTFUL:
                    break
        return best

    def _liker(self, best: View, turn: Move, plus: float) -> View:
        """The better of the present view and another turn, which must be clearly better."""
        alike = self._witnesses.likeness(turn, self.width, plus)
        better = alike > best.likeness + _BETTER
        return View(turn, self.both.gains(plus), alike, plus) if better else best

    def _placed(self, plus: float) -> Iterator[Move]:
        """As it is, then by everything that lies where it lay."""
        if self.both.stream.size == self.width:
            yield Move.same(self.width)
        yield from self._fitted(fixed_rows(self.both, None, self.both.gains(plus)))

    def _unnumbered(self, plus: float) -> Iterator[Move]:
        """By all that, but for tokens."""
        vocabulary = self.both.structure.vocabulary
        if vocabulary is not None:
            nowhere = np.full(vocabulary.size, MISSING, np.intp)
            yield from self._fitted(fixed_rows(self.both, nowhere, self.both.gains(plus)))

    def _renumbered(self, plus: float) -> Iterator[Move]:
        """By tokens that are found anew."""
        gains = self.both.gains(plus)
        tokens = renumbered(self.both, self._products, gains)
        if tokens is not None:
            yield from self._fitted(fixed_rows(self.both, tokens, gains))

    def _inside(self, plus: float) -> Iterator[Move]:
        """By the layers alone."""
        turn = match_channels(self.both, self._products, self.both.gains(plus), self.width)
        if turn is not None:
            yield turn

    def _fitted(self, rows: Iterable[Two]) -> Iterator[Move]:
        """The permutation and the rotation that suit these rows best; none without rows."""
        moments = Moments.empty(self.both.stream.size, self.width)
        for one, two in rows:
            if (one.shape[1], two.shape[1]) == moments.cross.shape:
                moments.add(one, two)
        yield from moments.turns()

    def _polished(self, view: View) -> View:
        """The stream from many layers, each in the order that the present view gives it."""
        both, plain = self.both, Move.same(self.width)
        stream, parts = both.stream.tensors(), layers_of(both)
        moments = Moments.empty(both.stream.size, self.width)
        for layer in parts[:: max(1, -(-len(parts) // _LAYERS))]:
            self.runs[layer.name] = align_layer(both, layer, view, self.limit)
            for run in self.runs[layer.name]:
                name = run.side.tensor
                if name in stream and len(both.anchor.entry(name).shape) == 2:
                    one, two = streamed(both, run.side, run.length, plain, view.gains)
                    moments.add(one, run.move.of(two, 0))
        best = view
        for turn in moments.turns():
            best = self._liker(best, turn, view.plus)
        return best


def stream_width(both: Both) -> int:
    """How many channels the suspect's stream has: the most frequent length among its sides."""
    found = [
        both.suspects[side.tensor].shape[side.axis]
        for side in both.stream.sides()
        if side.tensor in both.suspects and both.suspects[side.tensor].ndim > side.axis
    ]
    return max(sorted(set(found)), key=found.count) if found else both.stream.size


def _offsets(both: Both) -> tuple[float, ...]:
    """What may be added to the stored gains: names do not tell Gemma from Llama."""
    rotary = any(layer.rotary for layer in both.structure.attentions)
    return (0.0, 1.0) if rotary and both.structure.gains else (0.0,)
