"""The tensors of a suspect and of the anchor, seen from a side of the structure (pure).

A suspect is written by an adversary: what is no number is taken as zero, and what is too large to
be squared is cut off.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

_LARGEST = 1e12
_SKETCH = 768
"""Longer rows are compared by so many sums of theirs with random signs."""
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class BothModels:
    """A suspect and the anchor, and the map of the anchor's model."""

    suspects: Weights
    anchor: Anchor
    structure: Structure

    def has(self, *names: str) -> bool:
        """Whether both have all of these tensors, and the anchor has them whole."""
        return all(
            name in self.suspects and name in self.anchor and self.anchor.entry(name).rows is None
            for name in names
        )

    def whole(self, name: str) -> Two:
        """BothModels tensors of a name."""
        return self.anchor[name], finite(self.suspects[name])

    def run(self, side: Side, length: int) -> Two:
        """The channels of a side, as rows; `length` of them, or the suspect's share of its axis."""
        one, two = self.whole(side.tensor)
        start, stop = side.offset, side.offset + length
        return (
            _rows(one, side.axis, start, stop),
            _rows(two, side.axis, *self.span(side, length, two.shape[side.axis])),
        )

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
    one, two = both.run(side, length)
    if side.tensor in gains:
        one, two = _folded(one, gains[side.tensor][0]), _folded(two, gains[side.tensor][1])
    return one, turn.of(two, 1)


def finite(values: Array) -> Array:
    """Numbers that can be multiplied with each other."""
    held = np.asarray(values, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.vdot(held, held)):
            return held
    return np.clip(np.nan_to_num(held, nan=0.0), -_LARGEST, _LARGEST).astype(np.float32)


def unit_rows(values: Array) -> Array:
    """Every row of length 1; rows of zeros stay."""
    norms = np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64))
    return np.asarray(values / np.maximum(norms, _TINY)[:, None], np.float32)


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


def _folded(values: Array, gain: Array) -> Array:
    """Times the gain, where it has the length for it."""
    return values * gain if values.shape[1] == len(gain) else values
