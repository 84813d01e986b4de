"""Ours: looking for the mark without the key, and erasing what is found."""

from collections.abc import Sequence
from typing import Any, ClassVar

from neuralmark.attacks.expose import SEARCHES
from neuralmark.lab.contract import assault
from neuralmark.lab.experiments._grid import AttackGrid, GridPlace, on_own_data, victim_at
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Assault


class Exposing(AttackGrid):
    """The attack `expose` by each trace, and by all that stand out."""

    answers: ClassVar[str] = "does the mark show itself to somebody without the key?"
    paper: ClassVar[str] = "ours"
    axis: ClassVar[str] = "looked for by"
    heading: ClassVar[str] = "Exposing and erasing"

    def places(self, preset: Preset) -> list[GridPlace]:
        """On the model's own data."""
        return on_own_data(preset)

    def points(self, preset: Preset, place: GridPlace) -> Sequence[str]:
        """The traces."""
        return SEARCHES

    def attack(
        self, preset: Preset, place: GridPlace, scheme: str, point: Any, seed: int
    ) -> Assault:
        """In the layer that he believes to be marked."""
        return assault(preset, victim_at(preset, place, scheme, seed), "expose", {"by": point})
