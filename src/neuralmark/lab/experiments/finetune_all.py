"""Fine-tuning of all layers, and its learning rate (F.2)."""

from collections.abc import Sequence
from typing import ClassVar

from neuralmark.lab.experiments._base import SCHEMES, finetuning
from neuralmark.lab.experiments._grid import AttackGrid, Direction
from neuralmark.lab.experiments._paper import DOWN, FINETUNE_ALL, FINETUNE_RATES, RATE, Pair
from neuralmark.lab.preset import Preset
from neuralmark.lab.spec import Assault


class FinetuneAll(AttackGrid):
    """Everything is trained on another task, at growing learning rates."""

    answers: ClassVar[str] = "does fine-tuning everything remove the mark, and at what rate?"
    paper: ClassVar[str] = "F.2"
    axis: ClassVar[str] = "η"
    heading: ClassVar[str] = "Fine-tuning all layers"
    schemes: ClassVar[tuple[str, ...]] = SCHEMES

    def directions(self, preset: Preset) -> list[Direction]:
        """All of the preset's."""
        return list(preset.training.directions)

    def points(self, preset: Preset) -> Sequence[float]:
        """The rates."""
        return preset.sweeps.finetune_rates

    def attack(
        self, preset: Preset, direction: Direction, scheme: str, point: float, seed: int
    ) -> Assault:
        """All parameters."""
        return finetuning(preset, direction, scheme, seed, scope="all", rate=point)

    def reference(self, direction: Direction, point: float, scheme: str) -> Pair | None:
        """Both tables of F.2."""
        if direction == DOWN:
            return FINETUNE_RATES.get(point, {}).get(scheme)
        return FINETUNE_ALL.get(direction, {}).get(scheme) if point == RATE else None
