"""The preset `bench`: its runs, equal movement, attackers that stop, rows that are adopted."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuralmark import lab
from neuralmark.errors import ParameterError, ResultsError
from neuralmark.lab import experiments
from neuralmark.lab.api import specs_of
from neuralmark.lab.comparing import Cell, beside, interval, percent
from neuralmark.lab.contract import Figure, Line, Results, Table, imprinted, overwriting, training
from neuralmark.lab.execution.engines import Here
from neuralmark.lab.execution.runner import DONE, carry_out
from neuralmark.lab.execution.store import MODEL, Row, Store
from neuralmark.lab.execution.work import Workbench, performer
from neuralmark.lab.experiments._grid import AttackGrid, GridPlace
from neuralmark.lab.plan.keys import key_for
from neuralmark.lab.plan.preset import Preset, core_seconds, load_preset
from neuralmark.lab.plan.spec import (
    Assault,
    ImprintSpec,
    Spec,
    Training,
    from_dict,
    identity,
    to_dict,
)
from neuralmark.reports.lab import report_files
from neuralmark.reports.render.agreement import agreement, statement
from neuralmark.reports.render.plots import drawn
from tests.support.commands import call

BENCH = load_preset("bench")
SMOKE = load_preset("smoke")
COLUMNS = (
    *("neuralmark", "neuralmark-stream", "vanillamark", "greedymark", "votemark"),
    *("stdm", "feng"),
)
EQUAL = replace(
    SMOKE, training=replace(SMOKE.training, schemes=COLUMNS, movements=(0.3,), seeds=(0, 1))
)
"""The smoke preset with the columns of bench."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.open(tmp_path_factory.mktemp("bench") / "r")


def done(store: Store, *specs: Spec) -> list[Row]:
    """The rows of these runs, made here if need be."""
    board = carry_out(specs, store, Here(performer(Workbench(store, None, "cpu"))))
    assert board.count(DONE) == len(board.runs), [each.why for each in board.failures()]
    rows = [store.row(spec) for spec in specs]
    return [row for row in rows if row is not None]


# What it runs


def test_the_runs_keep_their_names() -> None:
    """Rows of an interrupted bench are found again only under the same names."""
    names = sorted(identity(spec) for spec in specs_of(["all"], BENCH))
    assert len(names) == 1748
    assert hashlib.sha256("\n".join(names).encode()).hexdigest()[:16] == "f37ce41f44452958"


def test_every_seed_and_data_set_has_an_owner_of_its_own() -> None:
    keys = {
        key_for(training(BENCH, data, "neuralmark", seed=seed), lambda key: key).fingerprint
        for data in BENCH.training.datasets
        for seed in BENCH.training.seeds
    }
    assert len(keys) == 6


def test_what_matters_most_comes_first_and_seeds_keep_step() -> None:
    specs = specs_of(["all"], BENCH)
    models = [each for each in specs if isinstance(each, Training)]
    assert [each.seed for each in models[:6]] == [0, 1, 2, 0, 1, 2]
    assert all(each.architecture == "smallcnn" for each in models[:-44])
    assert {each.seed for each in models[-44:]} == {0, 1}
    attacks = [each for each in specs if isinstance(each, Assault)]
    over = [dict(each.settings)["weight"] for each in attacks if each.attack == "overwrite"]
    assert over[0] == 1000.0
    for place in range(0, len(attacks), 3):  # every cell has all its seeds before the next begins
        assert [each.seed for each in attacks[place : place + 3]] == [0, 1, 2]


def test_the_budget_is_told_before() -> None:
    seconds = core_seconds(BENCH, specs_of(["all"], BENCH))
    assert seconds is not None
    assert 8 < seconds / 3600 < 12
    listed = call("lab", "list", "--preset", "bench", "--json").json
    assert {each["name"] for each in listed["experiments"]} == set(experiments.names(BENCH))


def test_marks_that_their_strength_does_not_bring_in_are_attacked_at_equal_movement() -> None:
    grid = experiments.get("overwrite-lambda")
    assert isinstance(grid, AttackGrid)
    equal, own = grid.places(BENCH)
    assert (equal.movement, own.movement) == (0.1, 0.0)
    assert grid.columns(BENCH, equal) == list(COLUMNS)
    assert grid.columns(BENCH, own) == [
        each for each in COLUMNS if each not in ("greedymark", "feng")
    ]
    notes = [table.note for table in grid.tables(BENCH, Results([]))]
    assert ["not tested: GreedyMark" in note for note in notes] == [False, True]
    assert ["; Feng*, which was published without a loss" in note for note in notes] == [
        False,
        True,
    ]


