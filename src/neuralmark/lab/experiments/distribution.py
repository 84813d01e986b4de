"""The weights of the marked layer, with the mark and without (figure, F.4)."""

from typing import Any, ClassVar

from neuralmark.lab.experiments._base import (
    SCHEMES,
    TITLES,
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


class Distribution(Experiment):
    """Densities of the marked layer under every scheme."""

    answers: ClassVar[str] = "can the mark be seen in the distribution of the weights?"
    paper: ClassVar[str] = "figure 4a, F.4"
    place: ClassVar[int] = 10

    def runs(self, preset: Preset) -> list[Spec]:
        """Every scheme on the main architecture; Clean and NeuralMark on every other."""
        return [spec for _, specs in _places(preset) for spec in specs.values()]

    def figures(self, preset: Preset, results: Results) -> list[Figure]:
        """Densities over the weights themselves, so that a wider layer shows as one."""
        data = preset.training.datasets[:2][-1]
        note = "each layer within four of its own deviations"
        figures = []
        for name, specs in _places(preset):
            found = ((scheme, results.one(spec)) for scheme, spec in specs.items())
            lines = tuple(
                Line(TITLES[scheme], _density(row["distribution"]))
                for scheme, row in found
                if row and row["distribution"]
            )
            title = f"Weights of the marked layer, {data}, {name}"
            figures.append(Figure(title, "weight", "density", lines, note, steps=True))
        return figures

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Deviation and how far the layer moved."""
        rows = []
        for scheme, spec in _places(preset)[0][1].items():
            row = results.one(spec)
            if row and row["distribution"]:
                moved = row.get("moved")
                rows.append(
                    (
                        TITLES[scheme],
                        f"{row['distribution']['deviation']:.5f}",
                        "–" if moved is None else f"{100 * moved:.1f} %",
                    )
                )
        heads = ("scheme", "deviation", "moved from where it began")
        note = "movement as a share of the norm of the fresh weights; Clean moves by training alone"
        return [Table("The marked layer after training", heads, tuple(rows), note)]


def _density(counted: dict[str, Any]) -> tuple[tuple[float, float], ...]:
    """The middles of bins from -4 to 4 deviations, and the density there."""
    counts, deviation = counted["counts"], counted["deviation"]
    width, total = 8 * deviation / len(counts), sum(counts) or 1
    return tuple(
        (-4 * deviation + width * (i + 0.5), count / total / width)
        for i, count in enumerate(counts)
    )


def _places(preset: Preset) -> list[tuple[str, dict[str, Training]]]:
    """Architectures, the main one first, and their runs by scheme."""
    data = preset.training.datasets[:2][-1]
    places = {preset.training.main: SCHEMES} | dict.fromkeys(others(preset), SCHEMES[:2])
    return [
        (name, {scheme: training(preset, data, scheme, architecture=name) for scheme in some})
        for name, some in places.items()
    ]
