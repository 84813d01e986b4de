"""Ours: the outliers of the marked layer clipped."""

from collections.abc import Sequence
from typing import Any, ClassVar

from neuralmark.lab.contract import trimming
from neuralmark.lab.experiments._grid import AttackGrid, GridPlace, on_own_data, victim_at
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Assault


class Trimming(AttackGrid):
    """Weights far from the median cut to a reach that grows shorter."""

    answers: ClassVar[str] = "does the mark sit in outliers, which anybody can clip?"
    paper: ClassVar[str] = "ours"
    axis: ClassVar[str] = "reach in robust deviations"
    heading: ClassVar[str] = "Clipping the marked layer"
    with_clean: ClassVar[bool] = True
    drawn: ClassVar[bool] = True
    accuracies: ClassVar[bool] = True

    def places(self, preset: Preset) -> list[GridPlace]:
        """On the model's own data."""
        return on_own_data(preset)

    def points(self, preset: Preset, place: GridPlace) -> Sequence[float]:
        """The reaches."""
        return preset.sweeps.reaches

    def attack(
        self, preset: Preset, place: GridPlace, scheme: str, point: Any, seed: int
    ) -> Assault:
        """Only the marked layer."""
        return trimming(preset, victim_at(preset, place, scheme, seed), point)