def table_two(accuracies: dict[str, tuple[float, ...]]) -> Table:
    """Table 2, given clean and marked accuracies, seed by seed, of some architectures."""
    experiment = experiments.get("fidelity-architectures")
    rows: list[Row] = []
    for stage in experiment.stages(BENCH):
        specs = [spec for spec in stage if isinstance(spec, Training)]
        for spec, accuracy in zip(specs, accuracies.get(specs[0].architecture, ()), strict=False):
            marked = {} if spec.mark is None else {"rate": 1.0}
            row = {"run": identity(spec), "accuracy": accuracy, "classes": 10, **marked}
            rows.append(row)
    [table] = experiment.tables(BENCH, Results(rows))
    return table


def test_architectures_are_compared_seed_by_seed() -> None:
    table = table_two({"googlenet": (0.30, 0.40, 0.31, 0.39), "alexnet": (0.20, 0.25, 0.24)})
    shown = {row[0]: row for row in table.rows}
    assert shown["googlenet"][3] == "+0.00 ± 12.71"
    assert shown["alexnet"][3] == "+4.00"  # the other seed has no marked network yet
    assert shown["vgg13"][3] == "–"
    assert "over all 3 pairs of one seed: +1.33 ± 6.25 points" in table.note
    assert "chance" not in table.note
    assert "cifar10" in table.title
    assert "the paper's are on cifar100" in table.note


def test_some_architectures_are_trained_for_longer() -> None:
    models = [each for each in specs_of(["all"], BENCH) if isinstance(each, Training)]
    epochs = {each.architecture: (each.epochs, each.batch, each.data) for each in models[-44:]}
    assert epochs["mobilenet_v3_large"] == (10, 32, "cifar10")
    assert epochs["resnet34"] == (2, 32, "cifar10")


