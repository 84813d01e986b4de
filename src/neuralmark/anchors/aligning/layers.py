"""One layer of a transformer, heads or an MLP, along a stream that is in order (pure)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.aligning.assigning import require_within
from neuralmark.anchors.aligning.contract import PERMUTED
from neuralmark.anchors.aligning.heads import (
    KEY,
    OUTPUT,
    QUERY,
    VALUE,
    HeadMoves,
    Parts,
    align_heads,
)
from neuralmark.anchors.aligning.hidden import HELD, align_hidden, sides_of
from neuralmark.anchors.aligning.quieting import quieted
from neuralmark.anchors.aligning.sides import BothModels, Gains, streamed
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.errors import AlignLimitError
from neuralmark.structures.structure import HIDDEN, Attention, Group, Side

ROTATED = "rotated"
_SIZES = range(8, 257, 2)


@dataclass(frozen=True, eq=False)
class AxisRun:
    """How some channels of one axis of a tensor become the anchor's."""

    side: Side
    length: int
    move: Move
    changes: frozenset[str]
    likeness: float = 1.0
    """Of its whole layer; of tokens it does not matter."""


@dataclass(frozen=True, eq=False)
class StreamView:
    """The residual stream as it is seen at present."""

    turn: Move
    gains: Gains
    likeness: float
    plus: float = 0.0
    """What was added to the stored gains."""


Layer = Attention | Group


def layers_of(both: BothModels) -> list[Layer]:
    """All parts of the model that lie between two layers of the stream."""
    hidden = [group for group in both.structure.groups if group.kind == HIDDEN]
    return [*both.structure.attentions, *hidden]


def align_layer(
    both: BothModels, layer: Layer, view: StreamView, limit: int, *, quiet: bool = False
) -> list[AxisRun]:
    """What is found out of one layer; nothing where it does not fit, or is beyond the limit.

    `quiet`: without directions that are far too loud, where there are any.
    """
    try:
        if isinstance(layer, Group):
            return list(_hidden(both, layer, view, limit, quiet=quiet))
        return list(_attention(both, layer, view, limit, quiet=quiet))
    except (ValueError, AlignLimitError):  # shapes that do not fit together
        return []


def _hidden(
    both: BothModels, group: Group, view: StreamView, limit: int, *, quiet: bool
) -> Iterator[AxisRun]:
    found = align_hidden(both, group, view.turn, view.gains, limit, quiet=quiet)
    if found is None:
        return
    changes = found.changes | ({PERMUTED} if out_of_order(found.moves[HELD]) else set())
    for role, sides in sides_of(group).items():
        for side in sides:
            if both.has(side.tensor):
                move = found.moves[role]
                yield AxisRun(side, group.size, move, frozenset(changes), found.likeness)


def out_of_order(move: Move) -> bool:
    """Whether a gather changes the order of channels."""
    assert move.index is not None
    return bool((np.diff(move.index[move.index != MISSING]) < 0).any())


def _attention(
    both: BothModels, layer: Attention, view: StreamView, limit: int, *, quiet: bool
) -> Iterator[AxisRun]:
    parts = _parts(both, layer, view)
    for one, two in parts.values():
        require_within(len(one), len(two), limit)
    found = _likest(layer, _quiet(layer, parts) if quiet else parts)
    if found is None:
        return
    sides = {QUERY: layer.query, KEY: layer.key, VALUE: layer.value, OUTPUT: (layer.output,)}
    lengths = {QUERY: layer.queries, OUTPUT: layer.queries, KEY: layer.keys, VALUE: layer.keys}
    for part, move in found.moves.items():
        for side in sides[part]:
            if both.has(side.tensor):
                yield AxisRun(side, lengths[part], move, _changes(found), found.likeness)


def _quiet(layer: Attention, parts: Parts) -> Parts:
    """The same parts without directions that are far too loud."""
    made: Parts = {}
    for together in ((QUERY, KEY, VALUE), (OUTPUT,)):
        names = [part for part in together if part in parts]
        rows = quieted([parts[name] for name in names], layer.size or 1)
        made |= dict(zip(names, rows, strict=True))
    return made


def _changes(found: HeadMoves) -> frozenset[str]:
    moves = found.moves.values()
    words = {PERMUTED} if any(map(out_of_order, moves)) else set()
    return frozenset(words | ({ROTATED} if any(x.blocks is not None for x in moves) else set()))


def _parts(both: BothModels, layer: Attention, view: StreamView) -> Parts:
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
        if not parts or not _in_heads(parts, size):
            continue
        tried = align_heads(layer, parts, size)
        if found is None or tried.likeness > found.likeness + 1e-3:
            found = tried
    return found


def _in_heads(parts: Parts, size: int) -> bool:
    """Whether the suspect's parts are whole heads, as many in those that belong together."""
    lengths = {part: len(two[1]) for part, two in parts.items()}
    pairs = [[lengths[p] for p in pair if p in lengths] for pair in ((QUERY, OUTPUT), (KEY, VALUE))]
    return all(n % size == 0 for n in lengths.values()) and all(len(set(p)) < 2 for p in pairs)


def _plausible(layer: Attention) -> list[int]:
    grouped = layer.queries % layer.keys == 0
    return [size for size in _SIZES if grouped and layer.keys % size == 0]
