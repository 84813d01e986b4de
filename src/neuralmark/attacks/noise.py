"""Adding Gaussian noise to every weight.

The mark sits in means over many carriers, so noise averages out while the network suffers from
every bit of it.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from neuralmark.attacks.contract import Array, Attack, Outcome, Scene, option


@dataclass(frozen=True)
class Noise(Attack):
    """Add independent Gaussian noise, in units of each tensor's own deviation."""

    summary: ClassVar[str] = "add Gaussian noise to all weights"
    expects: ClassVar[str] = "fades slowly; the network suffers first"
    dial: ClassVar[str] = "amount"

    amount: float = option(
        0.1, "deviation of the noise, in deviations of the tensor", low=0, high=100
    )

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """From one percent of the weights' deviation to twice of it."""
        return tuple(cls(amount) for amount in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0))

    def run(self, scene: Scene) -> Outcome:
        """Draw noise for one tensor after the other, in the order of the targets."""
        return Outcome({name: self._noisy(w, scene.rng) for name, w in scene.targets() if w.size})

    def _noisy(self, w: Array, rng: np.random.Generator) -> Array:
        deviation = float(w.std(dtype=np.float64))
        noise = rng.standard_normal(w.shape, dtype=np.float32)
        return w + np.float32(self.amount * deviation) * noise