@pytest.mark.parametrize("line", ["vgg99 = 3", "vgg13 = 0", 'vgg13 = "long"'])
def test_epochs_of_single_architectures_are_checked(tmp_path: Path, line: str) -> None:
    text = (Path(lab.__file__).parent / "presets" / "bench.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text.replace("googlenet = 6", line))
    with pytest.raises(ParameterError, match=line.split()[0]):
        load_preset(str(path))


def test_networks_that_only_guess_do_not_count() -> None:
    table = table_two({"googlenet": (0.30, 0.40, 0.31, 0.39), "alexnet": (0.20, 0.101, 0.5, 0.5)})
    assert "over all 2 pairs of one seed: +0.00" in table.note
    assert "not above chance at this scale, and not counted: alexnet" in table.note


def test_specifications_of_imprints_are_read_back() -> None:
    clean = training(BENCH, "cifar10", "clean", seed=2)
    spec = imprinted(BENCH, clean, "neuralmark-stream", 0.1, anchored=True)
    attack = overwriting(BENCH, spec, "cifar100")
    for each in (spec, attack):
        assert from_dict(json.loads(json.dumps(to_dict(each)))) == each
    assert dict(attack.settings)["limit"] == 6000
    assert "neuralmark (stream) into smallcnn on cifar10, 10 %, anchored" in spec.label


def test_an_unknown_column_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    from importlib.resources import files

    text = (files("neuralmark.lab") / "presets" / "smoke.toml").read_text(encoding="utf-8")
    mine = tmp_path / "mine.toml"
    mine.write_text(text.replace("zoo = []", 'zoo = []\nschemes = ["neuralmark-steam"]'))
    with pytest.raises(ParameterError, match="did you mean 'neuralmark-stream'"):
        load_preset(str(mine))


# Equal movement


def pressed(scheme: str) -> ImprintSpec:
    return imprinted(EQUAL, training(EQUAL, "digits", "clean"), scheme, 0.3)


def test_every_scheme_moves_its_layer_equally(store: Store) -> None:
    specs = [pressed(scheme) for scheme in COLUMNS]
    rows = done(store, *specs)
    assert len({identity(spec.base) for spec in specs}) == 1
    for scheme, row in zip(COLUMNS, rows, strict=True):
        if scheme == "stdm":  # its cells end before
            assert 0.05 < row["moved"] < 0.29
        else:
            assert row["moved"] == pytest.approx(0.3, rel=0.02), scheme
        assert row["rate"] >= 0.9, scheme
    tables = experiments.get("fidelity-data").tables(EQUAL, Results(rows))
    assert [table.note.count("can move it by") for table in tables] == [0, 1]
    assert tables[1].note.endswith(f"ST-DM can move it by {100 * rows[5]['moved']:.2f} % only")
    assert [row.get("strength") is None for row in rows] == [
        each == "greedymark" for each in COLUMNS
    ]


def test_an_anchored_imprint_is_found_after_a_rearrangement(store: Store) -> None:
    grid, place = experiments.get("structural"), GridPlace(("digits", "digits"), "digits", 0.3)
    assert isinstance(grid, AttackGrid)
    attack = grid.attack(EQUAL, place, "neuralmark-stream", "permute", 0)
    (row,) = done(store, attack)
    assert row["rate"] < 0.75
    assert row["aligned"]["rate"] == 1.0
    cell = grid.shown(Results([row]), [attack], "neuralmark-stream", None)
    assert cell.ours.endswith("with the anchor 100.00")
    assert grid.shown(Results([]), [attack], "neuralmark-stream", None) == Cell("–")
    loose = grid.attack(EQUAL, place, "greedymark", "permute", 0)
    assert isinstance(loose.victim, ImprintSpec)
    assert not loose.victim.anchored


# Attackers that stop


@pytest.mark.parametrize(("weight", "limit", "whole"), [(1000.0, 40, True), (1e-9, 7, False)])
def test_attackers_train_until_their_mark_is_whole_or_the_limit(
    store: Store, weight: float, limit: int, whole: bool
) -> None:
    preset = replace(EQUAL, attack=replace(EQUAL.attack, limit=limit))
    spec = overwriting(preset, pressed("vanillamark"), "digits", weight=weight / 10)
    (row,) = done(store, spec)
    assert (row["figures"]["attacker_rate"] == 1.0) is whole
    assert (row["steps"] == limit) is not whole
    assert row["steps"] >= 4  # the one pass that everybody makes


# Intervals and statements


def test_the_interval_is_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert (mean, round(half, 3)) == (2.0, 2.484)  # 4.303 · 1 / √3
    assert interval([1.0])[1] == float("inf")
    assert percent([0.5, 0.5, 0.5]) == "50.00 ± 0.00"


@pytest.mark.parametrize(
    ("rates", "theirs", "standing", "against"),
    [
        ([1.0, 1.0, 1.0], True, "agrees", False),
        ([0.5, 0.52, 0.48], True, "contradicts", True),
        ([0.5, 0.52, 0.48], False, "agrees", False),
        ([0.95, 0.80, 0.88], True, "open", True),
        ([1.0], True, "open", False),
        ([], True, "", False),
    ],
)
def test_only_intervals_off_the_boundary_decide(
    rates: list[float], theirs: bool, standing: str, against: bool
) -> None:
    specs = [training(BENCH, "cifar10", "neuralmark", seed=seed) for seed in range(3)]
    cell = beside("x", "y", specs, rates, theirs=theirs)
    assert (cell.standing, cell.contradicts) == (standing, against)


def test_a_table_says_what_agrees_and_what_could_not_be_tested() -> None:
    row = (
        "1000",
        Cell("90 (100)", "93 (100)", standing="agrees"),
        Cell("90 (100)", "93 (54)", contradicts=True, standing="contradicts"),
        Cell("90 (60)", "93 (50)", standing="untested"),
        Cell("–", "93 (50)"),
        Cell("70", "71"),
    )
    heads = ("λ", "NeuralMark", "VanillaMark", "GreedyMark", "VoteMark*", "Clean")
    table = Table("t", heads, (row,))
    said = statement(table)
    assert "1 agree; 1 contradict it with significance (1000 VanillaMark)" in said
    assert "1 could not be tested, since there was no mark to attack (1000 GreedyMark)" in said
    assert said.endswith("1 not run yet.")
    assert statement(Table("t", ("a",), (("1",),))) == ""
    weak = replace(table, left_out=("1 GreedyMark", "100 GreedyMark"))
    assert "to attack (1000 GreedyMark, 1 GreedyMark, 100 GreedyMark)" in statement(weak)
    assert "Of 6 detection rates" in agreement({"x": [weak]})
    assert "Of 4 detection rates beside the paper's, 1 agree with it" in agreement({"x": [table]})


def test_columns_that_are_left_out_count_as_not_tested() -> None:
    tables = experiments.get("overwrite-lambda").tables(BENCH, Results([]))
    said = {("equal movement" in table.title): table.left_out for table in tables}
    names = tuple(f"{weight} GreedyMark" for weight in (1, 100, 1000))
    assert said == {True: (), False: names}


def test_an_attack_on_a_mark_that_was_not_there_tests_nothing() -> None:
    grid = experiments.get("overwrite-lambda")
    assert isinstance(grid, AttackGrid)
    own = grid.places(BENCH)[1]
    specs = grid.cell(BENCH, own, "vanillamark", 1000.0)
    rows: list[Row] = [
        {"run": identity(each), "rate": rate, "accuracy": 0.9, "figures": {}}
        for spec in specs
        for each, rate in ((spec, 0.5), (spec.victim, 0.6))
    ]
    paper = grid.reference(BENCH, own, 1000, "vanillamark")
    assert grid.shown(Results(rows), specs, "vanillamark", paper).standing == "untested"


def test_bands_are_drawn_and_single_seeds_have_none() -> None:
    plain = Figure("t", "x", "y", (Line("Clean", ((0, 1), (1, 2))),))
    banded = Figure("t", "x", "y", (Line("Clean", ((0, 1), (1, 2)), ((0, 2), (1, 3))),))
    assert "FillBetween" in drawn(banded)[0]
    assert "FillBetween" not in drawn(plain)[0]


def test_the_report_of_several_seeds_has_bands_and_trades(store: Store) -> None:
    pruned = experiments.get("pruning").runs(EQUAL)
    grid = experiments.get("pruning")
    rows = done(store, *pruned)
    figures = grid.figures(EQUAL, Results(list(store.rows())))
    traded = [each for each in figures if each.traded]
    assert len(traded) == 2
    assert all(line.band for each in figures for line in each.lines)
    assert len(rows) == len(pruned)
    tables = grid.tables(EQUAL, Results(list(store.rows())))
    assert "at equal movement (30 %)" in tables[0].title
    assert "±" in str(tables[0].rows[0][1])
    made: dict[str, Any] = report_files(narrowed(EQUAL), list(store.rows()))
    assert b"at equal movement (30 %)" in made["index.html"]


def narrowed(preset: Preset) -> Preset:
    return replace(preset, experiments=(("pruning",),))


# Rows that are adopted


def test_runs_go_on_from_rows_alone(store: Store, tmp_path: Path) -> None:
    """Of an adopted model only the row is there: it is made again where an attack needs it."""
    victim = training(SMOKE, "digits", "neuralmark")
    (row,) = done(store, victim)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(row) + "\n")
    other = tmp_path / "other"
    assert call("lab", "adopt", rows, "--results", other, "--json").json["adopted"] == 1
    assert lab.adopt(rows, results=other) == 0
    kept = Store.open(other)
    assert not kept.complete(victim)
    done(kept, victim)
    assert not (kept.folder(victim) / MODEL).exists()  # nobody needs it
    (attacked,) = done(kept, Assault(victim, "noise", (("amount", 0.01),)))
    assert attacked["rate"] == row["rate"]
    assert kept.row(victim) == row


