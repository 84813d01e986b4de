"""Every experiment that is found: its runs, and what its rows become."""

from pathlib import Path

import pytest
from tests.conftest import call

from neuralmark.errors import ParameterError
from neuralmark.lab import experiments
from neuralmark.lab.experiments._base import Cell, Results, Table
from neuralmark.lab.preset import load_preset, preset_names
from neuralmark.lab.spec import from_dict, identity, in_order, to_dict
from neuralmark.reports.lab import drawn, html_table, latex, made, markdown

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
    (("1", Cell("93.1 (100)", "93.65 (100)")), ("10", Cell("9_0", "100", contradicts=True))),
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
    text = markdown(preset, [], [(experiments.get("pruning"), [TABLE], [])])
    assert "| 1 | 93.1 (100) *[93.65 (100)]* |" in text
    assert "| 10 | 9_0 ≠ *[100]* |" in text


def test_figures_are_the_same_every_time() -> None:
    from neuralmark.lab.experiments._base import Figure, Line

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
    assert done.json == {"done": 5, "failed": [], "results": str(results)}
    shown = call("lab", "show", "overlap", *common, "--json")
    assert [run["finished"] for run in shown.json["runs"]] == [True] * 3
    made_ = call("lab", "report", *common, "-o", str(report), "--json")
    assert made_.code == 0, made_
    page = (report / "index.html").read_text()
    assert "Overlap of carriers" in page
    assert "<svg" in page
    assert (report / "figures" / "convergence-1.png").exists()
    assert (report / "tables" / "overlap-1.tex").exists()
    listed = call("lab", "list", "--preset", "smoke", "--json")
    assert {each["name"] for each in listed.json["experiments"]} == set(NAMES)
    call("lab", "run", "overlap", *common, "--jobs", "0").failed(2, "ParameterError")
    call("lab", "run", "overlpa", *common).failed(2, "ParameterError")
