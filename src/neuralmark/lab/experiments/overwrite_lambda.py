"""Overwriting at growing weight of the attacker's mark (table 5, left; F.1)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from neuralmark.lab.contract import overwriting
from neuralmark.lab.experiments._grid import GridPlace, OverwriteGrid, victim_at
from neuralmark.lab.experiments._paper import OVERWRITE_WEIGHTS, RATE, Pair
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Assault


class OverwriteLambda(OverwriteGrid):
    """The scheme's own counterfeit key trained over the owner's, λ growing."""

    answers: ClassVar[str] = "does a stronger counterfeit mark remove the owner's?"
    paper: ClassVar[str] = "table 5 (λ), F.1"
    place: ClassVar[int] = 5
    axis: ClassVar[str] = "λ"
    heading: ClassVar[str] = "Overwriting by λ"
    note: ClassVar[str] = "λ in units of the owner's own strength"

    def points(self, preset: Preset, place: GridPlace) -> Sequence[float]:
        """The λ sweep."""
        return preset.sweeps.weights

    def attack(
        self, preset: Preset, place: GridPlace, scheme: str, point: Any, seed: int
    ) -> Assault:
        """At the paper's learning rate."""
        victim, target = victim_at(preset, place, scheme, seed), place.direction[1]
        return overwriting(preset, victim, target, weight=point)

    def reference(self, preset: Preset, place: GridPlace, point: Any, scheme: str) -> Pair | None:
        """Tables 5 and F.1."""
        if preset.attack.rate != RATE:
            return None
        return OVERWRITE_WEIGHTS.get(place.direction, {}).get(point, {}).get(scheme)
