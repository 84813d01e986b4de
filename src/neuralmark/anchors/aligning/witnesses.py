"""Products of layers that judge how well a stream was turned back (pure).

What reads the stream and writes it again (values and outputs, an MLP's two layers) makes the same
of the same vectors, whatever was done to the channels between: no order is needed to compare them.
"""

import numpy as np

from neuralmark.anchors.aligning.sides import Both, Gains, Two, cosine, signs, streamed
from neuralmark.anchors.moves import Move
from neuralmark.structures.structure import HIDDEN, Attention, Group, Side

_PROBES = 32
_LAYERS = 3
"""Of each kind, so many layers are asked."""

Product = tuple[Side, Side, int]
"""What reads, what writes, and how many channels lie between."""


def likeness(both: Both, turn: Move, gains: Gains) -> float:
    """Mean cosine of what the products of both models make of the same vectors."""
    probes = signs(_PROBES, both.stream.size, "probes")
    found = []
    for first, second, length in _spread(_values(both)) + _spread(_hidden(both)):
        reads = streamed(both, first, length, turn, gains)
        writes = streamed(both, second, length, turn, gains)
        if _fit(reads, writes):
            answers = ((probes @ x.T) @ y for x, y in zip(reads, writes, strict=True))
            found.append(cosine(*answers))
    return float(np.mean(found)) if found else 0.0


def _fit(reads: Two, writes: Two) -> bool:
    return all(len(x) == len(y) for x, y in zip(reads, writes, strict=True))


def _spread(products: list[Product]) -> list[Product]:
    """A few of them, evenly spaced."""
    return products[:: max(1, -(-len(products) // _LAYERS))]


def _values(both: Both) -> list[Product]:
    return [
        (layer.value[0], layer.output, layer.keys)
        for layer in both.structure.attentions
        if _plain(both, layer)
    ]


def _plain(both: Both, layer: Attention) -> bool:
    """Whether each value is read once, and both models have both layers."""
    return layer.share == 1 and both.has(layer.value[0].tensor, layer.output.tensor)


def _hidden(both: Both) -> list[Product]:
    stream = both.stream.tensors()
    return [
        (group.producers[0].sides[0], group.consumers[0], group.size)
        for group in both.structure.groups
        if _closed(both, group, stream)
    ]


def _closed(both: Both, group: Group, stream: set[str]) -> bool:
    """Whether a group lies between two layers of the stream that both models have."""
    if group.kind != HIDDEN or not group.consumers:
        return False
    ends = {group.producers[0].sides[0].tensor, group.consumers[0].tensor}
    return ends <= stream and both.has(*ends)
