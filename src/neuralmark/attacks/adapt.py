"""The attacker who knows how the owner finds his mark again, and aims at just that.

A rebuilt network is put back in order by likeness to the owner's anchor. So this attacker makes
channels alike: he removes some, draws the profiles of rows and columns together and rows towards
each other (which costs him accuracy), gives all channels equal norms, and adds dummies, split
channels and near-duplicates before he permutes, flips and rotates everything and numbers the tokens
anew. Noise comes last: it is the dial. Combine it with others, to train on afterwards or to
factor layers: `combine` with "adapt 0.1 + finetune epochs=10".
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from neuralmark.attacks.contract import Array, Attack, Outcome, Scene, Weights, option
from neuralmark.attacks.tools import equalising, growing, rebuilding
from neuralmark.attacks.tools.rebuilding import Rebuilding
from neuralmark.structures.structure import Vocabulary


@dataclass(frozen=True)
class Adapt(Attack):
    """All that hurts an alignment, at once, then noise."""

    summary: ClassVar[str] = "make channels alike, rebuild everything, then noise"
    expects: ClassVar[str] = "cannot be read by position; with the anchor the network is gone first"
    dial: ClassVar[str] = "amount"

    amount: float = option(
        0.1, "deviation of the noise at the end, in deviations of the tensor", low=0, high=100
    )
    flatten: float = option(
        0.25, "how far profiles of rows and columns are drawn together", low=0, high=1
    )
    blend: float = option(0.05, "share of a partner that each row is given", low=0, high=1)
    narrow: float = option(0.0, "share of the channels removed from each layer", low=0, high=0.99)
    copies: int = option(
        4, "dummies, split channels and near-duplicates added to each layer", low=0, high=10_000
    )
    heads: int = option(
        0, "attention heads (0: as the model's configuration or its width tells)", low=0
    )

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """From no noise to what ruins the network."""
        return tuple(cls(amount) for amount in (0.0, 0.1, 0.3, 0.5, 1.0))

    def run(self, scene: Scene) -> Outcome:
        """Damage first, then rebuild, then noise."""
        work = Rebuilding.on(scene, self.heads)
        gone = rebuilding.narrow(work, self.narrow)[1] if self.narrow else 0
        tokens = work.structure.vocabulary
        words = set() if tokens is None else tokens.tensors()
        for name in scene.target:
            if name not in words:  # tokens are found by all that they are, not by their norms
                work.table[name] = self._alike(work.table[name], scene.rng)
        rebuilding.equalise(work, 1.0)
        if self.copies:
            self._grow(work)
        for way in (rebuilding.permute, rebuilding.flip, rebuilding.rotate, rebuilding.renumber):
            way(work, 1.0)
        for name in scene.target:
            work.table[name] = self._noisy(work.table[name], scene.rng)
        for name, first in _tied(tokens, scene.weights):
            work.table[name] = work.table[first]
        notes = [f"{work.structure.family}: {len(work.groups)} groups", *work.structure.notes]
        return work.outcome(scene, "; ".join(notes), {"removed": float(gone)})

    def _grow(self, work: Rebuilding) -> None:
        rebuilding.split(work, self.copies)
        work.grow(growing.resizable, growing.split_makers, self.copies)
        rebuilding.duplicate(work, self.copies)
        rebuilding.dummy(work, self.copies)

    def _alike(self, w: Array, rng: np.random.Generator) -> Array:
        """Rows and columns that are harder to tell apart."""
        if w.ndim < 2:
            return w
        flat = equalising.flatten(w, self.flatten) if self.flatten else w
        return equalising.blend(flat, rng, self.blend) if self.blend else flat

    def _noisy(self, w: Array, rng: np.random.Generator) -> Array:
        if not self.amount:
            return w
        noise = rng.standard_normal(w.shape, dtype=np.float32)
        return w + np.float32(self.amount * float(w.std(dtype=np.float64))) * noise


def _tied(tokens: Vocabulary | None, weights: Weights) -> list[tuple[str, str]]:
    """Output layers that are the embedding itself."""
    if tokens is None:
        return []
    first = tokens.inputs[0].tensor
    names = [side.tensor for side in tokens.outputs]
    return [(name, first) for name in names if np.array_equal(weights[name], weights[first])]
