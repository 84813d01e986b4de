"""Fine-tuning of the marked layers and a new classifier (table 6)."""

from collections.abc import Sequence
from typing import ClassVar

from neuralmark.lab.experiments._base import SCHEMES, finetuning
from neuralmark.lab.experiments._grid import AttackGrid, Place
from neuralmark.lab.experiments._paper import FINETUNE_MARKED, RATE, Pair, known
from neuralmark.lab.preset import Preset
from neuralmark.lab.spec import Assault


class FinetuneMarked(AttackGrid):
    """Only the marked layers and the classifier are trained, on another task."""

    answers: ClassVar[str] = "does fine-tuning the marked layer remove the mark?"
    paper: ClassVar[str] = "table 6"
    axis: ClassVar[str] = "η"
    heading: ClassVar[str] = "Fine-tuning the marked layers"
    schemes: ClassVar[tuple[str, ...]] = SCHEMES

    def places(self, preset: Preset) -> list[Place]:
        """All of the preset's directions, on both of the paper's architectures."""
        scale = preset.training
        return [Place(each, name) for name in scale.architectures for each in scale.directions]

    def points(self, preset: Preset, place: Place) -> Sequence[float]:
        """The paper's one rate."""
        return (preset.attack.rate,)

    def attack(self, preset: Preset, place: Place, scheme: str, point: float, seed: int) -> Assault:
        """The marked layers only."""
        return finetuning(
            preset,
            place.direction,
            scheme,
            seed,
            architecture=place.architecture,
            scope="marked",
            rate=point,
        )

    def reference(self, place: Place, point: float, scheme: str) -> Pair | None:
        """Table 6."""
        if point != RATE:
            return None
        return FINETUNE_MARKED[known(place.architecture)].get(place.direction, {}).get(scheme)
