"""Hidden channels of an MLP, by all layers that touch them together (pure).

Along the stream, which is the anchor's already, a channel is a row of every layer around it. Gates
keep sign and size; what lies between linear layers may have factors, the inverse behind. Channels
that were split are joined first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from neuralmark.anchors.aligning.assigning import matched, require_within
from neuralmark.anchors.aligning.contract import FLIPPED, JOINED
from neuralmark.anchors.aligning.joining import Joints, joints_of
from neuralmark.anchors.aligning.quieting import quieted
from neuralmark.anchors.aligning.sides import (
    BothModels,
    Floats,
    Gains,
    Two,
    sketched,
    streamed,
    unit_rows,
)
from neuralmark.anchors.factors import RESCALED
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.structures.structure import LINEAR, RELU, Array, Group, Indices, Side

MAKER, HELD, READER = "maker", "held", "reader"
ROLES = (MAKER, HELD, READER)

_LEAST = 0.12
"""Channels less alike than this are not the same."""
_COPY = 0.995
"""Channels of the suspect more alike than this are parts of one."""
_LARGEST = 16384
"""Beyond so many channels no parts are looked for."""
_REACH = 12.0
"""Factors beyond e^±this are none."""
_EQUAL = 0.05
"""Factors within e^±this of 1 are noise."""
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class HiddenMoves:
    """Where hidden channels lie in the suspect, by the role of a layer."""

    moves: dict[str, Move]
    changes: frozenset[str] = frozenset()
    likeness: float = 0.0
    """Of the channels, on average over all layers."""


@dataclass(frozen=True, eq=False)
class _HiddenLayer:
    """One layer around the channels, as rows along the stream."""

    role: str
    two: Two


def sides_of(group: Group) -> dict[str, list[Side]]:
    """The layers around a group's channels, by their role."""
    made = [side for producer in group.producers for side in producer.sides]
    return {MAKER: made, HELD: list(group.riders), READER: list(group.consumers)}


def align_hidden(
    both: BothModels, group: Group, turn: Move, gains: Gains, limit: int, *, quiet: bool = False
) -> HiddenMoves | None:
    """The order of a group's channels, and their factors; None where nothing is there to tell."""
    stream = both.stream.tensors()
    layers = [
        _HiddenLayer(role, streamed(both, side, group.size, turn, gains))
        for role, sides in sides_of(group).items()
        for side in sides
        if side.tensor in stream and both.has_matrix(side.tensor)
    ]
    counts = {tuple(len(x) for x in layer.two) for layer in layers}
    if len(counts) != 1:
        return None
    ((one, two),) = counts
    require_within(one, two, limit)
    return _ordered(_quiet(layers) if quiet else layers, group)


def _quiet(layers: list[_HiddenLayer]) -> list[_HiddenLayer]:
    """The same layers without directions that are far too loud."""
    made: dict[int, Two] = {}
    for roles in ((MAKER, HELD), (READER,)):
        places = [place for place, layer in enumerate(layers) if layer.role in roles]
        made |= zip(places, quieted([layers[place].two for place in places]), strict=True)
    return [replace(layer, two=made[place]) for place, layer in enumerate(layers)]


def _ordered(layers: list[_HiddenLayer], group: Group) -> HiddenMoves:
    """The order that makes these layers likest."""
    one, two = (len(rows) for rows in layers[0].two)
    signed = group.activation == LINEAR
    joints, summed = _splits(layers, signed=signed) if one < two <= _LARGEST else (None, READER)
    layers = layers if joints is None else _joined(layers, joints, summed)
    index = matched(_likeness(layers, signed=signed), one, len(layers[0].two[1])).index
    return _moves(layers, index, group.activation, joints, summed)


def _splits(layers: list[_HiddenLayer], *, signed: bool) -> tuple[Joints | None, str]:
    """Channels of the suspect that are parts of one, and which layers have to be summed.

    Parts have the same gate, and either what makes them or what reads them is proportional.
    """
    best: tuple[Joints | None, str] = (None, READER)
    gate = [layer.two[1] for layer in layers if layer.role == HELD]
    for proportional, summed in ((MAKER, READER), (READER, MAKER)):
        rows = [layer.two[1] for layer in layers if layer.role == proportional]
        if not rows or (summed == MAKER and not (gate and signed)):
            continue
        alike = _self_likeness(rows, signed=signed)
        if gate:
            alike = np.minimum(alike, _self_likeness(gate, signed=False))
        found = joints_of(np.concatenate(rows, axis=1), alike, _COPY)
        if found is not None and (best[0] is None or found.parts > best[0].parts):
            best = (found, summed)
    return best


def _self_likeness(rows: Sequence[Array], *, signed: bool) -> Array:
    units = unit_rows(sketched(rows))
    alike = units @ units.T
    return np.asarray(np.abs(alike) if signed else alike)


