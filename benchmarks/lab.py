"""The laboratory: where the time of a run goes, and what a second job gains.

    python -m benchmarks.lab --data DIR [--preset cpu] [--epochs 3] [--runs 4] [--json]

Profiles a training and a fine-tuning attack of the preset's scale with fewer epochs (cProfile, one
process), then carries out the same trainings with one job and with two. Targets: data and
evaluation take less than a quarter of a run; two jobs on two cores are 1.6 times as fast as one.
"""

import cProfile
import os
import pstats
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks._common import Report, parser, seconds_of
from neuralmark.lab.contract import finetuning, training
from neuralmark.lab.execution import work
from neuralmark.lab.execution.engines import Local
from neuralmark.lab.execution.runner import DONE, carry_out
from neuralmark.lab.execution.store import Store
from neuralmark.lab.execution.work import Workbench, perform, performer
from neuralmark.lab.plan.preset import Preset, load_preset
from neuralmark.lab.plan.spec import Assault, Spec, Training

PARTS = {
    "reading the data": ("work.py", "_data"),
    "crops and flips": ("images.py", "augmented"),
    "evaluation": ("training.py", "accuracy"),
    "evaluation of the attack": ("subject.py", "accuracy"),
    "keeping the state": ("bookmark.py", "write"),
}
LOADING = [part for part in PARTS if part != "keeping the state"]
MOST, LEAST = 0.25, 1.6


def quiet(done: int, total: int) -> None:
    """Nobody listens."""


def shares(action: Callable[[], None]) -> tuple[float, dict[str, float]]:
    """Seconds of an action, and the share of each part in it."""
    profile = cProfile.Profile()
    whole = seconds_of(lambda: profile.runcall(action))
    table = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    found = {}
    for part, (file, function) in PARTS.items():
        found[part] = (
            sum(
                timing[3]
                for (path, _, called), timing in table.items()
                if Path(path).name == file and called == function
            )
            / whole
        )
    return whole, found


def both(preset: Preset, epochs: int) -> tuple[Training, Assault]:
    """A training and a fine-tuning attack on it, shortened."""
    source, target = preset.training.directions[0]
    victim = replace(training(preset, source, "neuralmark"), epochs=epochs)
    return victim, finetuning(preset, victim, target, scope="all", rate=preset.attack.rate)


def carried_out(specs: list[Spec], data: Path | None, jobs: int) -> None:
    """All of them, in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "results")
        board = carry_out(specs, store, Local(performer(Workbench(store, data)), jobs))
        assert board.count(DONE) == len(specs), board.failures()


def main(arguments: list[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--data", type=Path)
    made.add_argument("--preset", default="cpu")
    made.add_argument("--epochs", type=int, default=3)
    made.add_argument("--runs", type=int, default=4)
    options = made.parse_args(arguments)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # as `neuralmark lab run` does, for its workers
    report = Report("the laboratory", options.json)
    preset = load_preset(options.preset)
    specs = both(preset, options.epochs)
    profiled = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(Store.open(Path(folder) / "results"), options.data, "cpu")
        perform(bench, replace(specs[0], seed=99, epochs=1), quiet)  # imports are not the run's own
        for spec in specs:
            work._data.cache_clear()  # each reads its own
            profiled.append(shares(partial(perform, bench, spec, quiet)))
    rows = [
        [part, *(f"{100 * share[part]:.1f} %" for _, share in profiled)]
        for part in PARTS
        if any(share[part] for _, share in profiled)
    ]
    rest = [1 - sum(share.values()) for _, share in profiled]
    rows.append(["training itself, and the rest", *(f"{100 * each:.1f} %" for each in rest)])
    report.table(["part", "training", "fine-tuning attack"], rows)
    for kind, (_, share) in zip(("training", "attack"), profiled, strict=True):
        loading = sum(share[part] for part in LOADING)
        wanted = f"less than {MOST:g} of the run"
        report.target(f"data and evaluation, {kind}", loading, wanted, passed=loading < MOST)
    data = preset.training.datasets[0]
    seeds = (training(preset, data, "neuralmark", seed=seed) for seed in range(options.runs))
    many: list[Spec] = [replace(each, epochs=options.epochs) for each in seeds]
    alone = seconds_of(lambda: carried_out(many, options.data, 1))
    together = seconds_of(lambda: carried_out(many, options.data, 2))
    gain = alone / together
    report.target("two jobs over one", gain, f"at least {LEAST:g}", passed=gain >= LEAST)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
