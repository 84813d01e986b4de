"""Fine-tuning of all layers, and its learning rate (F.2)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from neuralmark.attacks.engine.training import TuningScope
from neuralmark.lab.experiments._grid import FinetuneGrid, GridPlace
from neuralmark.lab.experiments._paper import (
    DOWN,
    FINETUNE_ALL,
    FINETUNE_RATES,
    RATE,
    RESNET,
    Pair,
    known,
)
from neuralmark.lab.plan.preset import Preset


class FinetuneAll(FinetuneGrid):
    """Everything is trained on another task, at growing learning rates."""

    answers: ClassVar[str] = "does fine-tuning everything remove the mark, and at what rate?"
    paper: ClassVar[str] = "F.2"
    place: ClassVar[int] = 8
    scope: ClassVar[TuningScope] = "all"
    heading: ClassVar[str] = "Fine-tuning all layers"
    drawn: ClassVar[bool] = True
    log: ClassVar[bool] = True
    accuracies: ClassVar[bool] = True

    def points(self, preset: Preset, place: GridPlace) -> Sequence[float]:
        """The rates; beside the main architecture only the usual one, as in the paper."""
        main = place.architecture == preset.training.main
        return preset.sweeps.finetune_rates if main else (preset.attack.rate,)

    def reference(self, preset: Preset, place: GridPlace, point: Any, scheme: str) -> Pair | None:
        """Both tables of F.2."""
        architecture = known(place.architecture)
        if architecture == RESNET and place.direction == DOWN:
            return FINETUNE_RATES.get(point, {}).get(scheme)
        found = FINETUNE_ALL[architecture].get(place.direction, {}).get(scheme)
        return found if point == RATE else None
