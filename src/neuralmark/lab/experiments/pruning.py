"""Random pruning of the marked layer (the pruning figure; F.3)."""

from collections.abc import Sequence
from typing import ClassVar

from neuralmark.lab.experiments._base import SCHEMES, pruning, training
from neuralmark.lab.experiments._grid import AttackGrid, Direction
from neuralmark.lab.preset import Preset
from neuralmark.lab.spec import Assault


class Pruning(AttackGrid):
    """A growing share of the marked layer set to zero at random."""

    answers: ClassVar[str] = "does the mark outlive the network when weights are zeroed?"
    paper: ClassVar[str] = "figure 3, F.3"
    axis: ClassVar[str] = "share set to zero"
    heading: ClassVar[str] = "Random pruning of the marked layer"
    schemes: ClassVar[tuple[str, ...]] = SCHEMES
    drawn: ClassVar[bool] = True

    def directions(self, preset: Preset) -> list[Direction]:
        """On the model's own data."""
        return [(data, data) for data in preset.training.datasets]

    def points(self, preset: Preset) -> Sequence[float]:
        """The shares."""
        return preset.sweeps.pruned

    def attack(
        self, preset: Preset, direction: Direction, scheme: str, point: float, seed: int
    ) -> Assault:
        """Only the marked layer, as in the paper."""
        return pruning(preset, training(preset, direction[0], scheme, seed=seed), point)
