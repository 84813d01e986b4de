"""`neuralmark lab`: every table and figure of the paper as a command."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output
from neuralmark.cli._board import live, reasons
from neuralmark.lab.execution.devices import AUTO, CPU, DEVICES

if TYPE_CHECKING:
    from neuralmark.lab.execution.runner import Board
    from neuralmark.lab.execution.work import Bench
    from neuralmark.lab.plan.preset import Preset
    from neuralmark.lab.plan.spec import Spec

preset_option = click.option(
    "--preset",
    default="cpu",
    show_default=True,
    help="Scale: paper, cpu, smoke, or a TOML file of your own.",
)
results_option = click.option(
    "--results",
    type=options.PATH,
    default=Path("lab-results"),
    show_default=True,
    help="Folder for runs and rows.",
)
data_option = click.option("--data", type=options.PATH, help="Folder with the data sets.")
download_option = click.option(
    "--download", is_flag=True, help="Fetch data sets that are missing into --data first."
)


@click.group("lab")
def command() -> None:
    """Run the paper's experiments, and those beyond it.

    \b
    neuralmark lab list
    neuralmark lab data --data DIR
    neuralmark lab run overwrite-lambda --preset cpu --data DIR --jobs 2
    neuralmark lab report -o results

    A run is made once and shared by all experiments; killed runs go on where they stopped.
    """


@command.command("list")
@preset_option
@options.json_option
def list_(preset: str, as_json: bool) -> None:
    """Name the experiments: what each answers, and what it costs at this scale."""
    from neuralmark.lab.experiments import get, names
    from neuralmark.lab.plan.preset import core_seconds, load_preset
    from neuralmark.lab.plan.spec import in_order

    scale = load_preset(preset)
    rows = []
    every: list[Spec] = []
    for name in names():
        experiment = get(name)
        specs = in_order(experiment.runs(scale))
        every += specs
        models = sum(spec.kind in ("training", "tuning") for spec in specs)
        rows.append(
            {
                "name": name,
                "paper": experiment.paper,
                "answers": experiment.answers,
                "models": models,
                "others": len(specs) - models,
                "core_seconds": core_seconds(scale, specs),
            }
        )
    every = in_order(every)
    whole = core_seconds(scale, every)
    if as_json:
        total = {"runs": len(every), "core_seconds": whole}
        output.as_json({"preset": scale.name, "experiments": rows, "all": total})
        return
    output.table(
        (
            "experiment",
            "in the paper",
            "what it answers",
            "models",
            "other runs",
            "time on one core",
        ),
        [(*map(str, list(row.values())[:-1]), _spell(row["core_seconds"])) for row in rows],
        numeric=(3, 4, 5),
    )
    cost = "" if whole is None else f", {_spell(whole)} on one core"
    output.note(f"at the scale of {scale.name}: {scale.about}")
    output.note(f"models are shared: all experiments together take {len(every)} runs{cost}")


def _spell(seconds: Any) -> str:
    """A time in words; `–` where it is not known."""
    if seconds is None:
        return "–"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


@command.command("show")
@click.argument("name")
@preset_option
@results_option
@options.json_option
def show(name: str, preset: str, results: Path, as_json: bool) -> None:
    """Print the runs of an experiment (or `all`) before running it, and which are finished."""
    from neuralmark.lab.execution.store import Store
    from neuralmark.lab.plan.preset import load_preset
    from neuralmark.lab.plan.spec import identity, in_order, to_dict

    specs = in_order(_specs((name,), load_preset(preset)))
    store = Store.open(results) if results.exists() else None
    done = {identity(spec) for spec in specs if store is not None and store.row(spec)}
    if as_json:
        runs = [
            {"run": identity(spec), "finished": identity(spec) in done, "spec": to_dict(spec)}
            for spec in specs
        ]
        output.as_json({"experiment": name, "preset": preset, "runs": runs})
        return
    rows = [
        (identity(spec), "finished" if identity(spec) in done else "", spec.label) for spec in specs
    ]
    output.table(("run", "state", "what"), rows, numeric=())


@command.command("data")
@click.argument("names", nargs=-1, metavar="[EXPERIMENT...]")
@preset_option
@data_option
@download_option
@options.json_option
@click.pass_context
def data_(
    ctx: click.Context,
    names: tuple[str, ...],
    preset: str,
    data: Path | None,
    download: bool,
    as_json: bool,
) -> None:
    """Say which data sets experiments need at this scale (default: all), and what is missing.

    Exit code 1 if one is missing or damaged; partial sets are used as they are.
    """
    from neuralmark.errors import ParameterError
    from neuralmark.lab.execution import datasets
    from neuralmark.lab.plan.preset import load_preset

    wanted = datasets.needed(_specs(names or ("all",), load_preset(preset)))
    if download:
        _fetch(wanted, data)
    elif data is not None and not data.is_dir():
        raise ParameterError(f"--data {data} is not a folder")
    found = [datasets.look(name, data) for name in wanted]
    lacking = [each for each in found if each.state in (datasets.MISSING, datasets.DAMAGED)]
    if as_json:
        output.as_json({"data": [asdict(each) for each in found]})
    else:
        rows = [(each.name, each.state, each.detail) for each in found]
        output.table(("data set", "state", "where"), rows, numeric=())
        if lacking and not download:
            output.note(
                "fetch what is missing with --download, or put it into --data DIR; what is damaged"
                " must be replaced"
            )
    ctx.exit(1 if lacking else 0)


def _fetch(names: list[str], folder: Path | None) -> None:
    """Fetch the sets that are not there."""
    from neuralmark.errors import ParameterError
    from neuralmark.lab.execution import datasets

    if folder is None:
        raise ParameterError("--download needs --data DIR: the folder to fetch into")
    for name in names:
        found = datasets.look(name, folder)
        if found.state == datasets.MISSING:
            output.note(f"fetching {name} ({found.detail})")
            datasets.get(name, folder)


@command.command("run")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@preset_option
@data_option
@download_option
@results_option
@click.option("--jobs", type=int, default=1, show_default=True, help="Runs at a time.")
@click.option(
    "--engine",
    type=click.Choice(("local", "ray")),
    default="local",
    show_default=True,
    help="Processes of this machine, or a Ray cluster (neuralmark[ray]).",
)
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    default=AUTO,
    show_default=True,
    help="Where runs compute; auto: GPUs where torch finds them.",
)
@options.json_option
@click.pass_context
def run(
    ctx: click.Context,
    names: tuple[str, ...],
    preset: str,
    data: Path | None,
    download: bool,
    results: Path,
    jobs: int,
    engine: str,
    device: str,
    as_json: bool,
) -> None:
    """Run experiments (or `all`). Finished runs are skipped, killed ones resume."""
    from neuralmark.errors import ParameterError
    from neuralmark.lab.execution import datasets
    from neuralmark.lab.execution.runner import DONE, RUNNING, WAITING, carry_out
    from neuralmark.lab.execution.store import Store
    from neuralmark.lab.execution.work import Bench
    from neuralmark.lab.plan.checks import check
    from neuralmark.lab.plan.preset import core_seconds, load_preset
    from neuralmark.lab.plan.spec import identity, in_order

    if jobs < 1:
        raise ParameterError(f"jobs must be 1 or more, not {jobs}")
    scale = load_preset(preset)
    specs = _specs(names, scale)
    if not specs:
        raise ParameterError(f"{', '.join(names)} has no runs at the scale of {scale.name}")
    specs = in_order(specs)
    if download:
        _fetch(datasets.needed(specs), data)
    check(specs, data, device if engine == "local" else AUTO)  # Ray's machines have their own
    store = Store.open(results)
    before = {identity(spec) for spec in specs if store.row(spec) is not None}

    def left(board: "Board") -> str:
        waiting = [each.spec for each in board.runs.values() if each.state in (WAITING, RUNNING)]
        seconds = core_seconds(scale, waiting)
        return "" if seconds is None else f"; about {_spell(seconds / jobs)} left"

    with live(as_json, before, left) as watch:
        where = None if data is None else data.resolve()
        bench = Bench(store, where, device)
        board = carry_out(specs, store, _engine(engine, bench, jobs), watch)
    failures = board.failures()
    if as_json:
        output.as_json(
            {
                "done": board.count(DONE),
                "before": len(before),
                "failed": [
                    {"run": identity(f.spec), "what": f.spec.label, "why": f.why} for f in failures
                ],
                "results": str(results),
            }
        )
    else:
        done = board.count(DONE)
        output.note(f"{done} {'run is' if done == 1 else 'runs are'} finished in {results}")
        for line in reasons(failures):
            output.note(line)
    ctx.exit(1 if failures else 0)


def _specs(names: tuple[str, ...], scale: "Preset") -> "list[Spec]":
    from neuralmark.lab import experiments

    chosen = [*names]
    if "all" in chosen:  # those named first, then the others
        chosen = [name for name in chosen if name != "all"] + experiments.names()
    return [spec for name in chosen for spec in experiments.get(name).runs(scale)]


def _engine(name: str, bench: "Bench", jobs: int) -> Any:
    from neuralmark.lab.execution.engines import Local, Ray
    from neuralmark.lab.execution.work import performer

    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")  # one thread a run: the runs share the cores
    perform = performer(bench)
    if name == "ray":
        return Ray(perform, jobs, gpus=bench.device != CPU)
    return Local(perform, jobs)


@command.command("report")
@preset_option
@results_option
@click.option(
    "-o",
    "--output",
    "folder",
    type=options.PATH,
    default=Path("lab-report"),
    show_default=True,
    help="Folder for the page, Markdown, LaTeX tables and figures.",
)
@options.json_option
def report(preset: str, results: Path, folder: Path, as_json: bool) -> None:
    """Write every table and figure that has rows, the paper's values beside ours."""
    from neuralmark.errors import ResultsError
    from neuralmark.lab.execution.store import Store
    from neuralmark.lab.plan.preset import load_preset
    from neuralmark.reports.lab import write_report

    if not results.is_dir():
        raise ResultsError(f"there are no results in {results}: run something first (lab run)")
    written = write_report(load_preset(preset), list(Store.open(results).rows()), folder)
    if as_json:
        output.as_json({"files": [str(path) for path in written]})
        return
    output.note(f"{len(written)} files written to {folder}; open {folder / 'index.html'}")
