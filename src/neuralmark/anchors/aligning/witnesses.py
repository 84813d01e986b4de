"""Products of layers: what reads the stream, and what writes of it again (pure).

Values and outputs, queries and keys, an MLP's two layers: each product makes the same of the same
vectors, whatever was done to the channels between. So no order is needed to compare two models: the
products judge how well a stream was turned back, and what they make of a token tells it from others
though stream and tokens were both changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from neuralmark.anchors.aligning.sides import BothModels, Gains, cosine, folded, levelled, signs
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.structures.structure import HIDDEN, Array, Attention, Group, Side

Part = TypeVar("Part")

_PROBES = 32
_LAYERS = 3
"""Of each kind, so many layers are asked."""


@dataclass(frozen=True)
class LayerProduct:
    """Two layers, by what they have between them: B = secondᵀ · first."""

    first: Side
    second: Side
    lengths: tuple[int, int]
    """How many channels each of them has."""
    size: int = 1
    """They come in runs of this length; several of the second may meet one of the first."""

    def load(self, both: BothModels, gains: Gains, model: int) -> tuple[Array, Array]:
        """Both layers of the anchor's model (0) or the suspect's (1), gains folded in, levelled."""
        first, second = self.lengths
        return (
            levelled(folded(both, self.first, first, gains, model)),
            levelled(folded(both, self.second, second, gains, model)),
        )

    def ahead(self, layers: tuple[Array, Array], vectors: Array) -> Array:
        """B · v for vectors as rows."""
        made = vectors @ layers[0].T
        runs = made.reshape(len(vectors), -1, self.size)
        runs = np.repeat(runs, _share(layers), axis=1)
        return np.asarray(runs.reshape(len(vectors), -1) @ layers[1])

    def back(self, layers: tuple[Array, Array], vectors: Array) -> Array:
        """Bᵀ · v for vectors as rows."""
        made = vectors @ layers[1].T
        runs = made.reshape(len(vectors), -1, _share(layers), self.size).sum(axis=2)
        return np.asarray(runs.reshape(len(vectors), -1) @ layers[0])


def _share(layers: tuple[Array, Array]) -> int:
    """How many runs of the second layer meet one of the first, as queries meet values."""
    return max(1, len(layers[1]) // max(len(layers[0]), 1))


def products_of(both: BothModels, width: int) -> list[LayerProduct]:
    """Of each kind a few that both models have, evenly spaced; the suspect's stream is so wide.

    Those whose layers do not fit together in the suspect say nothing of the others.
    """
    kinds = (_values(both), _queries(both), _hidden(both))
    found = [product for kind in kinds for product in spread(list(kind))]
    return [product for product in found if _fits(product, both, width)]


class Witnesses:
    """The products of two models, as judges; what the anchor's make of the probes is kept."""

    def __init__(self, both: BothModels, products: Sequence[LayerProduct]) -> None:
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
            theirs = product.ahead(product.load(self._both, gains, 1), there)
            found.append(cosine(self._known[place, plus], turn.of(theirs, 1)))
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


def _fits(product: LayerProduct, both: BothModels, width: int) -> bool:
    """Whether the suspect's layers fit together, forwards and backwards."""
    probe = np.zeros((1, width), np.float32)
    try:
        layers = product.load(both, both.gains(0.0), 1)
        product.back(layers, product.ahead(layers, probe))
    except ValueError:
        return False
    return True


def spread(layers: Sequence[Part]) -> Sequence[Part]:
    """A few of them, evenly spaced."""
    return layers[:: max(1, -(-len(layers) // _LAYERS))]


def _values(both: BothModels) -> Iterator[LayerProduct]:
    for layer in both.structure.attentions:
        value, output = layer.value[0], layer.output
        if _known(both, layer, value, output):
            yield LayerProduct(value, output, (layer.keys, layer.queries), layer.size or 1)


def _queries(both: BothModels) -> Iterator[LayerProduct]:
    for layer in both.structure.attentions:
        key, query = layer.key[0], layer.query[0]
        if not layer.normed and _known(both, layer, key, query):
            yield LayerProduct(key, query, (layer.keys, layer.queries), layer.size or 1)


def _known(both: BothModels, layer: Attention, one: Side, two: Side) -> bool:
    """Whether both models have both layers, and it is known which head meets which."""
    return bool(layer.share == 1 or layer.size) and both.has(one.tensor, two.tensor)


def _hidden(both: BothModels) -> Iterator[LayerProduct]:
    for group in inner_groups(both):
        ends = group.producers[0].sides[0], group.consumers[0]
        yield LayerProduct(*ends, (group.size, group.size))


def inner_groups(both: BothModels) -> list[Group]:
    """Channels between two layers of the stream that both models have."""
    stream = both.stream.tensors()
    return [group for group in both.structure.groups if _closed(both, group, stream)]


def _closed(both: BothModels, group: Group, stream: set[str]) -> bool:
    """Whether a group lies between two layers of the stream that both models have."""
    if group.kind != HIDDEN or not group.consumers:
        return False
    ends = {group.producers[0].sides[0].tensor, group.consumers[0].tensor}
    return ends <= stream and both.has(*ends)
