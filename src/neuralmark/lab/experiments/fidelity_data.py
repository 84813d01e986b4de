"""Accuracy with each scheme's mark, by data set (table 1)."""

from typing import ClassVar

from neuralmark.lab.experiments._base import (
    SCHEMES,
    TITLES,
    Cell,
    Experiment,
    Results,
    Table,
    percent,
    training,
)
from neuralmark.lab.experiments._paper import FIDELITY
from neuralmark.lab.preset import Preset
from neuralmark.lab.spec import Spec, Training


class FidelityData(Experiment):
    """Clean and four schemes on every data set."""

    answers: ClassVar[str] = "what does a mark cost in accuracy, by data set?"
    paper: ClassVar[str] = "table 1"

    def runs(self, preset: Preset) -> list[Spec]:
        """Every data set, architecture, scheme and seed."""
        scale = preset.training
        return [
            spec
            for data in scale.datasets
            for architecture in scale.architectures
            for scheme in SCHEMES
            for spec in _cell(preset, data, architecture, scheme)
        ]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """One table an architecture: accuracy, and the rate where a mark is."""
        return [
            Table(
                f"Accuracy (detection rate) by data set, {architecture}",
                ("data set", *(TITLES[scheme] for scheme in SCHEMES)),
                tuple(
                    (data, *(_shown(preset, results, data, architecture, s) for s in SCHEMES))
                    for data in preset.training.datasets
                ),
            )
            for architecture in preset.training.architectures
        ]


def _cell(preset: Preset, data: str, architecture: str, scheme: str) -> list[Training]:
    return [
        training(preset, data, scheme, architecture=architecture, seed=seed)
        for seed in preset.training.seeds
    ]


def _shown(
    preset: Preset, results: Results, data: str, architecture: str, scheme: str
) -> Cell | str:
    specs = _cell(preset, data, architecture, scheme)
    found, rates = results.values(specs, "accuracy"), results.values(specs, "rate")
    if not found:
        return "–"
    ours = percent(found) + (f" ({percent(rates)})" if rates else "")
    theirs = FIDELITY.get((data, architecture), {}).get(scheme)
    return Cell(ours, "" if theirs is None else f"{theirs:.2f}")
