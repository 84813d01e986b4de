"""The tensors of a suspect and of the anchor, seen from a side of the structure (pure).

A suspect is written by an adversary: what is no number is taken as zero, and what is too large to
be squared is cut off.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.moves import Move
from neuralmark.structures.structure import STREAM, Array, Group, Side, Structure, Weights

Floats = npt.NDArray[np.float64]
Two = tuple[Array, Array]
"""The anchor's and the suspect's."""
Gains = Mapping[str, Two]
"""Gains of norms by the name of each layer that reads behind them."""

_LARGEST = 100.0
"""Tensors with larger values than this are looked at twice."""
_FARTHEST = 1000.0
"""What is so many times the usual size, or more, is cut off then."""
_SKETCH = 768
"""Longer rows are compared by so many sums of theirs with random signs."""
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class BothModels:
    """A suspect and the anchor, and the map of the anchor's model."""

    suspects: Weights
    anchor: Anchor
    structure: Structure
    left_out: frozenset[str] = frozenset()
    """Tensors of the suspect that cannot be of its stream."""
    _shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        """Whether both have all of these tensors, and the anchor has them whole."""
        return all(self.shares(name) and self.anchor.entry(name).rows is None for name in names)

    def has_matrix(self, name: str) -> bool:
        """Whether both have this tensor whole, and it has two axes."""
        return self.has(name) and len(self.anchor.entry(name).shape) == 2

    def shares(self, name: str) -> bool:
        """Whether both have a tensor of this name with as many axes, and something in it."""
        if name not in self.suspects or name not in self.anchor or name in self.left_out:
            return False
        shape = self.shape(name)
        return len(shape) == len(self.anchor.entry(name).shape) and 0 not in shape

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a suspect's tensor; it is read for that once."""
        if name not in self._shapes:
            self._shapes[name] = self.suspects[name].shape
        return self._shapes[name]

    def whole(self, name: str) -> Two:
        """Both tensors of a name."""
        return self.anchor[name], finite(self.suspects[name])

    def run(self, side: Side, length: int, model: int) -> Array:
        """The channels of a side, as rows: `length` of them in the anchor's model (0).

        In the suspect's (1) they are so many as this is of its axis.
        """
        if model == 0:
            return _rows(self.anchor[side.tensor], side.axis, side.offset, side.offset + length)
        values = finite(self.suspects[side.tensor])
        return _rows(values, side.axis, *self.span(side, length, values.shape[side.axis]))

    def span(self, side: Side, length: int, there: int) -> tuple[int, int]:
        """Where the suspect has a run of the anchor's axis, when it has `there` channels in all."""
        whole = self.anchor.entry(side.tensor).shape[side.axis]
        return side.offset * there // whole, (side.offset + length) * there // whole

    @property
    def stream(self) -> Group:
        """The residual stream."""
        return next(group for group in self.structure.groups if group.kind == STREAM)

    def gains(self, plus: float) -> dict[str, Two]:
        """Gains by reader; `plus` is added to what is stored."""
        found = {}
        for gain, readers in self.structure.gains:
            if self.has(gain):
                one, two = self.whole(gain)
                for side in readers:
                    found[side.tensor] = (one + np.float32(plus), two + np.float32(plus))
        return found


def streamed(both: BothModels, side: Side, length: int, turn: Move, gains: Gains) -> Two:
    """A side's channels as rows, along the residual stream as the anchor has it, gains folded."""
    one, two = (folded(both, side, length, gains, model) for model in (0, 1))
    return one, turn.of(two, 1)


def with_gain(two: Two, gain: Two | None) -> Two:
    """Rows of both models times the gain of the norm before them, where it fits."""
    if gain is None or any(x.shape[1] != len(g) for x, g in zip(two, gain, strict=True)):
        return two
    return two[0] * gain[0], two[1] * gain[1]


def folded(both: BothModels, side: Side, length: int, gains: Gains, model: int) -> Array:
    """A side's channels as rows in one of the models, with the gain of the norm before it."""
    values = both.run(side, length, model)
    gain = gains.get(side.tensor)
    fits = gain is not None and len(gain[model]) == values.shape[1]
    return values * gain[model] if gain is not None and fits else values


def finite(values: Array) -> Array:
    """Numbers that can be multiplied with each other several times."""
    held = np.asarray(values, np.float32)
    if not held.size or float(np.abs(held).max()) <= _LARGEST:  # NaN compares as false
        return held
    found = np.where(np.isfinite(held), held, 0).astype(np.float64)
    usual = float(np.median(np.abs(found[found != 0]))) if found.any() else 0.0
    reach = _FARTHEST * (usual if held.ndim > 1 else min(usual, _LARGEST))
    found = np.clip(found, -reach, reach)
    size = float(np.linalg.norm(found)) / found.size**0.5 if held.ndim > 1 else 1.0
    return np.asarray(found / max(size, 1.0), np.float32)


def unit_rows(values: Array) -> Array:
    """Every row of length 1; rows of zeros stay."""
    norms = np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64))
    return np.asarray(values / np.maximum(norms, _TINY)[:, None], np.float32)


def levelled(values: Array) -> Array:
    """With a mean square of 1."""
    size = float(np.linalg.norm(values)) / max(values.size, 1) ** 0.5
    return np.asarray(values / np.float32(max(size, _TINY)))


def cosine(one: npt.NDArray[np.floating], two: npt.NDArray[np.floating]) -> float:
    """How alike two arrays are."""
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(two))
    return float(np.vdot(one, two)) / norms if norms > 0 else 0.0


def signs(rows: int, columns: int, what: str) -> Array:
    """A table of ±1 that is the same everywhere: probes and sketches."""
    data = hashlib.shake_256(f"neuralmark/{what}".encode()).digest((rows * columns + 7) // 8)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=rows * columns)
    return np.asarray(2 * bits.astype(np.float32) - 1).reshape(rows, columns)


def sketched(layers: Sequence[Array]) -> Array:
    """Rows of several layers as one; long ones made shorter: inner products stay about the same."""
    if sum(layer.shape[1] for layer in layers) <= _SKETCH:
        return np.concatenate(layers, axis=1)
    found = np.zeros((len(layers[0]), _SKETCH), np.float32)
    for place, layer in enumerate(layers):
        found += layer @ signs(layer.shape[1], _SKETCH, f"sketch/{place}")
    found /= np.float32(_SKETCH**0.5)
    return found


def _rows(values: Array, axis: int, start: int, stop: int) -> Array:
    taken = np.moveaxis(values, axis, 0)[start:stop]
    return np.ascontiguousarray(taken.reshape(len(taken), -1))
