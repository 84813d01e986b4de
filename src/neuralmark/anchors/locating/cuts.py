"""Tensors that are often stored as one, and the ways to cut them apart again (pure).

Layers that read the same inputs may be fused along their outputs: queries, keys and values, gates
and ups. They lie one after the other in any order, whole, or a head or a row of each in turn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, permutations

from neuralmark.anchors.locating.suspect import Shape
from neuralmark.anchors.locating.views import Taken, View
from neuralmark.structures.structure import HIDDEN, Attention, Group, Side, Structure

HEADS = (128, 64, 96, 80, 256, 32, 16, 8)
"""Usual sizes of heads."""
ROW_BY_ROW = 0
"""As many turns as there are rows."""


@dataclass(frozen=True)
class Cut:
    """How a fused tensor is cut: in which order its parts lie, and in how many turns."""

    order: tuple[int, ...]
    turns: int = 1


@dataclass(frozen=True)
class FusionKind:
    """What the fused tensors of several layers have in common."""

    axis: int
    """Along which they are fused."""
    lengths: tuple[int, ...]
    """Of the parts, along this axis."""
    width: int
    """Of the other axis."""
    turns: tuple[int, ...] = (1,)
    """In how many turns the parts may lie."""
    rigid: bool = False
    """Whether no channels can have been added or removed."""

    def fits(self, length: int) -> bool:
        """Whether a tensor of this length may hold them all."""
        whole = sum(self.lengths)
        near = 3 * whole <= 4 * length <= 6 * whole and not self.rigid
        cut = all(part * length % whole == 0 for part in self.lengths)
        return length == whole or (near and cut)

    def cuts(self) -> Iterator[Cut]:
        """All ways to cut them, the plainest first."""
        for order in permutations(range(len(self.lengths))):
            yield from (Cut(order, turns) for turns in self.turns)

    def parts(self, view: View, length: int, cut: Cut) -> tuple[View, ...]:
        """The parts of a tensor of this length; none where it has not so many turns."""
        parts = [part * length // sum(self.lengths) for part in self.lengths]
        turns = parts[0] if cut.turns == ROW_BY_ROW else cut.turns
        if any(part % turns for part in parts):
            return ()
        runs = [part // turns for part in parts]
        starts = dict(
            zip(cut.order, accumulate((runs[p] for p in cut.order), initial=0), strict=False)
        )
        return tuple(
            Taken(view, self.axis, starts[part], run, run if turns == 1 else sum(runs), turns)
            for part, run in enumerate(runs)
        )


@dataclass(frozen=True)
class Fusion:
    """Tensors of one layer that may have been fused."""

    names: tuple[str, ...]
    kind: FusionKind


def fusions_of(structure: Structure, shapes: Mapping[str, Shape]) -> list[Fusion]:
    """All that the map of a network knows: matrices that share what they read."""
    found = [_attention(layer, shapes) for layer in structure.attentions]
    found += [_hidden(group, shapes) for group in structure.groups if group.kind == HIDDEN]
    return [each for each in found if each is not None]


def _attention(layer: Attention, shapes: Mapping[str, Shape]) -> Fusion | None:
    sizes = [layer.size] if layer.size else [size for size in HEADS if layer.keys % size == 0]
    turns = dict.fromkeys((1, *(layer.keys // size for size in sizes)))
    sides = [layer.query[0], layer.key[0], layer.value[0]]
    return _fusion(sides, shapes, tuple(turns), rigid=True)


def _hidden(group: Group, shapes: Mapping[str, Shape]) -> Fusion | None:
    made = [side for producer in group.producers for side in producer.sides]
    matrices = [side for side in (*group.riders, *made) if len(shapes[side.tensor]) == 2]
    return _fusion(matrices, shapes, (1, ROW_BY_ROW), rigid=group.rigid)


def _fusion(
    sides: Sequence[Side], shapes: Mapping[str, Shape], turns: tuple[int, ...], *, rigid: bool
) -> Fusion | None:
    """Of tensors that lie alike; None where there is nothing to be fused."""
    names = tuple(side.tensor for side in sides)
    axes = {side.axis for side in sides}
    widths = {shapes[side.tensor][1 - side.axis] for side in sides}
    if len(set(names)) < max(2, len(names)) or len(axes) > 1 or len(widths) > 1:
        return None
    (axis,), (width,) = axes, widths
    lengths = tuple(shapes[name][axis] for name in names)
    return Fusion(names, FusionKind(axis, lengths, width, turns, rigid))
