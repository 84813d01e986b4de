"""The laboratory as a library: run experiments, and write their report.

from neuralmark import lab
finished = lab.run("overwrite-lambda", preset="smoke", data="/data")
lab.report(preset="smoke", out="lab-report")
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from neuralmark.errors import ParameterError, ResultsError
from neuralmark.lab import experiments
from neuralmark.lab.execution import datasets
from neuralmark.lab.execution.checks import check
from neuralmark.lab.execution.devices import AUTO, CPU, Device
from neuralmark.lab.execution.runner import DONE, RUNNING, WAITING, Board, carry_out
from neuralmark.lab.execution.store import Store
from neuralmark.lab.plan.preset import Preset, core_seconds, load_preset
from neuralmark.lab.plan.spec import Spec, identity, in_order
from neuralmark.reports.lab import report_files
from neuralmark.storage import files

RESULTS = Path("lab-results")
Watch = Callable[[Board], None]


@dataclass(frozen=True)
class Means:
    """With what runs are carried out.

    Attributes:
        jobs: How many runs at a time.
        engine: `local` for processes of this machine, `ray` for a Ray cluster.
        device: Where runs compute: auto, cpu or cuda.

    Raises:
        ParameterError: A value is out of range.

    Examples:
        >>> Means(jobs=2).engine
        'local'
    """

    jobs: int = 1
    engine: Literal["local", "ray"] = "local"
    device: Device = AUTO

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.jobs < 1:
            raise ParameterError(f"jobs must be 1 or more, not {self.jobs}")
        if self.engine not in ("local", "ray"):
            raise ParameterError(f"engine must be 'local' or 'ray', not {self.engine!r}")


@dataclass(frozen=True)
class Work:
    """Runs that were checked and not begun yet: nothing of what they need is missing."""

    scale: Preset
    specs: tuple[Spec, ...]
    store: Store
    data: Path | None
    means: Means
    before: frozenset[str] = field(default_factory=frozenset)
    """Runs that were finished already."""

    def seconds_left(self, board: Board) -> float | None:
        """What the runs that are not finished will take, by the preset's table; None if unknown."""
        waiting = [each.spec for each in board.runs.values() if each.state in (WAITING, RUNNING)]
        seconds = core_seconds(self.scale, waiting)
        return None if seconds is None else seconds / self.means.jobs

    def carry_out(self, watch: Watch | None = None) -> "Finished":
        """Do the runs that are not finished; killed ones go on where they stopped."""
        board = carry_out(self.specs, self.store, self._engine(), watch or (lambda board: None))
        failed = tuple(
            Failed(identity(each.spec), each.spec.label, each.why) for each in board.failures()
        )
        return Finished(board.count(DONE), len(self.before), failed)

    def _engine(self) -> Any:
        from neuralmark.lab.execution.engines import Local, Ray
        from neuralmark.lab.execution.work import Workbench, performer

        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(variable, "1")  # one thread per run: the runs share the cores
        perform = performer(Workbench(self.store, self.data, self.means.device))
        if self.means.engine == "ray":
            return Ray(perform, self.means.jobs, gpus=self.means.device != CPU)
        return Local(perform, self.means.jobs)


@dataclass(frozen=True)
class Failed:
    """A run that could not be done.

    Attributes:
        run: Identity of the run.
        what: What it was to do.
        why: What went wrong.

    Examples:
        >>> Failed("0f3a", "digits, neuralmark", "out of memory").why
        'out of memory'
    """

    run: str
    what: str
    why: str


@dataclass(frozen=True)
class Finished:
    """How runs ended.

    Attributes:
        done: How many runs are finished, those from before included.
        before: How many had been finished before.
        failed: The runs that could not be done.

    Examples:
        >>> finished = Finished(done=3, before=1, failed=())
        >>> finished.done - finished.before
        2
    """

    done: int
    before: int
    failed: tuple[Failed, ...]


def specs_of(names: Sequence[str], scale: Preset) -> list[Spec]:
    """The runs of these experiments, each once, in an order in which they can be done."""
    groups: list[Sequence[str]] = [[name] for name in names if name != "all"]
    if "all" in names:  # those named first, then the others
        groups += scale.experiments or [[name] for name in experiments.names()]
    return in_order([spec for group in groups for spec in _in_turn(group, scale)])


def _in_turn(names: Sequence[str], scale: Preset) -> list[Spec]:
    """The first stages of these experiments, then their second ones, and so on."""
    by_name = [experiments.get(name).stages(scale) for name in names]
    return [spec for stages in zip_longest(*by_name, fillvalue=[]) for s in stages for spec in s]


