"""Finding how the suspect's residual stream lies to the anchor's, and polishing it (pure).

Several turns are tried: none, a signed permutation, a rotation; from the embeddings as they are
numbered, from positions alone, from tokens matched anew. The one under which the products of the
layers are most like the anchor's is taken.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from neuralmark.anchors.aligning.fingerprints import match_vectors
from neuralmark.anchors.aligning.hidden import HELD, MAKER, READER, sides_of
from neuralmark.anchors.aligning.layers import AxisRun, StreamView, align_layer, layers_of
from neuralmark.anchors.aligning.sides import BothModels, Two, folded, streamed, unit_rows
from neuralmark.anchors.aligning.streams import Moments, fixed_rows
from neuralmark.anchors.aligning.vocabulary import renumbered
from neuralmark.anchors.aligning.witnesses import Witnesses, inner_groups, products_of, spread
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.structures.structure import OTHER, Group

_DOUBTFUL = 0.5
"""Below this, tokens may have been numbered anew."""
_ROUNDS = 3
_LAYERS = 8
"""So many layers polish the stream."""
_BETTER = 1e-3
_FREE, _FREER = 0.01, 0.1
"""By so much must a rotation be liker than an order; the second is a share of what lacks."""

_FITTING = 0.49
"""What a perfect fit of the rows that a turn was found by counts; less than would settle it."""

FittedTurn = tuple[Move, float]
"""A turn of the stream, and how well it fits the rows by which it was found."""
LayerRuns = dict[str, list[AxisRun]]
"""By the name of the layer."""


class StreamSearch:
    """The search for a turn: what is compared, and what was found last."""

    def __init__(self, both: BothModels, limit: int) -> None:
        """Nothing is found yet."""
        self.both, self.limit = both, limit
        self.width = stream_width(both)
        self.runs: LayerRuns = {}
        """Layers that were aligned under the view that was found."""
        self._products = products_of(both, self.width)
        self._witnesses = Witnesses(both, self._products)

    def view(self) -> StreamView:
        """The stream from what lies at the model's edges, then from everything."""
        view = self._first()
        for _ in range(_ROUNDS):
            better = self._polished(view)
            if better is view:
                break
            view, self.runs = better, {}
        return view

    def _first(self) -> StreamView:
        best = StreamView(Move.same(self.both.stream.size), self.both.gains(0.0), -1.0)
        for plus in _offsets(self.both):
            for stage in (self._placed, self._unnumbered, self._renumbered, self._inside):
                for turn, fit in stage(plus):
                    best = self._liker(best, turn, plus, fit)
                if best.likeness >= _DOUBTFUL:
                    break
        return best

    def _liker(self, best: StreamView, turn: Move, plus: float, fit: float) -> StreamView:
        """The better of the present view and another turn, which must be clearly better.

        Where noise drowns the layers, how well the turn fits the rows that it was found by tells.
        """
        alike = max(self._witnesses.likeness(turn, self.width, plus), _FITTING * fit)
        view = StreamView(turn, self.both.gains(plus), alike, plus)
        return view if _score(view) > _score(best) + _BETTER else best

    def _placed(self, plus: float) -> Iterator[FittedTurn]:
        """As it is, then by everything that lies where it lay."""
        if self.both.stream.size == self.width:
            yield Move.same(self.width), 0.0
        yield from self._fitted(fixed_rows(self.both, None, self.both.gains(plus)))

    def _unnumbered(self, plus: float) -> Iterator[FittedTurn]:
        """By all that, but for tokens."""
        vocabulary = self.both.structure.vocabulary
        if vocabulary is not None:
            nowhere = np.full(vocabulary.size, MISSING, np.intp)
            yield from self._fitted(fixed_rows(self.both, nowhere, self.both.gains(plus)))

    def _renumbered(self, plus: float) -> Iterator[FittedTurn]:
        """By tokens that are found anew."""
        gains = self.both.gains(plus)
        tokens = renumbered(self.both, self._products, gains, self.limit)
        if tokens is not None:
            yield from self._fitted(fixed_rows(self.both, tokens, gains))

    def _inside(self, plus: float) -> Iterator[FittedTurn]:
        """By the layers alone: channels of MLPs, told apart by what other layers make of them."""
        yield from self._fitted(
            pair
            for group in spread(inner_groups(self.both))
            for pair in self._channels(group, plus)
        )

    def _channels(self, group: Group, plus: float) -> Iterator[Two]:
        """Channels of one group that belong together, as rows along the stream."""
        gains = self.both.gains(plus)
        sides = sides_of(group)
        exact = sides[HELD] or sides[MAKER] + sides[READER] * (group.activation == OTHER)
        rows = [
            tuple(folded(self.both, side, group.size, gains, model) for model in (0, 1))
            for side in exact
            if self.both.has_matrix(side.tensor)
        ]
        if not rows or len({tuple(map(len, two)) for two in rows}) > 1:
            return
        if len(rows[0][0]) * len(rows[0][1]) > self.limit:
            return
        units = [(unit_rows(one), unit_rows(two)) for one, two in rows]
        forms = [two[0] for two in units], [two[1] for two in units]
        index = match_vectors(self.both, self._products, gains, forms)
        if index is not None:
            there = index != MISSING
            yield from ((one[there], two[index[there]]) for one, two in units)

    def _fitted(self, rows: Iterable[Two]) -> Iterator[FittedTurn]:
        """The permutation and the rotation that suit these rows best; none without rows."""
        moments = Moments.empty(self.both.stream.size, self.width)
        for one, two in rows:
            if (one.shape[1], two.shape[1]) == moments.cross.shape:
                moments.add(one, two)
        yield from ((turn, moments.fit(turn)) for turn in moments.turns())

    def _polished(self, view: StreamView) -> StreamView:
        """The stream from many layers, each in the order that the present view gives it."""
        both, plain = self.both, Move.same(self.width)
        stream, parts = both.stream.tensors(), layers_of(both)
        moments = Moments.empty(both.stream.size, self.width)
        for layer in parts[:: max(1, -(-len(parts) // _LAYERS))]:
            self.runs[layer.name] = align_layer(both, layer, view, self.limit)
            for run in self.runs[layer.name]:
                name = run.side.tensor
                if name in stream and both.has_matrix(name):
                    one, two = streamed(both, run.side, run.length, plain, view.gains)
                    moments.add(one, run.move.of(two, 0))
        best = view
        for turn in moments.turns():
            best = self._liker(best, turn, view.plus, 0.0)
        return best


def _score(view: StreamView) -> float:
    """Likeness, less what a rotation gains by fitting the damage, too."""
    free = view.turn.index is None
    return view.likeness - free * (_FREE + _FREER * (1 - view.likeness))


def stream_width(both: BothModels) -> int:
    """How many channels the suspect's stream has: the most frequent length among its sides."""
    found = [
        both.shape(side.tensor)[side.axis]
        for side in both.stream.sides()
        if both.shares(side.tensor)
    ]
    return max(sorted(set(found)), key=found.count) if found else both.stream.size


def _offsets(both: BothModels) -> tuple[float, ...]:
    """What may be added to the stored gains: names do not tell Gemma from Llama."""
    rotary = any(layer.rotary for layer in both.structure.attentions)
    return (0.0, 1.0) if rotary and both.structure.gains else (0.0,)
