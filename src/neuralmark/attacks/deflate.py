"""Taking the main directions out of every layer: where a passport shows itself.

Pooled by the mean, all bits of a layer's passport are products with one and the same vector, and
training pushes every row along it. The vector becomes the main direction of the layer: whoever
has the weights finds it by a singular value decomposition, and takes it out. No key, no data.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from neuralmark.attacks.contract import Array, Attack, Outcome, Scene, option

_SPARE = 6
_TURNS = 40


@dataclass(frozen=True)
class Deflate(Attack):
    """Shrink the largest singular values of every layer."""

    summary: ClassVar[str] = "take the main directions out of every layer"
    expects: ClassVar[str] = "erases trained passports; marks spread over many directions stay"
    dial: ClassVar[str] = "directions"

    directions: int = option(
        1, "main directions of each layer that are taken out", low=1, high=4096
    )
    times: float = option(1.0, "how many times over they are subtracted", low=0.0, high=64.0)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """The main one, and a few more."""
        return (cls(1), cls(2), cls(4))

    def run(self, scene: Scene) -> Outcome:
        """Take them out of every tensor, seen as rows of outputs."""
        changed = {}
        for number, (name, weights) in enumerate(scene.targets(), 1):
            changed[name] = _without(weights, self.directions, self.times, scene.rng)
            scene.tell("taking directions out", number, len(scene.target))
        return Outcome(changed)


def _without(weights: Array, count: int, times: float, rng: np.random.Generator) -> Array:
    """The tensor less its first singular directions, which are found by iteration."""
    rows = weights.reshape(len(weights), -1).astype(np.float64)
    count = min(count, *(side - 1 for side in rows.shape))
    if count < 1:
        return weights
    wide = min(count + _SPARE, *rows.shape)
    basis = np.linalg.qr(rng.standard_normal((rows.shape[1], wide)))[0]
    for _ in range(_TURNS):
        basis = np.linalg.qr(rows.T @ (rows @ basis))[0]
    main = basis @ np.linalg.svd(rows @ basis, full_matrices=False)[2][:count].T
    part = (rows @ main) @ main.T
    left: Array = (rows - times * part).astype(np.float32).reshape(weights.shape)
    return left
