"""What each scheme adds to the time of a training step (F.8)."""

from typing import ClassVar

from neuralmark.lab.experiments._base import Cell, Experiment, Results, Table
from neuralmark.lab.experiments._paper import EPOCH_SECONDS
from neuralmark.lab.preset import Preset
from neuralmark.lab.spec import Probe, Settings, Spec, settings

CASES: dict[str, Settings] = {
    **{f"neuralmark R={r}": settings(scheme="neuralmark", rounds=r) for r in (1, 2, 3, 4)},
    "vanillamark": settings(scheme="vanillamark"),
    "greedymark": settings(scheme="greedymark"),
    "votemark": settings(scheme="votemark"),
}


class Cost(Experiment):
    """Steps with the mark and clean steps, taken in turn in one process."""

    answers: ClassVar[str] = "what does a mark cost in time, by scheme and rounds?"
    paper: ClassVar[str] = "F.8"

    def runs(self, preset: Preset) -> list[Spec]:
        """One measurement for each case."""
        return [_run(preset, case) for case in CASES]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Time over that of a clean step; the paper's over its clean epoch."""
        clean = EPOCH_SECONDS["clean"]
        found = {case: results.one(_run(preset, case)) for case in CASES}
        steps = [row["clean"] for row in found.values() if row is not None]
        if not steps:
            return []
        median = sorted(steps)[len(steps) // 2]
        rows = [("clean", Cell("1.000", "1.000"), Cell(f"{median:.4f}", f"{clean:.2f}"))]
        for case, row in found.items():
            ratio = "–" if row is None else f"{row['ratio']:.3f}"
            time = "–" if row is None else f"{row['marked']:.4f}"
            theirs = EPOCH_SECONDS[case]
            rows.append((case, Cell(ratio, f"{theirs / clean:.3f}"), Cell(time, f"{theirs:.2f}")))
        note = (
            "ours: the median step over clean steps taken in turn with it, on one core;"
            " the paper's: epochs on a GPU, so only the ratios compare"
        )
        heads = ("scheme", "time over Clean", "seconds: ours a step, the paper's an epoch")
        return [Table("Time of training", heads, tuple(rows), note)]


def _run(preset: Preset, case: str) -> Probe:
    scale = preset.training
    given = dict(CASES[case]) | dict(scale.options)
    given |= {"architecture": scale.main, "batch": scale.batch, "repeats": 15}
    return Probe("cost", settings(**given))
