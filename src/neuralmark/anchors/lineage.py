"""How alike two models are, tensor by tensor, once the second is put into the first's order.

The first model stands in for an anchor. An alignment finds some likeness in anything: how much, the
same procedure tells on the second model's own values in random order. What is above that counts.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping

import numpy as np

from neuralmark.anchors.anchor import MARKED, PARTNER, Anchor, AnchorEntry, Skeleton
from neuralmark.anchors.effort import AlignOptions
from neuralmark.anchors.locating.suspect import Shape, SuspectWeights, TableWeights
from neuralmark.anchors.restoring import Progress, restore
from neuralmark.core.names import canonical_name
from neuralmark.records.lineage import Kinship
from neuralmark.structures.structure import Array, Indices

LEAST_SIZE = 1000
"""Smaller tensors are not compared, nor are vectors: a norm's weights are alike in all models."""


def kinships(
    model: SuspectWeights,
    skeleton: Skeleton,
    other: SuspectWeights,
    options: AlignOptions | None = None,
    progress: Progress | None = None,
) -> tuple[tuple[Kinship, ...], float]:
    """What in the other model is most like each tensor of the first; and how long it took."""
    begun = time.monotonic()
    anchor = standing_in(model, skeleton)
    found = restore(other, anchor, options, progress)
    sizes = [int(np.prod(entry.shape)) for entry, _ in found.tensors()]
    fates = found.record().tensors
    chances = [0.0] * len(fates)
    if any(fate.changes for fate in fates):
        luck = restore(ShuffledWeights(other), anchor, options, progress)
        for _ in luck.tensors():
            pass
        chances = [max(0.0, fate.restored) for fate in luck.record().tensors]
    rows = zip(fates, sizes, chances, strict=True)
    told = tuple(Kinship(fate, size, min(chance, 0.999)) for fate, size, chance in rows)
    return told, round(time.monotonic() - begun, 1)


def standing_in(model: SuspectWeights, skeleton: Skeleton) -> Anchor:
    """A model as an anchor: all its weights, as they are."""
    stored = {name: _stored(model, name) for name, _ in skeleton.shapes}
    entries = tuple(
        AnchorEntry(
            name,
            shape,
            MARKED if len(shape) > 1 and int(np.prod(shape)) >= LEAST_SIZE else PARTNER,
        )
        for name, shape in skeleton.shapes
        if stored[name] is not None
    )

    def decode(entry: AnchorEntry, rows: Indices | None) -> Array:
        place = stored[entry.name]
        assert place is not None
        return model[place] if rows is None else model[place][rows]

    return Anchor(entries, skeleton, b"", decode)


def _stored(model: SuspectWeights, name: str) -> str | None:
    """The stored name of a canonical one."""
    if name in model.shapes:
        return name
    return next((each for each in model.shapes if canonical_name(each) == name), None)


class ShuffledWeights(Mapping[str, Array]):
    """A model with the values of each tensor in random order: like it in nothing but size."""

    def __init__(self, weights: SuspectWeights) -> None:
        """Of any weights."""
        self._weights = weights
        self.shapes: Mapping[str, Shape] = weights.shapes

    def __getitem__(self, name: str) -> Array:
        """A whole tensor."""
        values = self._weights[name].reshape(-1)
        seed = int.from_bytes(
            hashlib.sha256(name.encode("utf-8", "replace")).digest()[:8], "little"
        )
        order = np.random.default_rng(seed).permutation(len(values))
        return np.asarray(values[order].reshape(self.shapes[name]))

    def __iter__(self) -> Iterator[str]:
        """Stored names."""
        return iter(self.shapes)

    def __len__(self) -> int:
        """How many tensors there are."""
        return len(self.shapes)

    def read_rows(self, name: str, rows: Indices, axes: int = 1) -> Array:
        """Some rows of a tensor; `axes` leading axes are counted as one."""
        return TableWeights({name: self[name]}).read_rows(name, rows, axes)
