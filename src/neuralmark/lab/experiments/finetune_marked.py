"""Fine-tuning of the marked layers and a new classifier (table 6)."""

from collections.abc import Sequence
from typing import ClassVar

from neuralmark.lab.experiments._base import SCHEMES, finetuning
from neuralmark.lab.experiments._grid import AttackGrid, Direction
from neuralmark.lab.experiments._paper import FINETUNE_MARKED, RATE, Pair
from neuralmark.lab.preset import Preset
from neuralmark.lab.spec import Assault


class FinetuneMarked(AttackGrid):
    """Only the marked layers and the classifier are trained, on another task."""

    answers: ClassVar[str] = "does fine-tuning the marked layer remove the mark?"
    paper: ClassVar[str] = "table 6"
    axis: ClassVar[str] = "η"
    heading: ClassVar[str] = "Fine-tuning the marked layers"
    schemes: ClassVar[tuple[str, ...]] = SCHEMES

    def directions(self, preset: Preset) -> list[Direction]:
        """All of the preset's."""
        return list(preset.training.directions)

    def points(self, preset: Preset) -> Sequence[float]:
        """The paper's one rate."""
        return (preset.attack.rate,)

    def attack(
        self, preset: Preset, direction: Direction, scheme: str, point: float, seed: int
    ) -> Assault:
        """The marked layers only."""
        return finetuning(preset, direction, scheme, seed, scope="marked", rate=point)

    def reference(self, direction: Direction, point: float, scheme: str) -> Pair | None:
        """Table 6."""
        return FINETUNE_MARKED.get(direction, {}).get(scheme) if point == RATE else None
