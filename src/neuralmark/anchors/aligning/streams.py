"""The residual stream: how the suspect's becomes the anchor's (pure).

A stream between RMS norms may have been rotated; between layer norms its channels may have changed
places. Either way one matrix serves all tensors that touch it. It is found from what does not move
otherwise (embeddings, positions), and polished with everything that touches the stream, once the
other side of it is in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from neuralmark.anchors.aligning.assigning import matched
from neuralmark.anchors.aligning.sides import BothModels, Floats, Gains, Two, with_gain
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.structures.structure import Array, Indices, Side

_LEAST = 0.02
"""Channels less alike than this are not the same."""
_CHANCE = 6.0
"""What is no more alike than this many deviations of chance is not matched channel by channel."""
_FLAT = 1e-14
_BLOCK = 4096
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Moments:
    """Products of the two streams, summed over rows that are known to belong together."""

    cross: Floats
    one: Floats
    two: Floats
    rows: list[int] = field(default_factory=list)

    @classmethod
    def empty(cls, one: int, two: int) -> "Moments":
        """Nothing seen yet."""
        return cls(np.zeros((one, two)), np.zeros(one), np.zeros(two))

    def add(self, one: Array, two: Array) -> None:
        """Rows that belong together, the stream along axis 1; both brought to the same size."""
        sizes = [_size(x) for x in (one, two)]
        if min(sizes) < _TINY:
            return
        self.rows.append(len(one))
        for at in range(0, len(one), _BLOCK):  # in float64: another BLAS finds the same rotation
            a = one[at : at + _BLOCK].astype(np.float64) / sizes[0]
            b = two[at : at + _BLOCK].astype(np.float64) / sizes[1]
            self.cross[...] += a.T @ b
            self.one[...] += np.einsum("ij,ij->j", a, a)
            self.two[...] += np.einsum("ij,ij->j", b, b)

    def fit(self, turn: Move) -> float:
        """How alike the rows are under a turn: the cosine of all of them together."""
        size = float(np.sqrt(self.one.sum() * self.two.sum()))
        along = turn.of(self.cross.astype(np.float32), 1) if turn.size == len(self.one) else None
        return 0.0 if along is None or size < _TINY else float(np.trace(along)) / size

    def turns(self) -> Iterator[Move]:
        """What the suspect's stream may have been through; nothing where nothing was seen."""
        if not self.rows:
            return
        alike = self.cross / np.maximum(np.sqrt(np.outer(self.one, self.two)), _TINY)
        usual = float(np.median(np.abs(alike).max(axis=1)))
        if usual > _CHANCE / sum(self.rows) ** 0.5:  # else the channels are mixed, or others
            yield self._order(alike)
        yield self._rotation()

    def _order(self, alike: Floats) -> Move:
        """The signed permutation that suits them best."""
        index = matched(lambda rows: np.abs(alike[rows]), *alike.shape).index
        held = alike[np.arange(len(index)), np.maximum(index, 0)]
        index = np.where(np.abs(held) < _LEAST, MISSING, index)
        turned = (held < 0) & (index != MISSING)
        return Move(index, np.where(turned, -1, 1).astype(np.float32) if turned.any() else None)

    def _rotation(self) -> Move:
        """The orthogonal matrix that suits them best (Procrustes)."""
        return Move(matrix=nearest_rotation(self.cross).astype(np.float32)).rounded()


def _size(values: Array) -> float:
    """The root of the mean square, summed in float64."""
    energy = float(np.einsum("ij,ij->i", values, values, dtype=np.float64).sum())
    return float(np.sqrt(energy / max(values.size, 1)))


def nearest_rotation(matrix: Floats) -> Floats:
    """The orthogonal matrix that is most like this one."""
    if matrix.shape[0] != matrix.shape[1]:
        left, _, right = np.linalg.svd(matrix, full_matrices=False)
        return np.asarray(left @ right)
    square, turn = np.linalg.eigh(matrix.T @ matrix)  # faster than a decomposition of the matrix
    root = np.sqrt(np.maximum(square, _FLAT * max(float(square[-1]), _TINY)))
    found = (matrix @ turn / root) @ turn.T
    return np.asarray(1.5 * found - 0.5 * found @ (found.T @ found))


def fixed_rows(both: BothModels, tokens: Indices | None, gains: Gains) -> Iterator[Two]:
    """Rows along the stream that lie in the same place in both models, whatever was done inside.

    `tokens` says where the suspect has each token of the anchor; None: where the anchor has it.
    """
    vocabulary = both.structure.vocabulary
    scored = set() if vocabulary is None else vocabulary.tensors()
    for side in _outer(both):
        one, two = (_along(x, side) for x in both.whole(side.tensor))
        one, two = with_gain((one, two), gains.get(side.tensor))
        if side.tensor in scored:
            rows = both.anchor.entry(side.tensor).kept_rows
            place = rows if tokens is None else tokens[rows]
            there = (place != MISSING) & (place < len(two))
            yield one[there], two[place[there]]
        elif len(one) == len(two):
            yield one, two


def _outer(both: BothModels) -> Iterator[Side]:
    """Sides of the stream in tensors that touch nothing else that moves."""
    inner = set().union(*(layer.tensors() for layer in both.structure.attentions))
    stream = both.stream
    for group in both.structure.groups:
        inner |= group.tensors() if group is not stream else set()
    for side in stream.sides():
        name = side.tensor
        if name not in inner and both.shares(name) and len(both.anchor.entry(name).shape) > 1:
            yield side


def _along(values: Array, side: Side) -> Array:
    """Rows along the stream."""
    last = np.moveaxis(values, side.axis, -1)
    return np.ascontiguousarray(last.reshape(-1, last.shape[-1]))
