"""Ours: changes that keep the function and defeat every mark at positions."""

from typing import ClassVar

from neuralmark.lab.contract import (
    MARKS,
    TITLES,
    Cell,
    Experiment,
    Results,
    Table,
    assault,
    training,
)
from neuralmark.lab.experiments._grid import filled
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Assault, Spec, Value

WAYS: dict[str, dict[str, Value]] = {
    "permute": {"how": "permute", "amount": 1.0},
    "flip signs": {"how": "flip", "amount": 1.0},
    "rescale": {"how": "rescale", "amount": 1.0},
}


class Structural(Experiment):
    """Permuting, flipping and rescaling channels: same outputs, no mark."""

    answers: ClassVar[str] = "does the mark survive a rearrangement that keeps the function?"
    paper: ClassVar[str] = "ours"

    def runs(self, preset: Preset) -> list[Spec]:
        """Every scheme and way."""
        return [run for scheme in MARKS for way in WAYS for run in _cell(preset, scheme, way)]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Accuracy stays; the rate goes."""
        rows: tuple[tuple[Cell | str, ...], ...] = tuple(
            (way, *(filled(results, _cell(preset, scheme, way), None) for scheme in MARKS))
            for way in WAYS
        )
        heads = ("rearrangement", *(TITLES[scheme] for scheme in MARKS))
        return [Table("Function-preserving changes: accuracy (detection rate)", heads, rows)]


def _cell(preset: Preset, scheme: str, way: str) -> list[Assault]:
    data = preset.training.datasets[0]
    victims = [training(preset, data, scheme, seed=seed) for seed in preset.training.seeds]
    return [assault(preset, victim, "restructure", WAYS[way]) for victim in victims]