def prepare(
    names: Sequence[str],
    *,
    preset: str = "cpu",
    data: str | Path | None = None,
    results: str | Path = RESULTS,
    means: Means | None = None,
) -> Work:
    """Check that experiments can be run as asked, before anything is.

    Args:
        names: Names of experiments, as `neuralmark lab list` prints them, or "all".
        preset: The scale: paper, cpu, smoke, or a TOML file.
        data: Folder with the data sets.
        results: Folder for runs and rows.
        means: Runs at a time, engine and device.

    Returns:
        The runs, not begun yet; `carry_out` does those that are not finished.

    Raises:
        ParameterError: A name, the preset or the data folder is wrong.
        DataSetError: A data set is missing, incomplete or damaged.

    Examples:
        >>> len(prepare(["overlap"], preset="smoke").specs)
        3
    """
    means = means or Means()
    scale = load_preset(preset)
    specs = specs_of(names, scale)
    if not specs:
        raise ParameterError(f"{', '.join(names)} has no runs at the scale of {scale.name}")
    folder = None if data is None else Path(data)
    check(specs, folder, means.device if means.engine == "local" else AUTO)
    store = Store.open(results)
    before = frozenset(identity(spec) for spec in specs if store.row(spec) is not None)
    where = None if folder is None else folder.resolve()
    return Work(scale, tuple(specs), store, where, means, before)


def run(
    *names: str,
    preset: str = "cpu",
    data: str | Path | None = None,
    results: str | Path = RESULTS,
    means: Means | None = None,
    watch: Watch | None = None,
) -> Finished:
    """Run experiments by name, or "all"; finished runs are skipped, killed ones go on.

    Args:
        names: Names of experiments, as `neuralmark lab list` prints them.
        preset: The scale: paper, cpu, smoke, or a TOML file.
        data: Folder with the data sets.
        results: Folder for runs and rows.
        means: Runs at a time, engine and device.
        watch: Called with the state of all runs whenever one changes.

    Returns:
        How many runs are finished, how many were before, and which failed.

    Raises:
        ParameterError: A name, the preset or the data folder is wrong.
        DataSetError: A data set is missing, incomplete or damaged.

    Examples:
        >>> run("fidelity-text", preset="smoke")
        Traceback (most recent call last):
        neuralmark.errors.ParameterError: fidelity-text has no runs at the scale of smoke
    """
    work = prepare(names, preset=preset, data=data, results=results, means=means)
    return work.carry_out(watch)


def adopt(rows: str | Path, *, results: str | Path = RESULTS) -> int:
    """Take over the rows of runs that were made elsewhere, so that only the others are run.

    Models are not in rows: one that an attack still needs is made again, and keeps its row.

    Args:
        rows: A file of rows, such as the `rows.jsonl` of a report.
        results: Folder for runs and rows.

    Returns:
        How many of them the folder did not have.

    Raises:
        ResultsError: The file cannot be read, or its rows are of another version of the lab.

    Examples:
        >>> adopt("nowhere.jsonl", results="runs")
        Traceback (most recent call last):
        neuralmark.errors.ResultsError: nowhere.jsonl cannot be read (No such file or directory)
    """
    try:
        lines = Path(rows).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ResultsError(f"{rows} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ResultsError(f"{rows} is no text: give the rows.jsonl of a report") from None
    try:
        return Store.open(results).adopt([json.loads(line) for line in lines])
    except (ParameterError, ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{rows} holds no rows of this version of the lab ({error})") from None


def fetch(
    names: Sequence[str],
    folder: str | Path,
    *,
    preset: str = "cpu",
    say: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Fetch the data sets that experiments need and that are not in the folder.

    Args:
        names: Names of experiments, or "all".
        folder: Folder with the data sets.
        preset: The scale: paper, cpu, smoke, or a TOML file.
        say: Called with a line before each download.

    Returns:
        The names of those that were fetched.

    Raises:
        ParameterError: A name or the preset is wrong.
        DataSetError: A set cannot be fetched, or arrives damaged.

    Examples:
        >>> fetch(["pruning"], "data", preset="smoke")  # scikit-learn has the digits
        []
    """
    fetched = []
    for name in datasets.needed(specs_of(names, load_preset(preset))):
        found = datasets.look(name, Path(folder))
        if found.state == datasets.MISSING:
            say(f"fetching {name} ({found.detail})")
            datasets.get(name, Path(folder))
            fetched.append(name)
    return fetched


def report(
    *, preset: str = "cpu", results: str | Path = RESULTS, out: str | Path = "lab-report"
) -> list[Path]:
    """Write every table and figure that has rows, the paper's values beside ours.

    Args:
        preset: The scale that the runs were made at.
        results: Folder with runs and rows.
        out: Folder for the page, Markdown, LaTeX tables and figures.

    Returns:
        The files that were written.

    Raises:
        ParameterError: The preset is unknown.
        ResultsError: There are no results.
        OutputError: The folder cannot be written to.

    Examples:
        >>> report(preset="smoke", results="empty")
        Traceback (most recent call last):
        neuralmark.errors.ResultsError: there are no results in empty: run something first (lab.run)
    """
    if not Path(results).is_dir():
        raise ResultsError(f"there are no results in {results}: run something first (lab.run)")
    made = report_files(load_preset(preset), list(Store.open(results).rows()))
    for name, content in made.items():
        path = Path(out, name)
        with files.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(path, content, overwrite=True)
    return [Path(out, name) for name in made]
