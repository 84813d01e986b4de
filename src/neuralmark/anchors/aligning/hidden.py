"""Hidden channels of an MLP, by all layers that touch them together (pure).

Along the stream, which is the anchor's already, a channel is a row of every layer around it. Gates
keep sign and size; what lies between linear layers may have factors, the inverse behind.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.aligning.assigning import matched, require_within
from neuralmark.anchors.aligning.sides import Both, Floats, Gains, Two, signs, streamed, unit_rows
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.structures.structure import LINEAR, RELU, Array, Group, Indices, Side

_SKETCH = 768
"""Longer rows are compared by so many sums of theirs with random signs."""
_LEAST = 0.12
_REACH = 12.0
"""Factors beyond e^±this are none."""
_EQUAL = 0.05
"""Factors within e^±this of 1 are noise."""
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Channels:
    """Where hidden channels lie in the suspect."""

    makers: Move
    held: Move
    """Of gates and other layers without factors."""
    readers: Move
    changes: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class _Layer:
    """One layer around the channels, as rows along the stream."""

    role: str
    two: Two


MAKER, HELD, READER = "maker", "held", "reader"


def align_hidden(both: Both, group: Group, turn: Move, gains: Gains, limit: int) -> Channels | None:
    """The order of a group's channels, and their factors; None where nothing is there to tell."""
    layers = [
        _Layer(role, streamed(both, side, group.size, turn, gains))
        for role, sides in _sides(group).items()
        for side in sides
        if both.has(side.tensor) and len(both.anchor.entry(side.tensor).shape) == 2
    ]
    counts = {tuple(len(x) for x in layer.two) for layer in layers}
    if len(counts) != 1:
        return None
    ((one, two),) = counts
    require_within(one, two, limit)
    signed = group.activation == LINEAR
    index = matched(_likeness(layers, signed=signed), one, two).index
    return _channels(layers, index, group.activation)


def _sides(group: Group) -> dict[str, list[Side]]:
    made = [side for producer in group.producers for side in producer.sides]
    return {MAKER: made, HELD: list(group.riders), READER: list(group.consumers)}


def _likeness(layers: list[_Layer], *, signed: bool) -> Callable[[Indices], Array]:
    """How alike channels are: cosines of all layers, those that may turn together as one."""
    held = [layer.two for layer in layers if layer.role == HELD or not signed]
    free = [layer.two for layer in layers if layer.role != HELD and signed]
    sets = [_combined(chosen) for chosen in (held, free) if chosen]
    scale = np.float32(1 / len(layers))

    def blocks(chosen: Indices) -> Array:
        total = np.zeros((len(chosen), len(layers[0].two[1])), np.float32)
        for place, (one, two) in enumerate(sets):
            alike = one[chosen] @ two.T
            total += np.abs(alike) if free and place == len(sets) - 1 else alike
        return total * scale

    return blocks


def _combined(layers: list[Two]) -> Two:
    """Rows of several layers as one, each of length 1, in a shorter form."""
    one, two = (np.concatenate([unit_rows(x[i]) for x in layers], axis=1) for i in (0, 1))
    return sketched(one), sketched(two)


def sketched(values: Array) -> Array:
    """Long rows made shorter, so that inner products stay about what they were."""
    if values.shape[1] <= _SKETCH:
        return values
    return values @ (signs(values.shape[1], _SKETCH, "sketch") / np.float32(_SKETCH**0.5))


def _channels(layers: list[_Layer], index: Indices, activation: str) -> Channels:
    """The moves, with factors where the activation lets them pass."""
    products = {role: _products(layers, index, role) for role in (MAKER, HELD, READER)}
    inner = sum(x[0] for x in products.values())
    norms = sum(x[1] for x in products.values())
    free = activation in (LINEAR, RELU)
    made, read = products[MAKER], products[READER]
    alike = inner
    if activation == LINEAR:
        alike = products[HELD][0] + np.abs(made[0] + read[0])
    index = np.where(alike < _LEAST * norms, MISSING, index)
    factor = _factors(made, read, signed=activation == LINEAR) if free else None
    changes = set()
    if factor is not None:
        there = index != MISSING
        changes |= {"rescaled"} if _varies(np.abs(factor[there])) else set()
        changes |= {"flipped"} if (factor[there] < 0).any() else set()
        if not changes:
            factor = None
        elif changes == {"flipped"}:
            factor = np.sign(factor)
    inverse = None if factor is None else (1 / factor).astype(np.float32)
    ahead = None if factor is None else factor.astype(np.float32)
    return Channels(Move(index, ahead), Move(index), Move(index, inverse), frozenset(changes))


def _products(
    layers: list[_Layer], index: Indices, role: str
) -> tuple[Floats, Floats, Floats, Floats]:
    """Cosines summed, how many, and the logarithms' two parts: inner products and squares."""
    size = len(index)
    cosines, count = np.zeros(size), np.zeros(size)
    inner, square = np.zeros(size), np.zeros(size)
    for layer in layers:
        if layer.role != role:
            continue
        one, two = layer.two[0], layer.two[1][np.maximum(index, 0)]
        along = np.einsum("ij,ij->i", one, two, dtype=np.float64)
        sizes = [np.einsum("ij,ij->i", x, x, dtype=np.float64) for x in (one, two)]
        cosines += along / np.maximum(np.sqrt(sizes[0] * sizes[1]), _TINY)
        count += 1
        inner += along
        square += sizes[1]
    return cosines, count, inner, square


def _factors(
    made: tuple[Floats, Floats, Floats, Floats],
    read: tuple[Floats, Floats, Floats, Floats],
    *,
    signed: bool,
) -> Floats:
    """What makes a channel is multiplied by its factor, what reads it divided.

    Each by regression on the anchor; damage draws both in alike, so their ratio is not biased.
    """
    logs = np.zeros(len(made[0]))
    for part, way in ((made, 1.0), (read, -1.0)):
        ratio = np.abs(part[2]) / np.maximum(part[3], _TINY)
        logs += way * np.log(np.maximum(ratio, _TINY)) * (part[1] > 0)
    logs /= np.maximum((made[1] > 0).astype(float) + (read[1] > 0), 1)
    sign = np.where(made[0] + read[0] < 0, -1.0, 1.0) if signed else 1.0
    return np.asarray(sign * np.exp(np.clip(logs, -_REACH, _REACH)))


def _varies(factors: Floats) -> bool:
    """Whether factors are more than noise: a tenth of them is off."""
    return bool(len(factors)) and bool(np.quantile(np.abs(np.log(factors)), 0.9) > _EQUAL)
