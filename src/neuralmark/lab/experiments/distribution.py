"""The weights of the marked layer, with the mark and without (figure, F.4)."""

from typing import Any, ClassVar

from neuralmark.lab.comparing import spread
from neuralmark.lab.contract import (
    SCHEMES,
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


class Distribution(Experiment):
    """Densities of the marked layer under every scheme."""

    answers: ClassVar[str] = "can the mark be seen in the distribution of the weights?"
    paper: ClassVar[str] = "figure 3a, F.4"
    place: ClassVar[int] = 10

    def runs(self, preset: Preset) -> list[Spec]:
        """Every scheme on the main architecture; Clean and NeuralMark on every other."""
        return [spec for _, by in _places(preset) for specs in by.values() for spec in specs]

    def figures(self, preset: Preset, results: Results) -> list[Figure]:
        """Densities over the weights themselves, so that a wider layer shows as one."""
        data = preset.training.datasets[:2][-1]
        note = "each layer within four of its own deviations; means over the seeds"
        figures = []
        for name, by in _places(preset):
            found = ((scheme, _counted(results.of(specs))) for scheme, specs in by.items())
            lines = tuple(
                Line(TITLES[scheme], _density(counted)) for scheme, counted in found if counted
            )
            title = f"Weights of the marked layer, {data}, {name}"
            figures.append(Figure(title, "weight", "density", lines, note, steps=True))
        return figures

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Deviation and how far the layer moved."""
        rows = []
        for scheme, specs in _places(preset)[0][1].items():
            found = [row for row in results.of(specs) if row["distribution"]]
            if found:
                deviations = [row["distribution"]["deviation"] for row in found]
                moved = [100 * row["moved"] for row in found if row.get("moved") is not None]
                rows.append((TITLES[scheme], spread(deviations, "{:.5f}"), _share(moved)))
        heads = ("scheme", "deviation", "moved from where it began")
        note = "movement as a share of the norm of the fresh weights; Clean moves by training alone"
        return [Table("The marked layer after training", heads, tuple(rows), note)]


def _share(moved: list[float]) -> str:
    return f"{spread(moved, '{:.1f}')} %" if moved else "–"


def _counted(rows: list[Row]) -> dict[str, Any] | None:
    """Counts and deviation, means over the seeds; None where there are none."""
    found = [row["distribution"] for row in rows if row["distribution"]]
    if not found:
        return None
    deviation = sum(each["deviation"] for each in found) / len(found)
    return {"counts": mean_of([each["counts"] for each in found]), "deviation": deviation}


def _density(counted: dict[str, Any]) -> tuple[tuple[float, float], ...]:
    """The middles of bins from -4 to 4 deviations, and the density there."""
    counts, deviation = counted["counts"], counted["deviation"]
    width, total = 8 * deviation / len(counts), sum(counts) or 1
    return tuple(
        (-4 * deviation + width * (i + 0.5), count / total / width)
        for i, count in enumerate(counts)
    )


def _places(preset: Preset) -> list[tuple[str, dict[str, list[Training]]]]:
    """Architectures, the main one first, and their runs by scheme, one for each seed."""
    data = preset.training.datasets[:2][-1]
    places = {preset.training.main: SCHEMES} | dict.fromkeys(others(preset), SCHEMES[:2])
    return [
        (
            name,
            {
                scheme: [
                    training(preset, data, scheme, architecture=name, seed=seed)
                    for seed in preset.training.seeds
                ]
                for scheme in some
            },
        )
        for name, some in places.items()
    ]
