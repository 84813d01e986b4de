"""Overlap of carriers between the owner's key and counterfeit ones, by rounds (figure)."""

from typing import ClassVar

from neuralmark.lab.comparing import percent
from neuralmark.lab.contract import Experiment, Figure, Line, Results, Table
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Probe, Spec, settings

WEIGHTS = 256 * 256 * 9
KEYS = 5


class Overlap(Experiment):
    """Five counterfeit keys: half of what is left falls together at each round."""

    answers: ClassVar[str] = "how many carriers do two keys share, by rounds of the filter?"
    paper: ClassVar[str] = "figure 4"
    place: ClassVar[int] = 12

    def runs(self, preset: Preset) -> list[Spec]:
        """One measurement for each number of rounds."""
        return list(_runs(preset))

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Measured, and what chance gives."""
        rows = []
        for rounds, spec in zip(preset.sweeps.overlap_rounds, _runs(preset), strict=True):
            row = results.one(spec)
            if row:
                shares = [percent([share]) for share in row["shares"]]
                rows.append((str(rounds), *shares, f"{100 * 0.5**rounds:.2f}"))
        heads = ("R", *(f"key {i + 1}" for i in range(KEYS)), "expected")
        return [
            Table(
                "Share of the owner's carriers selected by counterfeit keys (%)", heads, tuple(rows)
            )
        ]

    def figures(self, preset: Preset, results: Results) -> list[Figure]:
        """One line per key."""
        lines = []
        for key in range(KEYS):
            points = []
            for rounds, spec in zip(preset.sweeps.overlap_rounds, _runs(preset), strict=True):
                row = results.one(spec)
                if row:
                    points.append((float(rounds), 100 * row["shares"][key]))
            lines.append(Line(f"counterfeit {key + 1}", tuple(points)))
        return [Figure("Overlap of carriers", "filter rounds R", "overlap (%)", tuple(lines))]


def _runs(preset: Preset) -> list[Probe]:
    return [
        Probe("overlap", settings(weights=WEIGHTS, keys=KEYS, rounds=rounds))
        for rounds in preset.sweeps.overlap_rounds
    ]
