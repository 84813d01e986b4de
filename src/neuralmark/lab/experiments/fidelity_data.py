"""Accuracy with each scheme's mark, by data set (table 1)."""

from typing import ClassVar

from neuralmark.lab.contract import (
    SCHEMES,
    TITLES,
    Experiment,
    Results,
    Table,
    trained,
    training,
)
from neuralmark.lab.experiments._paper import ALEXNET, FIDELITY, RESNET
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Spec, Training


class FidelityData(Experiment):
    """Clean and four schemes on every data set."""

    answers: ClassVar[str] = "what does a mark cost in accuracy, by data set?"
    paper: ClassVar[str] = "table 1"
    place: ClassVar[int] = 1

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
        """One table per architecture: accuracy, and the rate where a mark is."""
        return [
            Table(
                f"Accuracy (detection rate) by data set, {architecture}",
                ("data set", *(TITLES[scheme] for scheme in SCHEMES)),
                tuple(
                    (
                        data,
                        *(
                            trained(
                                results,
                                _cell(preset, data, architecture, scheme),
                                _paper(data, architecture, scheme),
                            )
                            for scheme in SCHEMES
                        ),
                    )
                    for data in preset.training.datasets
                ),
                note=_note(preset, architecture),
                specs=tuple(
                    spec
                    for data in preset.training.datasets
                    for scheme in SCHEMES
                    for spec in _cell(preset, data, architecture, scheme)
                ),
            )
            for architecture in preset.training.architectures
        ]


def _paper(data: str, architecture: str, scheme: str) -> float | None:
    """The paper's accuracy; ResNet-18's for an architecture that it does not have."""
    own = FIDELITY.get((data, architecture), FIDELITY.get((data, RESNET), {}))
    return own.get(scheme)


def _note(preset: Preset, architecture: str) -> str:
    stands_in = architecture not in (ALEXNET, RESNET) and any(
        (data, RESNET) in FIDELITY for data in preset.training.datasets
    )
    return f"the paper has no {architecture}: its values are ResNet-18's" if stands_in else ""


def _cell(preset: Preset, data: str, architecture: str, scheme: str) -> list[Training]:
    return [
        training(preset, data, scheme, architecture=architecture, seed=seed)
        for seed in preset.training.seeds
    ]
