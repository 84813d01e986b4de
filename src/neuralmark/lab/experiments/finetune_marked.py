"""Fine-tuning of the marked layers and a new classifier (table 6)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from neuralmark.attacks.engine.training import TuningScope
from neuralmark.lab.experiments._grid import FinetuneGrid, GridPlace
from neuralmark.lab.experiments._paper import FINETUNE_MARKED, RATE, Pair, known
from neuralmark.lab.plan.preset import Preset


class FinetuneMarked(FinetuneGrid):
    """Only the marked layers and the classifier are trained, on another task."""

    answers: ClassVar[str] = "does fine-tuning the marked layer remove the mark?"
    paper: ClassVar[str] = "table 6"
    place: ClassVar[int] = 7
    scope: ClassVar[TuningScope] = "marked"
    heading: ClassVar[str] = "Fine-tuning the marked layers"

    def points(self, preset: Preset, place: GridPlace) -> Sequence[float]:
        """The paper's one rate."""
        return (preset.attack.rate,)

    def reference(self, preset: Preset, place: GridPlace, point: Any, scheme: str) -> Pair | None:
        """Table 6."""
        if point != RATE:
            return None
        return FINETUNE_MARKED[known(place.architecture)].get(place.direction, {}).get(scheme)
