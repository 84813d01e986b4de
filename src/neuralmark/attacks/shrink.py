"""Scaling all weights of a tensor by one positive factor.

Behind a normalisation that measures its own input the network does not change at all. Neither
does a mark whose bits are signs of a linear read-out. ST-DM's are signs of a sine, and notice.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from neuralmark.attacks.contract import Attack, Outcome, Scene, option

SMALLER = (0.5, 0.1, 0.01, 0.001)
LARGER = (2.0, 10.0, 100.0, 1000.0)


@dataclass(frozen=True)
class Shrink(Attack):
    """Multiply every weight by the same positive number."""

    summary: ClassVar[str] = "scale all weights of a tensor by one factor"
    expects: ClassVar[str] = (
        "linear read-outs do not notice, down to what the dtype can hold; stdm needs its anchor"
    )
    dial: ClassVar[str] = "factor"

    factor: float = option(0.1, "what every weight is multiplied by", low=1e-6, high=1e6)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """Down to a thousandth, and up to a thousandfold."""
        return tuple(cls(factor) for factor in (*SMALLER, *LARGER))

    @property
    def variant(self) -> str:
        """Down or up."""
        return "down" if self.factor < 1 else "up"

    def run(self, scene: Scene) -> Outcome:
        """Multiply."""
        return Outcome({name: w * np.float32(self.factor) for name, w in scene.targets()})