def test_a_model_that_comes_out_another_leaves_its_row_and_is_told(
    store: Store, tmp_path: Path
) -> None:
    """As on another processor, whose rounding gives other weights after many steps."""
    victim = training(SMOKE, "digits", "neuralmark")
    (row,) = done(store, victim)
    rows = tmp_path / "rows.jsonl"
    elsewhere = {**row, "accuracy": row["accuracy"] - 0.125}
    rows.write_text(json.dumps(elsewhere) + "\n")
    lab.adopt(rows, results=tmp_path / "other")
    kept = Store.open(tmp_path / "other")
    for amount in (0.01, 0.02):  # made again twice: it is told once
        (kept.folder(victim) / MODEL).unlink(missing_ok=True)
        done(kept, Assault(victim, "noise", (("amount", amount),)))
    told = {"accuracy": row["accuracy"], "rate": row["rate"]}
    assert kept.row(victim) == {**elsewhere, "again": [told]}
    pages = [report_files(SMOKE, list(each.rows())) for each in (kept, store)]
    assert b"in another way: 1." in pages[0]["results.md"]
    assert b"by up to 12.50 points" in pages[0]["results.md"]
    assert b"Models made again" not in pages[1]["results.md"]


@pytest.mark.parametrize("line", ["{", '{"run": "a"}', '{"run": "a", "spec": {"kind": "probe"}}'])
def test_what_is_no_row_is_not_adopted(tmp_path: Path, line: str) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(line + "\n")
    with pytest.raises(ResultsError, match="holds no rows of this version"):
        lab.adopt(rows, results=tmp_path / "r")


def test_a_row_under_another_name_is_not_adopted(store: Store, tmp_path: Path) -> None:
    (row,) = done(store, training(SMOKE, "digits", "clean"))
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({**row, "run": "0" * 20}) + "\n")
    with pytest.raises(ResultsError, match="of another specification"):
        lab.adopt(rows, results=tmp_path / "r")
