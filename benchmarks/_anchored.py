"""What benchmarks of anchored marks share: networks in memory, marked and read with an anchor."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from neuralmark import Key, Parameters
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.descent import score_of
from neuralmark.anchors.effort import AlignOptions
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.originals import OriginalArrays
from neuralmark.anchors.restoring import restore
from neuralmark.checkpoints.readers.memory import MemoryCheckpoint
from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.imprint import LeastChange, goal_of
from neuralmark.core.key import Mark, Placement
from neuralmark.marking.anchored import read_restored
from neuralmark.marking.placement import auto, catalogue, placement_of
from neuralmark.marking.reading import require_carriers
from neuralmark.marking.verification import margins_of
from neuralmark.records import Alignment

Table = dict[str, npt.NDArray[np.float32]]


def key_of(number: int) -> Key:
    """The same key in every run: nothing here is protected."""
    secret = hashlib.sha256(f"neuralmark benchmarks anchored {number}".encode()).digest()
    return Key(Parameters(), b"", salt=hashlib.sha256(secret).digest(), secret=secret)


def resnet(data: Path, depth: int) -> Table:
    """A published CIFAR-10 ResNet."""
    path = next((data / "weights").glob(f"*resnet{depth}*.th"))
    state = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
    return {n.removeprefix("module."): v.numpy().astype(np.float32) for n, v in state.items()}


@dataclass(frozen=True, eq=False)
class MarkedTable:
    """A network in memory, its anchor, and a key's mark in it."""

    original: Table
    key: Key
    heads: int = 0
    strength: float = 1.0

    @cached_property
    def placement(self) -> Placement:
        """What `auto` marks."""
        known = catalogue(MemoryCheckpoint(self.original))
        return placement_of(auto(known, self.key.parameters).tensors)

    @cached_property
    def anchor(self) -> Anchor:
        """Of the network before it is marked."""
        recipe = AnchorRecipe(self.placement, self.heads)
        return build(OriginalArrays(self.original), recipe)

    @cached_property
    def mark(self) -> Mark:
        """Bound to the anchor."""
        return self.key.at(self.placement, self.anchor.digest)

    @cached_property
    def carriers(self) -> Carriers:
        """Of the mark."""
        return require_carriers(self.mark, self.placement)

    @cached_property
    def table(self) -> Table:
        """The network with the least mark of this strength."""
        flat = joined(self.original, self.placement)
        at = self.carriers.positions(0, self.carriers.size)
        pooled = readout.pool(flat[at], self.carriers.pools)
        shift = LeastChange(self.mark).change(pooled, goal_of(pooled, self.strength))
        flat[at] += self.carriers.spread(shift, 0, len(at))
        return self.original | parted(flat, self.placement)

    def by_position(self, suspect: Mapping[str, npt.NDArray[np.float32]]) -> int | None:
        """Bits read where they were written; None where the tensors have other shapes."""
        if any(n not in suspect or suspect[n].shape != s for n, s in self.placement):
            return None
        flat = joined(suspect, self.placement)
        pooled = readout.pool(
            flat[self.carriers.positions(0, self.carriers.size)], self.carriers.pools
        )
        return matched(self.mark, pooled)

    def aligned(self, suspect: Table, options: AlignOptions | None = None) -> "Aligned":
        """Bits read after alignment, what was found, and how long it took."""
        begun = time.perf_counter()
        restoration = restore(TableWeights(suspect), self.anchor, options)
        reading = read_restored(restoration, self.carriers)
        spent = time.perf_counter() - begun
        score = score_of(restoration.kinships())
        return Aligned(matched(self.mark, reading.pooled), restoration.record(), spent, score)


@dataclass(frozen=True)
class Aligned:
    """What reading aligned gave."""

    bits: int
    record: Alignment
    seconds: float
    lineage: float | None
    """As the verdict has it."""


def matched(mark: Mark, pooled: npt.NDArray[np.float64]) -> int:
    """How many bits match."""
    return int((margins_of(mark, pooled) > 0).sum())


def joined(
    table: Mapping[str, npt.NDArray[np.float32]], placement: Placement
) -> npt.NDArray[np.float64]:
    """Marked tensors end to end."""
    return np.concatenate([table[name].reshape(-1) for name, _ in placement]).astype(np.float64)


def parted(flat: npt.NDArray[np.float64], placement: Placement) -> Table:
    """The other way round."""
    out, at = {}, 0
    for name, shape in placement:
        size = int(np.prod(shape))
        out[name] = flat[at : at + size].reshape(shape).astype(np.float32)
        at += size
    return out


def restored_flat(marked: MarkedTable, suspect: Table) -> npt.NDArray[np.float64]:
    """All weights of a suspect in the anchor's coordinates, as they are read: for many secrets."""
    from neuralmark.marking.anchored import restored_weights

    return restored_weights(restore(TableWeights(suspect), marked.anchor))
