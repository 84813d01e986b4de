"""Accuracy by epoch, with the mark and without (figure, F.5)."""

from typing import ClassVar

from neuralmark.lab.experiments._base import Experiment, Figure, Line, Results, training
from neuralmark.lab.preset import Preset
from neuralmark.lab.spec import Spec

TWO = ("clean", "neuralmark")


class Convergence(Experiment):
    """Curves of Clean and NeuralMark side by side."""

    answers: ClassVar[str] = "does a model with a mark learn as quickly as one without?"
    paper: ClassVar[str] = "figure 4b, F.5"

    def runs(self, preset: Preset) -> list[Spec]:
        """Clean and NeuralMark on the data sets."""
        return [training(preset, data, s) for data in preset.training.datasets[:2] for s in TWO]

    def figures(self, preset: Preset, results: Results) -> list[Figure]:
        """One figure a data set."""
        made = []
        for data in preset.training.datasets[:2]:
            lines = []
            for scheme in TWO:
                row = results.one(training(preset, data, scheme))
                if row:
                    points = [
                        (float(i), 100 * each["accuracy"])
                        for i, each in enumerate(row["history"], 1)
                    ]
                    lines.append(
                        Line("NeuralMark" if scheme != "clean" else "Clean", tuple(points))
                    )
            made.append(Figure(f"Convergence on {data}", "epoch", "accuracy (%)", tuple(lines)))
        return made
