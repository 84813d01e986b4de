"""What each scheme adds to the time of a training step, and of an epoch (F.8)."""

from typing import ClassVar

from neuralmark.lab.comparing import Cell
from neuralmark.lab.contract import Experiment, Results, Table
from neuralmark.lab.experiments._paper import EPOCH_SECONDS
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Probe, Settings, Spec, settings

CASES: dict[str, Settings] = {
    **{f"neuralmark R={r}": settings(scheme="neuralmark", rounds=r) for r in (1, 2, 3, 4)},
    "vanillamark": settings(scheme="vanillamark"),
    "greedymark": settings(scheme="greedymark"),
    "votemark": settings(scheme="votemark"),
}


REPEATS = 40
IMAGES = 50_000
"""Of the paper's epoch (CIFAR)."""


class Cost(Experiment):
    """Steps with the mark and clean steps, taken in turn in one process."""

    answers: ClassVar[str] = "what does a mark cost in time, by scheme and rounds?"
    paper: ClassVar[str] = "F.8"
    place: ClassVar[int] = 15

    def runs(self, preset: Preset) -> list[Spec]:
        """One measurement for each case."""
        return [_run(preset, case) for case in CASES]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Time over that of a clean step; the paper's over its clean epoch."""
        whole = EPOCH_SECONDS["clean"]
        rows = []
        for case in CASES:
            row, theirs = results.one(_run(preset, case)), f"{EPOCH_SECONDS[case] / whole:.3f}"
            seconds = f"{EPOCH_SECONDS[case]:.2f} and {whole:.2f}"
            if row is None:
                rows.append((case, Cell("–", theirs), "–", Cell("–", seconds)))
                continue
            ratio = f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
            steps = f"{1000 * row['marked']:.1f} and {1000 * row['clean']:.1f}"
            count = -(-IMAGES // preset.training.batch)
            epoch = f"{count * row['marked']:.1f} and {count * row['clean']:.1f}"
            rows.append((case, Cell(ratio, theirs), steps, Cell(epoch, seconds)))
        note = (
            "ours: a step over a clean one taken in turn with it, the median and the"
            f" middle half of {REPEATS} pairs, and as many of them as an epoch of {IMAGES:,} images"
            " has; the paper's: epochs on a GPU"
        )
        heads = (
            "scheme",
            "time over Clean",
            "ms of a step, marked and clean",
            "seconds of an epoch, marked and clean",
        )
        return [Table("Time of training", heads, tuple(rows), note)]


def _run(preset: Preset, case: str) -> Probe:
    scale = preset.training
    given = dict(CASES[case]) | dict(scale.options)
    given |= {"architecture": scale.main, "batch": scale.batch, "repeats": REPEATS}
    return Probe("cost", settings(**given))
