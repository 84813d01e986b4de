"""Accuracy by epoch, with the mark and without (figure, F.5)."""

from typing import ClassVar

from neuralmark.lab.experiments._base import (
    TITLES,
    Cell,
    Experiment,
    Figure,
    Line,
    Results,
    Table,
    others,
    training,
)
from neuralmark.lab.preset import Preset
from neuralmark.lab.spec import Spec, Training

TWO = ("clean", "neuralmark")


class Convergence(Experiment):
    """Curves of Clean and NeuralMark side by side."""

    answers: ClassVar[str] = "does a model with a mark learn as quickly as one without?"
    paper: ClassVar[str] = "figure 4b, F.5"
    place: ClassVar[int] = 11

    def runs(self, preset: Preset) -> list[Spec]:
        """Clean and NeuralMark on the data sets, and on every architecture."""
        return [spec for _, pair in _pairs(preset) for spec in pair]

    def figures(self, preset: Preset, results: Results) -> list[Figure]:
        """One figure a data set, and one an architecture."""
        made = []
        for title, pair in _pairs(preset):
            lines = []
            for scheme, spec in zip(TWO, pair, strict=True):
                row = results.one(spec)
                if row:
                    points = [
                        (float(i), 100 * each["accuracy"])
                        for i, each in enumerate(row["history"], 1)
                    ]
                    lines.append(Line(TITLES[scheme], tuple(points)))
            made.append(Figure(f"Convergence on {title}", "epoch", "accuracy (%)", tuple(lines)))
        return made

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """How far apart the curves run."""
        rows: list[tuple[Cell | str, ...]] = []
        for title, pair in _pairs(preset):
            found = results.of(pair)
            if len(found) < len(TWO):
                continue
            clean, marked = ([each["accuracy"] for each in row["history"]] for row in found)
            apart = [100 * (m - c) for c, m in zip(clean, marked, strict=True)]
            mean = sum(apart) / len(apart)
            rows.append((title, f"{mean:+.2f}", f"{max(apart, key=abs):+.2f}", f"{apart[-1]:+.2f}"))
        heads = ("model", "mean", "largest", "at the end")
        return [Table("NeuralMark's accuracy minus Clean's, in points", heads, tuple(rows))]


def _pairs(preset: Preset) -> list[tuple[str, list[Training]]]:
    scale = preset.training
    places = [(data, scale.main) for data in scale.datasets[:2]]
    places += [(scale.datasets[:2][-1], name) for name in others(preset)]
    return [
        (f"{data}, {name}", [training(preset, data, scheme, architecture=name) for scheme in TWO])
        for data, name in places
    ]
