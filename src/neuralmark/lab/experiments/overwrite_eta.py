"""Overwriting at growing learning rate (table 5, right; F.1)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from neuralmark.lab.contract import overwriting
from neuralmark.lab.experiments._grid import GridPlace, OverwriteGrid, victim_at
from neuralmark.lab.experiments._paper import OVERWRITE_RATES, Pair
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Assault


class OverwriteEta(OverwriteGrid):
    """The same attack at λ=1, the learning rate growing until the model breaks."""

    answers: ClassVar[str] = "does a higher learning rate remove the mark before the model breaks?"
    paper: ClassVar[str] = "table 5 (η), F.1"
    place: ClassVar[int] = 6
    axis: ClassVar[str] = "η"
    heading: ClassVar[str] = "Overwriting by η"

    def points(self, preset: Preset, place: GridPlace) -> Sequence[float]:
        """The η sweep."""
        return preset.sweeps.rates

    def attack(
        self, preset: Preset, place: GridPlace, scheme: str, point: Any, seed: int
    ) -> Assault:
        """At the owner's own strength."""
        victim, target = victim_at(preset, place, scheme, seed), place.direction[1]
        return overwriting(preset, victim, target, rate=point)

    def reference(self, preset: Preset, place: GridPlace, point: Any, scheme: str) -> Pair | None:
        """Tables 5 and F.1."""
        return OVERWRITE_RATES.get(place.direction, {}).get(point, {}).get(scheme)
