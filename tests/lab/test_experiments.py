"""Every experiment that is found: its runs, and what its rows become."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuralmark.errors import ParameterError
from neuralmark.lab import experiments
from neuralmark.lab.comparing import Cell
from neuralmark.lab.contract import Results, Table
from neuralmark.lab.execution.store import Row, Store
from neuralmark.lab.experiments._grid import AttackGrid, filled
from neuralmark.lab.plan.preset import load_preset, preset_names
from neuralmark.lab.plan.spec import Spec, from_dict, identity, in_order, to_dict
from neuralmark.reports.lab import ReportPart, html_table, made, markdown
from neuralmark.reports.render.latex import latex
from neuralmark.reports.render.plots import drawn
from tests.support.commands import call, on_terminal

NAMES = experiments.names()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("preset", preset_names())
def test_runs_are_specifications(name: str, preset: str) -> None:
    experiment = experiments.get(name)
    assert experiment.name == name
    assert experiment.answers.endswith("?")
    assert experiment.paper
    specs = in_order(experiment.runs(load_preset(preset)))
    assert [from_dict(to_dict(spec)) for spec in specs] == specs


@pytest.mark.parametrize("name", NAMES)
def test_without_rows_nothing_is_claimed(name: str) -> None:
    tables, figures = made(experiments.get(name), load_preset("cpu"), Results([]))
    assert tables == []
    assert figures == []


def test_trainings_are_shared_between_experiments() -> None:
    preset = load_preset("cpu")
    own = {
        name: {identity(s) for s in in_order(experiments.get(name).runs(preset))} for name in NAMES
    }
    assert own["convergence"] < own["fidelity-data"]
    assert own["overwrite-lambda"] & own["finetune-all"]


def test_an_unknown_experiment_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ParameterError, match="did you mean 'overwrite-lambda'"):
        experiments.get("overwrite-lamda")


TABLE = Table(
    "Rates & λ",
    ("λ", "NeuralMark"),
    (
        ("1", Cell("93.1 (100)", "93.65 (100)")),
        ("10", Cell("9_0", "100", contradicts=True, standing="contradicts")),
    ),
    note="a note",
)


def test_tables_in_three_languages() -> None:
    page = html_table(TABLE)
    assert "Rates &amp; λ" in page
    assert "<strong>≠</strong>" in page
    tex = latex(TABLE)
    assert r"Rates \& $\lambda$" in tex
    assert r"9\_0$^{\neq}$ {\scriptsize [100]}" in tex
    preset = load_preset("smoke")
    text = markdown(preset, [], [ReportPart(experiments.get("pruning"), [TABLE], [])])
    assert "| 1 | 93.1 (100) *[93.65 (100)]* |" in text
    assert "| 10 | 9_0 ≠ *[100]* |" in text


def told(preset: str, *names: str, **given: Any) -> Results:
    """A row for every run of these experiments, all with the same figures."""
    figures = {"accuracy": 0.5, "rate": 1.0, "seconds": 60.0, **given}
    specs = (spec for name in names for spec in experiments.get(name).runs(load_preset(preset)))
    return Results([{"run": identity(spec), **figures} for spec in specs])


def cell(name: str, results: Results, table: int, row: str, column: str) -> Cell:
    found = experiments.get(name).tables(load_preset("cpu"), results)[table]
    line = next(each for each in found.rows if each[0] == row)
    made_ = line[found.head.index(column)]
    assert isinstance(made_, Cell)
    return made_


@pytest.mark.parametrize(
    ("name", "table", "row", "column", "paper"),
    [
        ("fidelity-data", 0, "cifar100", "NeuralMark", "76.34 (100)"),
        ("fidelity-data", 0, "cifar10", "Clean", "94.76"),
        ("overwrite-lambda", 1, "1000", "VanillaMark", "71.35 (57.42)"),
        ("overwrite-eta", 0, "0.01", "VoteMark*", "91.76 (60.15)"),
        ("finetune-all", 0, "0.1", "GreedyMark", "82.34 (62.10)"),
        ("finetune-marked", 1, "0.001", "GreedyMark", "19.94 (82.42)"),
        ("pruning", 0, "0.5", "NeuralMark", "(≈ 100)"),
        ("length", 0, "2048", "accuracy", "76.27"),
        ("layers", 0, "all 4 convolutions", "accuracy", "75.86"),
        ("rounds", 0, "cifar100", "R=6", "75.59 (100)"),
        ("rounds", 1, "overwriting, λ=1000, η=0.001", "R=8", "93.39 (100.00)"),
        ("rounds", 1, "overwriting, λ=1, η=0.01", "R=8", "90.48 (89.84)"),
        ("rounds", 2, "fine-tuning, all layers, η=0.001", "R=6", "72.68 (100.00)"),
    ],
)
def test_the_papers_value_stands_beside_ours(
    name: str, table: int, row: str, column: str, paper: str
) -> None:
    assert cell(name, told("cpu", name), table, row, column).paper == paper
    assert cell(name, Results([]), table, row, column) == Cell("–", paper)


def test_what_the_paper_has_in_full_is_contradicted_below_the_boundary() -> None:
    for rate, against in ((226 / 256, True), (227 / 256, False)):
        for name, row, column in (
            ("fidelity-data", "cifar10", "VoteMark*"),
            ("rounds", "cifar10", "R=8"),
            ("layers", "conv3.weight", "detection rate"),
            ("length", "256", "detection rate"),
            ("pruning", "0.9", "NeuralMark"),
        ):
            found = cell(name, told("cpu", name, rate=rate), 0, row, column)
            assert found.contradicts is against, (name, rate)
    clean = cell("fidelity-data", told("cpu", "fidelity-data", rate=None), 0, "cifar10", "Clean")
    assert not clean.contradicts


def test_a_length_has_its_own_boundary() -> None:
    results = told("cpu", "length", rate=0.8)
    assert cell("length", results, 0, "256", "detection rate").contradicts
    assert not cell("length", results, 0, "512", "detection rate").contradicts
    nearly = told("cpu", "length", rate=127 / 128)
    assert cell("length", nearly, 0, "128", "detection rate").contradicts
    assert not cell("length", nearly, 0, "256", "detection rate").contradicts


def test_a_network_that_the_paper_lacks_is_held_against_resnet18() -> None:
    (table,) = experiments.get("fidelity-data").tables(load_preset("cpu"), Results([]))
    assert table.note == "the paper has no smallcnn: its values are ResNet-18's"
    for table in experiments.get("fidelity-data").tables(load_preset("paper"), Results([])):
        assert table.note == ""


@pytest.mark.parametrize("name", NAMES)
def test_tables_know_their_runs(name: str) -> None:
    for scale in ("cpu", "paper"):
        preset = load_preset(scale)
        experiment = experiments.get(name)
        tables = experiment.tables(preset, Results([]))
        if len(tables) < 2:
            continue
        own: list[Spec] = [spec for table in tables for spec in table.specs]
        assert all(table.specs for table in tables)
        assert {identity(s) for s in own} == {identity(s) for s in experiment.runs(preset)}


def test_overwriting_is_drawn_on_a_logarithmic_axis_with_the_boundary_of_its_bits() -> None:
    for scale, bits in (("cpu", 227 / 256), ("smoke", 155 / 160)):
        for name in ("overwrite-lambda", "overwrite-eta"):
            figures = experiments.get(name).figures(load_preset(scale), told(scale, name))
            assert all(figure.log for figure in figures)
            assert {figure.boundary for figure in figures} == {100 * bits}


def test_densities_have_an_area_of_one() -> None:
    counts = [0, 1, 4, 2, 1]
    given = {"counts": counts, "deviation": 0.02, "mean": 0.0}
    results = told("cpu", "distribution", distribution=given, moved=0.1)
    (figure,) = experiments.get("distribution").figures(load_preset("cpu"), results)
    assert figure.steps
    points = figure.lines[0].points
    width = points[1][0] - points[0][0]
    assert width == pytest.approx(8 * 0.02 / 5)
    assert sum(y for _, y in points) * width == pytest.approx(1)


def test_figures_are_the_same_every_time() -> None:
    from neuralmark.lab.contract import Figure, Line

    figure = Figure("t", "x", "y", (Line("a", ((0, 1), (1, 2))), Line("b", ((0, 2), (1, 1)))))
    one, two = drawn(figure), drawn(figure)
    assert one == two
    assert one[0].count("<path") > 2
    assert one[1].startswith(b"\x89PNG")


def test_the_commands_on_the_quickest_experiments(tmp_path: Path) -> None:
    results, report = tmp_path / "r", tmp_path / "report"
    common = ("--preset", "smoke", "--results", str(results))
    shown = call("lab", "show", "overlap", *common, "--json")
    assert [run["finished"] for run in shown.json["runs"]] == [False] * 3
    done = call("lab", "run", "overlap", "convergence", *common, "--json")
    assert done.code == 0, done
    assert done.json == {"done": 5, "before": 0, "failed": [], "results": str(results)}
    shown = call("lab", "show", "overlap", *common, "--json")
    assert [run["finished"] for run in shown.json["runs"]] == [True] * 3
    again = call("lab", "run", "overlap", *common)
    assert (again.code, again.out) == (0, "")
    assert again.err.splitlines() == [
        "neuralmark: finished before: 3",
        f"neuralmark: 3 runs are finished in {results}",
    ]
    made_ = call("lab", "report", *common, "-o", str(report), "--json")
    assert made_.code == 0, made_
    page = (report / "index.html").read_text()
    assert "Overlap of carriers" in page
    assert "<svg" in page
    assert (report / "figures" / "convergence-1.png").exists()
    assert (report / "tables" / "overlap-1.tex").exists()
    lines = [json.loads(line) for line in (report / "rows.jsonl").read_text().splitlines()]
    assert {line["run"] for line in lines} == {row["run"] for row in Store(results).rows()}
    listed = call("lab", "list", "--preset", "smoke", "--json")
    assert {each["name"] for each in listed.json["experiments"]} == set(NAMES)
    call("lab", "run", "overlap", *common, "--jobs", "0").failed(2, "ParameterError")
    call("lab", "run", "overlpa", *common).failed(2, "ParameterError")


def test_a_third_party_experiment_is_found_through_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "acme_lab-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-lab\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[neuralmark.experiments]\nacme = acme:Acme\n")
    (tmp_path / "acme.py").write_text(
        "from neuralmark.lab.experiments import Experiment\n"
        "class Acme(Experiment):\n"
        "    answers, paper = 'does it run?', 'ours'\n"
        "    def runs(self, preset): return []\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(experiments.names()) == {*NAMES, "acme"}
    assert experiments.get("acme").name == "acme"
    listed = call("lab", "list", "--preset", "smoke", "--json")
    assert "acme" in {each["name"] for each in listed.json["experiments"]}


def test_on_a_terminal_a_table_lives(tmp_path: Path) -> None:
    given = ("lab", "run", "overlap", "--preset", "smoke", "--results", tmp_path / "r")
    code, screen = on_terminal(*given)
    assert code == 0, screen
    assert "waiting; about" in screen
    assert "overlap: keys 5" in screen
    assert "3 runs are finished in" in " ".join(screen.split())


def test_runs_that_broke_the_model_are_counted() -> None:
    """A mark that cannot be read did not survive; the mean must not hide it."""
    preset = replace(
        load_preset("cpu"), training=replace(load_preset("cpu").training, seeds=(0, 1))
    )
    experiment = experiments.get("overwrite-lambda")
    assert isinstance(experiment, AttackGrid)
    place = experiment.places(preset)[0]
    specs = experiment.cell(preset, place, "neuralmark", 1)
    rows: list[Row] = [
        {"run": identity(specs[0]), "rate": 1.0, "accuracy": 0.5, "unreadable": ""},
        {"run": identity(specs[1]), "rate": None, "accuracy": 0.1, "unreadable": "NaN"},
    ]
    cell = filled(Results(rows), specs, (93.65, 100.0))
    assert cell.ours == "30.00 ± 254.12 (100.00; 1 of 2 unreadable)"
    assert cell.contradicts
    assert not filled(Results(rows[:1]), specs, (93.65, 100.0)).contradicts
