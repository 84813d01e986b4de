"""Accuracy by epoch, with the mark and without (figure, F.5)."""

from typing import ClassVar

from neuralmark.lab.comparing import Cell, spread
from neuralmark.lab.contract import (
    Experiment,
    Figure,
    Line,
    Results,
    Table,
    mean_of,
    others,
    training,
)
from neuralmark.lab.execution.store import Row
from neuralmark.lab.plan.columns import TITLES
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Spec, Training

TWO = ("clean", "neuralmark")


class Convergence(Experiment):
    """Curves of Clean and NeuralMark side by side."""

    answers: ClassVar[str] = "does a model with a mark learn as quickly as one without?"
    paper: ClassVar[str] = "figure 3b, F.5"
    place: ClassVar[int] = 11

    def runs(self, preset: Preset) -> list[Spec]:
        """Clean and NeuralMark on the data sets, and on every architecture, for every seed."""
        return [spec for _, pair in _pairs(preset) for specs in pair for spec in specs]

    def figures(self, preset: Preset, results: Results) -> list[Figure]:
        """One figure per data set, and one per architecture: means over the seeds."""
        made = []
        for title, pair in _pairs(preset):
            lines = []
            for scheme, specs in zip(TWO, pair, strict=True):
                curve = mean_of([_curve(row) for row in results.of(specs)])
                if curve:
                    points = tuple((float(i), value) for i, value in enumerate(curve, 1))
                    lines.append(Line(TITLES[scheme], points))
            made.append(Figure(f"Convergence on {title}", "epoch", "accuracy (%)", tuple(lines)))
        return made

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """How far apart the curves of a seed run."""
        rows: list[tuple[Cell | str, ...]] = []
        for title, pair in _pairs(preset):
            apart = []
            for specs in zip(*pair, strict=True):
                found = [curve for curve in map(_curve, results.of(specs)) if curve]
                if len(found) == len(TWO):
                    clean, marked = found
                    apart.append([m - c for c, m in zip(clean, marked, strict=True)])
            if not apart:
                continue
            shown = (
                [sum(each) / len(each) for each in apart],
                [max(each, key=abs) for each in apart],
                [each[-1] for each in apart],
            )
            rows.append((title, *(spread(values, "{:+.2f}") for values in shown)))
        heads = ("model", "mean", "largest", "at the end")
        return [Table("NeuralMark's accuracy minus Clean's, in points", heads, tuple(rows))]


def _curve(row: Row) -> list[float]:
    """Empty for a model that was tested at the end only."""
    history = row["history"]
    if any("accuracy" not in each for each in history):
        return []
    return [100 * each["accuracy"] for each in history]


def _pairs(preset: Preset) -> list[tuple[str, list[list[Training]]]]:
    """What is compared, and the runs of Clean and of NeuralMark, one for each seed."""
    scale = preset.training
    places = [(data, scale.main) for data in scale.datasets[:2]]
    places += [(scale.datasets[:2][-1], name) for name in others(preset)]
    return [
        (
            f"{data}, {name}",
            [
                [
                    training(preset, data, scheme, architecture=name, seed=seed)
                    for seed in scale.seeds
                ]
                for scheme in TWO
            ],
        )
        for data, name in places
    ]
