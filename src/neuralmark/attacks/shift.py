"""Adding a constant to every weight of a tensor.

Behind a normalisation the network hardly notices. A read-out whose matrix has columns that do not
sum to zero does: every logit moves by its column's sum. Native keys are centred against this.
"""

from dataclasses import dataclass
from typing import ClassVar

from neuralmark.attacks.contract import Attack, Outcome, Scene, option


@dataclass(frozen=True)
class Shift(Attack):
    """Add a constant, in units of each tensor's own deviation."""

    summary: ClassVar[str] = "add a constant to all weights of a tensor"
    expects: ClassVar[str] = "breaks raw matrices; native keys do not notice"
    dial: ClassVar[str] = "amount"

    amount: float = option(0.2, "constant added, in deviations of the tensor", low=-100, high=100)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """From what nobody notices to what destroys the network."""
        return tuple(cls(amount) for amount in (0.05, 0.1, 0.2, 0.5, 1.0))

    def run(self, scene: Scene) -> Outcome:
        """Add `amount` deviations to every weight."""
        return Outcome({name: w + self.amount * w.std() for name, w in scene.targets()})
