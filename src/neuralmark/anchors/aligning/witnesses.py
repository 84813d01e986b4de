"""Products of layers: what reads the stream, and what writes of it again (pure).

Values and outputs, queries and keys, an MLP's two layers: each product makes the same of the same
vectors, whatever was done to the channels between. So no order is needed to compare two models: the
products judge how well a stream was turned back, and what they make of a token tells it from others
though stream and tokens were both changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.aligning.sides import Both, Gains, cosine, signs
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.structures.structure import HIDDEN, Array, Attention, Group, Side

_PROBES = 32
_LAYERS = 3
"""Of each kind, so many layers are asked."""


@dataclass(frozen=True)
class Product:
    """Two layers, by what they have between them: B = secondᵀ · first."""

    first: Side
    second: Side
    length: int
    """How many channels the first has."""
    size: int = 1
    """Channels come in runs of this length …"""
    share: int = 1
    """… and each run of the first meets so many of the second, as values meet grouped queries."""

    def load(self, both: Both, gains: Gains, model: int) -> tuple[Array, Array]:
        """Both layers of the anchor's model (0) or the suspect's (1), gains folded in."""
        loaded = []
        for side, times in ((self.first, 1), (self.second, self.share)):
            values = both.run(side, self.length * times)[model]
            gain = gains.get(side.tensor)
            loaded.append(values if gain is None else values * gain[model])
        return loaded[0], loaded[1]

    def ahead(self, layers: tuple[Array, Array], vectors: Array) -> Array:
        """B · v for vectors as rows."""
        made = vectors @ layers[0].T
        runs = made.reshape(len(vectors), -1, self.size)
        return np.asarray(np.repeat(runs, self.share, axis=1).reshape(len(vectors), -1) @ layers[1])

    def back(self, layers: tuple[Array, Array], vectors: Array) -> Array:
        """Bᵀ · v for vectors as rows."""
        made = vectors @ layers[1].T
        runs = made.reshape(len(vectors), -1, self.share, self.size).sum(axis=2)
        return np.asarray(runs.reshape(len(vectors), -1) @ layers[0])


def products_of(both: Both) -> list[Product]:
    """Of each kind a few that both models have, evenly spaced."""
    return [
        product
        for kind in (_values(both), _queries(both), _hidden(both))
        for product in _spread(list(kind))
    ]


class Witnesses:
    """The products of two models, as judges; what the anchor's make of the probes is kept."""

    def __init__(self, both: Both, products: Sequence[Product]) -> None:
        """`products` are what the two models have in common."""
        self._both, self._products = both, products
        self._probes = signs(_PROBES, both.stream.size, "probes")
        self._known: dict[tuple[int, float], Array] = {}

    def likeness(self, turn: Move, width: int, plus: float) -> float:
        """Mean cosine of what the products make of the same vectors of the anchor's stream.

        `width` is the suspect's; `plus` is added to the gains.
        """
        gains = self._both.gains(plus)
        there = backwards(turn, self._probes, width)
        found = []
        for place, product in enumerate(self._products):
            if (place, plus) not in self._known:
                layers = product.load(self._both, gains, 0)
                self._known[place, plus] = product.ahead(layers, self._probes)
            theirs = _answer(product, self._both, gains, there)
            mine = self._known[place, plus]
            found.append(0.0 if theirs is None else cosine(mine, turn.of(theirs, 1)))
        return float(np.mean(found)) if found else 0.0


def backwards(turn: Move, vectors: Array, width: int) -> Array:
    """Vectors of the anchor's stream, as rows, in the suspect's, which is so wide."""
    if turn.factor is not None:
        vectors = vectors * turn.factor
    if turn.matrix is not None:
        return np.asarray(vectors @ turn.matrix)
    assert turn.index is not None
    there = turn.index != MISSING
    made = np.zeros((len(vectors), width), np.float32)
    made[:, turn.index[there]] = vectors[:, there]
    return made


def _answer(product: Product, both: Both, gains: Gains, vectors: Array) -> Array | None:
    """What the suspect makes of vectors; none where its layers do not fit together."""
    try:
        return product.ahead(product.load(both, gains, 1), vectors)
    except ValueError:
        return None


def _spread(products: list[Product]) -> list[Product]:
    return products[:: max(1, -(-len(products) // _LAYERS))]


def _values(both: Both) -> Iterator[Product]:
    for layer in both.structure.attentions:
        if _known(both, layer, layer.value[0], layer.output):
            yield Product(layer.value[0], layer.output, layer.keys, layer.size or 1, layer.share)


def _queries(both: Both) -> Iterator[Product]:
    for layer in both.structure.attentions:
        key, query = layer.key[0], layer.query[0]
        if not layer.normed and _known(both, layer, key, query):
            yield Product(key, query, layer.keys, layer.size or 1, layer.share)


def _known(both: Both, layer: Attention, one: Side, two: Side) -> bool:
    """Whether both models have both layers, and it is known which head meets which."""
    return bool(layer.share == 1 or layer.size) and both.has(one.tensor, two.tensor)


def _hidden(both: Both) -> Iterator[Product]:
    stream = both.stream.tensors()
    for group in both.structure.groups:
        if _closed(both, group, stream):
            yield Product(group.producers[0].sides[0], group.consumers[0], group.size)


def _closed(both: Both, group: Group, stream: set[str]) -> bool:
    """Whether a group lies between two layers of the stream that both models have."""
    if group.kind != HIDDEN or not group.consumers:
        return False
    ends = {group.producers[0].sides[0].tensor, group.consumers[0].tensor}
    return ends <= stream and both.has(*ends)
