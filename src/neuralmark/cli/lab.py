"""`neuralmark lab`: every table and figure of the paper as a command."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output
from neuralmark.cli._board import live, reasons
from neuralmark.lab.execution.devices import AUTO, DEVICES, Device

if TYPE_CHECKING:
    from neuralmark.lab.execution.runner import Board
    from neuralmark.lab.plan.spec import Spec

preset_option = click.option(
    "--preset",
    default="cpu",
    show_default=True,
    help="Scale: paper, bench, alexnet, cpu, smoke, or a TOML file of your own.",
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


@command.command("list", short_help="List the experiments, and what each costs.")
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
    for name in names(scale):
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


@command.command("show", short_help="List the runs of an experiment, and which are finished.")
@click.argument("name")
@preset_option
@results_option
@options.json_option
def show(name: str, preset: str, results: Path, as_json: bool) -> None:
    """Print the runs of an experiment (or `all`) before running it, and which are finished."""
    from neuralmark.lab.api import specs_of
    from neuralmark.lab.execution.store import Store
    from neuralmark.lab.plan.preset import load_preset
    from neuralmark.lab.plan.spec import identity, to_dict

    specs = specs_of((name,), load_preset(preset))
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


@command.command("data", short_help="Say which data sets are needed, and which are missing.")
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
    from neuralmark.lab.api import specs_of
    from neuralmark.lab.execution import datasets
    from neuralmark.lab.plan.preset import load_preset

    wanted = datasets.needed(specs_of(names or ("all",), load_preset(preset)))
    if download:
        _fetch(names or ("all",), preset, data)
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


def _fetch(names: tuple[str, ...], preset: str, folder: Path | None) -> None:
    """Fetch the sets that are not there."""
    from neuralmark.errors import ParameterError
    from neuralmark.lab import api

    if folder is None:
        raise ParameterError("--download needs --data DIR: the folder to fetch into")
    api.fetch(names, folder, preset=preset, say=output.note)


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
    engine: Literal["local", "ray"],
    device: Device,
    as_json: bool,
) -> None:
    """Run experiments (or `all`). Finished runs are skipped, killed ones resume."""
    from neuralmark.lab import api

    means = api.Means(jobs, engine, device)
    if download:
        _fetch(names, preset, data)
    work = api.prepare(names, preset=preset, data=data, results=results, means=means)

    def left(board: "Board") -> str:
        seconds = work.seconds_left(board)
        return "" if seconds is None else f"; about {_spell(seconds)} left"

    with live(as_json, set(work.before), left) as watch:
        finished = work.carry_out(watch)
    if as_json:
        output.as_json(
            {
                "done": finished.done,
                "before": finished.before,
                "failed": [asdict(each) for each in finished.failed],
                "results": str(results),
            }
        )
    else:
        done = finished.done
        output.note(f"{done} {'run is' if done == 1 else 'runs are'} finished in {results}")
        for line in reasons(finished.failed):
            output.note(line)
    ctx.exit(1 if finished.failed else 0)


@command.command("adopt", short_help="Take over rows that were made elsewhere.")
@click.argument("rows", type=options.PATH, metavar="ROWS")
@results_option
@options.json_option
def adopt(rows: Path, results: Path, as_json: bool) -> None:
    """Take over the rows of a report (`rows.jsonl`), so that `lab run` goes on from them.

    Models are not in rows: one that an attack still needs is trained again.
    """
    from neuralmark.lab import api

    taken = api.adopt(rows, results=results)
    if as_json:
        output.as_json({"adopted": taken, "results": str(results)})
        return
    output.note(f"{taken} {'row' if taken == 1 else 'rows'} taken over into {results}")


@command.command("report", short_help="Write the tables and figures, with the paper's values.")
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
    from neuralmark.lab import api

    written = api.report(preset=preset, results=results, out=folder)
    if as_json:
        output.as_json({"files": [str(path) for path in written]})
        return
    output.note(f"{len(written)} files written to {folder}; open {folder / 'index.html'}")
