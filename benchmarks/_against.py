"""Tensors with a mark that is bound to their coarse copies, and the mark read in both ways."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from neuralmark import Key, Parameters
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.cleaning import weigh
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.originals import OriginalArrays
from neuralmark.anchors.restoring import RestoredTensor, restore
from neuralmark.core.carriers import Carriers
from neuralmark.core.imprint import LeastChange, goal_of
from neuralmark.core.key import Mark, Placement

Array = npt.NDArray[np.float32]
Tensors = Mapping[str, Array]
BITS = 4


def coarse(weights: Array, bits: int = BITS) -> Array:
    """A copy of a few bits a weight, one float16 scale a row."""
    rows = weights.reshape(len(weights), -1)
    top = (1 << (bits - 1)) - 1
    scale = (np.abs(rows).max(axis=1, keepdims=True) / top).astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint(rows / np.where(scale > 0, scale, 1)), -top, top)
    return np.asarray(codes * scale, np.float32).reshape(weights.shape)


@dataclass(frozen=True)
class Reading:
    """The bits of one suspect, by position and against the anchor."""

    plain: int
    cleaned: int
    parts: dict[str, RestoredTensor] = field(repr=False)
    weights: Tensors = field(repr=False)
    """What was read against the anchor."""

    @property
    def share(self) -> float:
        """Of all weights and directions, how much was not trusted."""
        sizes = [part.fill.size for part in self.parts.values()]
        return float(np.average([part.share for part in self.parts.values()], weights=sizes))

    @property
    def told(self) -> str:
        """What the largest tensor's notes begin with."""
        notes = max(self.parts.values(), key=lambda part: part.fill.size).notes
        return "; ".join(notes[:-1])


@dataclass(frozen=True)
class Anchored:
    """A mark in tensors, and their anchors."""

    marked: Tensors
    anchor: Anchor
    placement: Placement
    digest: bytes
    mark: Mark = field(repr=False)
    change: float
    """Of the weights, relative."""

    @classmethod
    def of(cls, weights: Tensors, number: int, strength: float, bits: int = BITS) -> "Anchored":
        """Write the mark of the benchmark's key with this number."""
        placement = tuple((name, value.shape) for name, value in weights.items())
        anchor = build(OriginalArrays(weights), AnchorRecipe(placement, 0, bits))
        digest = anchor.digest
        mark = key_of(number).at(placement, digest)
        flat = laid(weights)
        carriers = Carriers.of(mark, flat.size)
        pooled = _pooled(flat, carriers)
        change = LeastChange(mark).change(pooled, goal_of(pooled, strength))
        moved = flat.copy()
        moved[carriers.positions()] += np.tile(change, carriers.per_pool).astype(np.float32)
        relative = float(np.linalg.norm(moved - flat) / np.linalg.norm(flat))
        ends = np.cumsum([value.size for value in weights.values()])[:-1]
        pieces = zip(np.split(moved, ends), weights.items(), strict=True)
        marked = {name: piece.reshape(value.shape) for piece, (name, value) in pieces}
        return cls(marked, anchor, placement, digest, mark, relative)

    def bits(self, weights: Tensors, mark: Mark | None = None) -> int:
        """How many bits match as they are."""
        mark = mark or self.mark
        flat = laid({name: weights[name] for name, _ in self.placement})
        pooled = _pooled(flat, Carriers.of(mark, flat.size))
        return int((pooled @ mark.matrix.astype(np.float64) * mark.signs > 0).sum())

    def read(self, suspect: Tensors) -> Reading:
        """By position, and against the anchor."""
        found = restore(TableWeights(suspect), self.anchor)
        parts = {entry.name: part for entry, part in found.tensors()}
        factors = weigh([part.trust for part in parts.values()])
        read = {
            name: part.fill
            if part.kept is None
            else np.asarray(part.fill + np.float32(factor) * part.kept)
            for (name, part), factor in zip(parts.items(), factors, strict=True)
        }
        return Reading(self.bits(suspect), self.bits(read), parts, read)

    def by_others(self, weights: Tensors, count: int) -> npt.NDArray[np.int64]:
        """Matching bits of other secrets, bound to the same anchor."""
        numbers = range(10_000, 10_000 + count)
        marks = (key_of(number).at(self.placement, self.digest) for number in numbers)
        return np.array([self.bits(weights, mark) for mark in marks])


def everything(anchor: Array) -> Sequence[npt.NDArray[np.bool_]]:
    """All rows and columns are there."""
    return [np.ones(size, np.bool_) for size in anchor.shape[:2]]


def key_of(number: int) -> Key:
    """The same key in every run: nothing here is protected."""
    secret = hashlib.sha256(f"neuralmark against the anchor {number}".encode()).digest()
    return Key(Parameters(), b"", salt=hashlib.sha256(secret).digest(), secret=secret)


def laid(weights: Tensors) -> Array:
    """All tensors end to end."""
    return np.concatenate([np.asarray(value, np.float32).reshape(-1) for value in weights.values()])


def _pooled(flat: Array, carriers: Carriers) -> npt.NDArray[np.float64]:
    sums = np.zeros(carriers.pools)
    carriers.sum_into(sums, 0, flat[carriers.positions()])
    return sums / carriers.per_pool
