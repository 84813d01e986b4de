"""The residual stream: how the suspect's becomes the anchor's (pure).

A stream between RMS norms may have been rotated; between layer norms its channels may have changed
places. Either way one matrix serves all tensors that touch it. It is found from what does not move
otherwise (embeddings, positions), and polished with everything that touches the stream, once the
other side of it is in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.aligning.assigning import matched
from neuralmark.anchors.aligning.sides import Both, Floats, Gains, Two
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.structures.structure import Array, Indices, Side

_LEAST = 0.02
"""Channels less alike than this are not the same."""
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Moments:
    """Products of the two streams, summed over rows that are known to belong together."""

    cross: Floats
    one: Floats
    two: Floats

    @classmethod
    def empty(cls, one: int, two: int) -> "Moments":
        """Nothing seen yet."""
        return cls(np.zeros((one, two)), np.zeros(one), np.zeros(two))

    def add(self, one: Array, two: Array) -> None:
        """Rows that belong together, the stream along axis 1; both brought to the same size."""
        sizes = [float(np.linalg.norm(x)) / max(x.size, 1) ** 0.5 for x in (one, two)]
        if min(sizes) < _TINY:
            return
        one, two = one / np.float32(sizes[0]), two / np.float32(sizes[1])
        self.cross[...] += one.T @ two
        self.one[...] += np.einsum("ij,ij->j", one, one)
        self.two[...] += np.einsum("ij,ij->j", two, two)

    def order(self) -> Move:
        """The signed permutation that suits them best."""
        alike = self.cross / np.maximum(np.sqrt(np.outer(self.one, self.two)), _TINY)
        index = matched(lambda rows: np.abs(alike[rows]), *alike.shape).index
        held = alike[np.arange(len(index)), np.maximum(index, 0)]
        index = np.where(np.abs(held) < _LEAST, MISSING, index)
        turned = (held < 0) & (index != MISSING)
        return Move(index, np.where(turned, -1, 1).astype(np.float32) if turned.any() else None)

    def rotation(self) -> Move:
        """The orthogonal matrix that suits them best (Procrustes)."""
        left, _, right = np.linalg.svd(self.cross, full_matrices=False)
        return Move(matrix=(left @ right).astype(np.float32)).rounded()


def fixed_rows(both: Both, tokens: Indices | None, gains: Gains) -> Iterator[Two]:
    """Rows along the stream that lie in the same place in both models, whatever was done inside.

    `tokens` says where the suspect has each token of the anchor; None: where the anchor has it.
    """
    vocabulary = both.structure.vocabulary
    scored = set() if vocabulary is None else vocabulary.tensors()
    for side in _outer(both):
        one, two = (_along(x, side) for x in both.whole(side.tensor))
        if side.tensor in gains:
            one, two = one * gains[side.tensor][0], two * gains[side.tensor][1]
        if side.tensor in scored:
            rows = both.anchor.entry(side.tensor).kept_rows
            place = rows if tokens is None else tokens[rows]
            there = (place != MISSING) & (place < len(two))
            yield one[there], two[place[there]]
        elif len(one) == len(two):
            yield one, two


def _outer(both: Both) -> Iterator[Side]:
    """Sides of the stream in tensors that touch nothing else that moves."""
    inner = set().union(*(layer.tensors() for layer in both.structure.attentions))
    stream = both.stream
    for group in both.structure.groups:
        inner |= group.tensors() if group is not stream else set()
    for side in stream.sides():
        name = side.tensor
        if name not in inner and name in both.suspects and name in both.anchor:
            shape = both.anchor.entry(name).shape
            if len(shape) > 1 and len(shape) == both.suspects[name].ndim:
                yield side


def _along(values: Array, side: Side) -> Array:
    """Rows along the stream."""
    last = np.moveaxis(values, side.axis, -1)
    return np.ascontiguousarray(last.reshape(-1, last.shape[-1]))
