"""One layer of a transformer, heads or an MLP, along a stream that is in order (pure)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.aligning.heads import (
    KEY,
    OUTPUT,
    QUERY,
    VALUE,
    HeadMoves,
    Parts,
    align_heads,
)
from neuralmark.anchors.aligning.hidden import align_hidden
from neuralmark.anchors.aligning.sides import Both, Gains, streamed
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.structures.structure import HIDDEN, Attention, Group, Side

PERMUTED = "permuted"
_SIZES = range(8, 257, 2)


@dataclass(frozen=True, eq=False)
class Run:
    """How some channels of one axis of a tensor become the anchor's."""

    side: Side
    length: int
    move: Move
    changes: frozenset[str]


@dataclass(frozen=True, eq=False)
class View:
    """The residual stream as it is seen at present."""

    turn: Move
    gains: Gains
    likeness: float
    plus: float = 0.0
    """What was added to the stored gains."""


Layer = Attention | Group


def layers_of(both: Both) -> list[Layer]:
    """All parts of the model that lie between two layers of the stream."""
    hidden = [group for group in both.structure.groups if group.kind == HIDDEN]
    return [*both.structure.attentions, *hidden]


def align_layer(both: Both, layer: Layer, view: View, limit: int) -> list[Run]:
    """What is found out of one layer; nothing where too little of it is there."""
    if isinstance(layer, Group):
        return list(_hidden(both, layer, view, limit))
    return list(_attention(both, layer, view))


def _hidden(both: Both, group: Group, view: View, limit: int) -> Iterator[Run]:
    found = align_hidden(both, group, view.turn, view.gains, limit)
    if found is None:
        return
    changes = found.changes | _moved(found.held)
    made = [side for producer in group.producers for side in producer.sides]
    for sides, move in (
        (made, found.makers),
        (group.riders, found.held),
        (group.consumers, found.readers),
    ):
        for side in sides:
            if both.has(side.tensor):
                yield Run(side, group.size, move, frozenset(changes))


def _moved(move: Move) -> set[str]:
    assert move.index is not None
    there = move.index != MISSING
    return {PERMUTED} if (move.index != np.arange(len(there)))[there].any() else set()


def _attention(both: Both, layer: Attention, view: View) -> Iterator[Run]:
    parts = _parts(both, layer, view)
    found = _likest(layer, parts)
    if found is None:
        return
    sides = {QUERY: layer.query, KEY: layer.key, VALUE: layer.value, OUTPUT: (layer.output,)}
    lengths = {QUERY: layer.queries, OUTPUT: layer.queries, KEY: layer.keys, VALUE: layer.keys}
    for part, move in found.moves.items():
        for side in sides[part]:
            if both.has(side.tensor):
                yield Run(side, lengths[part], move, found.changes)


def _parts(both: Both, layer: Attention, view: View) -> Parts:
    wanted = {
        QUERY: (layer.query[0], layer.queries),
        KEY: (layer.key[0], layer.keys),
        VALUE: (layer.value[0], layer.keys),
        OUTPUT: (layer.output, layer.queries),
    }
    return {
        part: streamed(both, side, length, view.turn, view.gains)
        for part, (side, length) in wanted.items()
        if both.has(side.tensor)
    }


def _likest(layer: Attention, parts: Parts) -> HeadMoves | None:
    """With the known size of a head; else with the one that makes the layer most like."""
    sizes = [layer.size] if layer.size else _plausible(layer)
    found: HeadMoves | None = None
    for size in sizes:
        if not parts or any(len(two[1]) % size for two in parts.values()):
            continue
        tried = align_heads(layer, parts, size)
        if found is None or tried.likeness > found.likeness + 1e-3:
            found = tried
    return found


def _plausible(layer: Attention) -> list[int]:
    grouped = layer.queries % layer.keys == 0
    return [size for size in _SIZES if grouped and layer.keys % size == 0]