def _joined(layers: list[_HiddenLayer], joints: Joints, summed: str) -> list[_HiddenLayer]:
    made = []
    for layer in layers:
        one, two = layer.two
        two = joints.summed(two, 0) if layer.role == summed else joints.kept(two, 0)
        made.append(replace(layer, two=(one, two)))
    return made


def _likeness(layers: list[_HiddenLayer], *, signed: bool) -> Callable[[Indices], Array]:
    """How alike channels are: cosines of all layers, those that may turn together as one."""
    held = [layer.two for layer in layers if layer.role == HELD or not signed]
    free = [layer.two for layer in layers if layer.role != HELD and signed]
    sets = [
        ([sketched([unit_rows(two[i]) for two in chosen]) for i in (0, 1)], turns)
        for chosen, turns in ((held, False), (free, True))
        if chosen
    ]
    scale = np.float32(1 / len(layers))

    def blocks(chosen: Indices) -> Array:
        total = np.zeros((len(chosen), len(layers[0].two[1])), np.float32)
        for (one, two), turns in sets:
            alike = one[chosen] @ two.T
            total += np.abs(alike) if turns else alike
        return total * scale

    return blocks


@dataclass(frozen=True, eq=False)
class _Products:
    """Of the matched channels in layers of one role, summed over these."""

    cosines: Floats
    layers: int
    inner: Floats
    squares: Floats
    """Of the suspect's."""

    @classmethod
    def of(cls, layers: list[_HiddenLayer], index: Indices, role: str) -> "_Products":
        size = len(index)
        cosines, inner, squares = (np.zeros(size) for _ in range(3))
        chosen = [layer.two for layer in layers if layer.role == role]
        for one, there in chosen:
            two = there[np.maximum(index, 0)]
            along = np.einsum("ij,ij->i", one, two, dtype=np.float64)
            sizes = [np.einsum("ij,ij->i", x, x, dtype=np.float64) for x in (one, two)]
            cosines += along / np.maximum(np.sqrt(sizes[0] * sizes[1]), _TINY)
            inner += along
            squares += sizes[1]
        return cls(cosines, len(chosen), inner, squares)

    @property
    def logs(self) -> Floats:
        """Logarithms of the factors by regression; none where there are no layers."""
        ratio = np.abs(self.inner) / np.maximum(self.squares, _TINY)
        return np.asarray(np.log(np.maximum(ratio, _TINY)) * bool(self.layers))


def _moves(
    layers: list[_HiddenLayer],
    index: Indices,
    activation: str,
    joints: Joints | None,
    summed: str,
) -> HiddenMoves:
    """The moves, with factors where the activation lets them pass."""
    products = {role: _Products.of(layers, index, role) for role in ROLES}
    made, read = products[MAKER], products[READER]
    free = made.cosines + read.cosines
    free = np.abs(free) if activation == LINEAR else free
    least = _LEAST * sum(each.layers for each in products.values())
    index = np.where(products[HELD].cosines + free < least, MISSING, index)
    factor, changes = _factors(made, read, index, activation)
    changes |= {JOINED} if joints is not None else set()
    factors = {MAKER: factor, HELD: None, READER: None if factor is None else 1 / factor}
    moves = {}
    for role in ROLES:
        also = joints.others(index) if joints is not None and role == summed else []
        moves[role] = _move(index, factors[role], joints, also)
    alike = (products[HELD].cosines + free)[index != MISSING].sum()
    count = len(index) * sum(each.layers for each in products.values())
    return HiddenMoves(moves, frozenset(changes), float(alike) / max(count, 1))


def _move(
    index: Indices,
    factor: Floats | None,
    joints: Joints | None,
    also: Sequence[tuple[Indices, npt.NDArray[np.floating]]],
) -> Move:
    """A gather, and what is added to it."""
    places = index if joints is None else joints.places(index)
    size = np.ones(len(index)) if factor is None else factor
    more = tuple(Move(at, (share * size).astype(np.float32)) for at, share in also)
    return Move(places, None if factor is None else factor.astype(np.float32), also=more).rounded()


def _factors(
    made: _Products, read: _Products, index: Indices, activation: str
) -> tuple[Floats | None, set[str]]:
    """What makes a channel is multiplied by its factor, what reads it divided; None: by 1.

    Each by regression on the anchor; damage draws both in alike, so their ratio is not biased.
    """
    if activation not in (LINEAR, RELU):
        return None, set()
    logs = (made.logs - read.logs) / max(bool(made.layers) + bool(read.layers), 1)
    there = index != MISSING
    turned = (made.cosines + read.cosines < 0) & (activation == LINEAR)
    changes = {FLIPPED} if turned[there].any() else set()
    sign = np.where(turned, -1.0, 1.0)
    if there.any() and np.quantile(np.abs(logs[there]), 0.9) > _EQUAL:
        return sign * np.exp(np.clip(logs, -_REACH, _REACH)), changes | {RESCALED}
    return (sign if changes else None), changes
