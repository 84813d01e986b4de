"""Fine-tuning of all layers, and its learning rate (F.2)."""

from collections.abc import Sequence
from typing import ClassVar

from neuralmark.lab.experiments._base import SCHEMES, finetuning
from neuralmark.lab.experiments._grid import AttackGrid, Place
from neuralmark.lab.experiments._paper import (
    DOWN,
    FINETUNE_ALL,
    FINETUNE_RATES,
    RATE,
    RESNET,
    Pair,
    known,
)
from neuralmark.lab.preset import Preset
from neuralmark.lab.spec import Assault


class FinetuneAll(AttackGrid):
    """Everything is trained on another task, at growing learning rates."""

    answers: ClassVar[str] = "does fine-tuning everything remove the mark, and at what rate?"
    paper: ClassVar[str] = "F.2"
    axis: ClassVar[str] = "η"
    heading: ClassVar[str] = "Fine-tuning all layers"
    schemes: ClassVar[tuple[str, ...]] = SCHEMES

    def places(self, preset: Preset) -> list[Place]:
        """All of the preset's directions, on both of the paper's architectures."""
        scale = preset.training
        return [Place(each, name) for name in scale.architectures for each in scale.directions]

    def points(self, preset: Preset, place: Place) -> Sequence[float]:
        """The rates; beside the main architecture only the usual one, as in the paper."""
        main = place.architecture == preset.training.main
        return preset.sweeps.finetune_rates if main else (preset.attack.rate,)

    def attack(self, preset: Preset, place: Place, scheme: str, point: float, seed: int) -> Assault:
        """All parameters."""
        return finetuning(
            preset,
            place.direction,
            scheme,
            seed,
            architecture=place.architecture,
            scope="all",
            rate=point,
        )

    def reference(self, place: Place, point: float, scheme: str) -> Pair | None:
        """Both tables of F.2."""
        architecture = known(place.architecture)
        if architecture == RESNET and place.direction == DOWN:
            return FINETUNE_RATES.get(point, {}).get(scheme)
        found = FINETUNE_ALL[architecture].get(place.direction, {}).get(scheme)
        return found if point == RATE else None
