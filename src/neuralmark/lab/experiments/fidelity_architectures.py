"""Accuracy of Clean and NeuralMark by architecture, on CIFAR-100 (table 2)."""

from typing import ClassVar

from neuralmark.lab.comparing import Cell
from neuralmark.lab.contract import Experiment, Results, Table, trained, training
from neuralmark.lab.experiments._paper import ARCHITECTURES
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Spec, Training

DATA = "cifar100"
TWO = ("clean", "neuralmark")


class FidelityArchitectures(Experiment):
    """The zoo's nine other architectures."""

    answers: ClassVar[str] = "what does a mark cost in accuracy, by architecture?"
    paper: ClassVar[str] = "table 2"
    place: ClassVar[int] = 2

    def runs(self, preset: Preset) -> list[Spec]:
        """Clean and NeuralMark for each."""
        return [spec for stage in self.stages(preset) for spec in stage]

    def stages(self, preset: Preset) -> list[list[Spec]]:
        """One for each architecture."""
        return [
            [spec for scheme in TWO for spec in _cell(preset, architecture, scheme)]
            for architecture in preset.training.zoo
        ]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """One table."""
        if not preset.training.zoo:
            return []
        rows: list[tuple[Cell | str, ...]] = []
        for architecture in preset.training.zoo:
            paper = ARCHITECTURES.get(architecture)
            cells = (
                trained(results, _cell(preset, architecture, scheme), paper[i] if paper else None)
                for i, scheme in enumerate(TWO)
            )
            rows.append((architecture, *cells))
        title = "Accuracy (detection rate) by architecture, cifar100"
        return [Table(title, ("architecture", "Clean", "NeuralMark"), tuple(rows))]


def _cell(preset: Preset, architecture: str, scheme: str) -> list[Training]:
    scale = preset.training
    margin = scale.zoo_margin
    changes = None if margin is None else {"mode": "projection", "strength": margin}
    return [
        training(preset, DATA, scheme, architecture=architecture, seed=seed, changes=changes)
        for seed in scale.zoo_seeds or scale.seeds
    ]
