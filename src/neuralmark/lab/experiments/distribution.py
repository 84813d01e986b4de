"""The weights of the marked layer, with the mark and without (figure, F.4)."""

from typing import ClassVar

from neuralmark.lab.experiments._base import (
    SCHEMES,
    TITLES,
    Experiment,
    Figure,
    Line,
    Results,
    Table,
    training,
)
from neuralmark.lab.preset import Preset
from neuralmark.lab.spec import Spec, Training


class Distribution(Experiment):
    """Densities of the marked layer under every scheme."""

    answers: ClassVar[str] = "can the mark be seen in the distribution of the weights?"
    paper: ClassVar[str] = "figure 4a, F.4"

    def runs(self, preset: Preset) -> list[Spec]:
        """Every scheme on the last of the first two data sets."""
        return list(_runs(preset))

    def figures(self, preset: Preset, results: Results) -> list[Figure]:
        """Densities over the weights themselves, so that a wider layer shows as one."""
        lines = []
        for scheme, spec in zip(SCHEMES, _runs(preset), strict=True):
            row = results.one(spec)
            if row and row["distribution"]:
                counts, deviation = row["distribution"]["counts"], row["distribution"]["deviation"]
                width = 8 * deviation / len(counts)
                total = sum(counts) or 1
                points = [
                    (-4 * deviation + width * (i + 0.5), count / total / width)
                    for i, count in enumerate(counts)
                ]
                lines.append(Line(TITLES[scheme], tuple(points)))
        title = f"Weights of the marked layer, {preset.training.datasets[:2][-1]}"
        note = "each layer within four of its own deviations"
        return [Figure(title, "weight", "density", tuple(lines), note, steps=True)]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Deviation and how far the layer moved."""
        rows = []
        for scheme, spec in zip(SCHEMES, _runs(preset), strict=True):
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
        heads = ("scheme", "deviation", "layer moved in training")
        return [Table("The marked layer after training", heads, tuple(rows))]


def _runs(preset: Preset) -> list[Training]:
    data = preset.training.datasets[:2][-1]
    return [training(preset, data, scheme) for scheme in SCHEMES]
