"""Removing channels: a narrower network that does nearly the same.

The channels that contribute least go, from every tensor that makes or reads them. What they gave on
average is made up for in the layers behind them, where a batch norm tells it. All tensors get other
shapes, so that nothing is left where it was.
"""

from dataclasses import dataclass
from typing import ClassVar

from neuralmark.attacks.contract import Attack, Outcome, Scene, option
from neuralmark.attacks.tools import rebuilding
from neuralmark.attacks.tools.rebuilding import Rebuilding
from neuralmark.errors import AttackError


@dataclass(frozen=True)
class Narrow(Attack):
    """Remove the least important channels of every layer."""

    summary: ClassVar[str] = "remove the least important channels: narrower layers"
    expects: ClassVar[str] = "cannot be read by position; with the anchor the network is gone first"
    dial: ClassVar[str] = "share"

    share: float = option(0.125, "share of the channels removed from each layer", low=0, high=0.99)
    compensate: bool = option(True, "make up for what the removed channels gave on average")

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """An eighth, a quarter, a half."""
        return tuple(cls(share) for share in (0.125, 0.25, 0.5))

    def run(self, scene: Scene) -> Outcome:
        """Recognise the structure, remove what matters least beside the targets."""
        work = Rebuilding.on(scene, 0)
        touched, gone = rebuilding.narrow(work, self.share, compensate=self.compensate)
        structure = work.structure
        if not touched:
            raise AttackError(
                f"removing needs hidden channels beside the tensors to attack, and this"
                f" {structure.family} has none there: attack all tensors"
            )
        note = f"{structure.family}: {gone} channels removed from {touched} groups"
        figures = {"groups": float(touched), "channels": float(gone)}
        return work.outcome(scene, note, figures)
