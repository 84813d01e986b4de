"""Accuracy of Clean and NeuralMark by architecture (table 2; there on CIFAR-100)."""

import math
from collections.abc import Sequence
from typing import ClassVar

from neuralmark.lab.comparing import Cell, interval, spread
from neuralmark.lab.contract import Experiment, Results, Table, trained, training
from neuralmark.lab.execution.store import Row
from neuralmark.lab.experiments._paper import ARCHITECTURES
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Spec, Training

PAPER_DATA = "cifar100"
TWO = ("clean", "neuralmark")
ABOVE = 3.0
"""Standard errors above chance at which a network counts as trained."""
TEST_IMAGES = 10_000
"""Of CIFAR, where the preset names no number."""


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
        """One table: both, and marked minus clean for each seed."""
        if not preset.training.zoo:
            return []
        rows: list[tuple[Cell | str, ...]] = []
        untrained, pairs = [], []
        for architecture in preset.training.zoo:
            paper = ARCHITECTURES.get(architecture)
            cells = (
                trained(results, _cell(preset, architecture, scheme), paper[i] if paper else None)
                for i, scheme in enumerate(TWO)
            )
            differences = _differences(preset, results, architecture)
            rows.append((architecture, *cells, spread(differences, "{:+.2f}")))
            if _at_chance(preset, results.of(_cell(preset, architecture, "clean"))):
                untrained.append(architecture)
            else:
                pairs += differences
        title = f"Accuracy (detection rate) by architecture, {preset.training.zoo_data}"
        head = ("architecture", "Clean", "NeuralMark", "marked minus clean, points")
        return [Table(title, head, tuple(rows), _note(preset, pairs, untrained))]


def _cell(preset: Preset, architecture: str, scheme: str) -> list[Training]:
    scale = preset.training
    margin = scale.zoo_margin
    changes = None if margin is None else {"mode": "projection", "strength": margin}
    return [
        training(
            preset, scale.zoo_data, scheme, architecture=architecture, seed=seed, changes=changes
        )
        for seed in scale.zoo_seeds or scale.seeds
    ]


def _differences(preset: Preset, results: Results, architecture: str) -> list[float]:
    """Marked minus clean in points, for each seed that both have."""
    clean, marked = (_cell(preset, architecture, scheme) for scheme in TWO)
    rows = [(results.one(a), results.one(b)) for a, b in zip(clean, marked, strict=True)]
    return [100 * (b["accuracy"] - a["accuracy"]) for a, b in rows if a and b]


def _at_chance(preset: Preset, rows: Sequence[Row]) -> bool:
    """Whether clean networks do not know more than guessing would tell."""
    images = preset.training.test_images or TEST_IMAGES
    return any(
        row["accuracy"] < (chance := 1 / row["classes"]) + ABOVE * math.sqrt(chance / images)
        for row in rows
    )


def _note(preset: Preset, pairs: Sequence[float], untrained: Sequence[str]) -> str:
    """What all pairs say together, and what does not count."""
    said = []
    if len(pairs) > 1:
        mean, half = interval(pairs)
        said.append(
            f"marked minus clean over all {len(pairs)} pairs of one seed: {mean:+.2f} ± {half:.2f}"
            " points (95 %)"
        )
    if untrained:
        said.append(f"not above chance at this scale, and not counted: {', '.join(untrained)}")
    if preset.training.zoo_data != PAPER_DATA:
        said.append(f"the paper's are on {PAPER_DATA}")
    return "; ".join(said)
