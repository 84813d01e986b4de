"""Language models as runs: from scratch, then tuned by LoRA with a mark and without."""

import csv
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest

import neuralmark
import neuralmark.torchvision_loading  # before peft, which imports torchvision
from neuralmark.errors import MissingDataSetError
from neuralmark.lab import experiments
from neuralmark.lab.comparing import Cell
from neuralmark.lab.contract import Results
from neuralmark.lab.execution.store import Store
from neuralmark.lab.execution.texts import MODEL, _options, spread
from neuralmark.lab.execution.work import Workbench, perform
from neuralmark.lab.plan.keys import fitting, key_for
from neuralmark.lab.plan.preset import TextScale, load_preset
from neuralmark.lab.plan.spec import MarkingSpec, TuningSpec, in_order
from neuralmark.records import Claim
from neuralmark.text import gpt2
from neuralmark.text.e2e import FILES
from tests.support.texts import KINDS, PLACES

SCALE = TextScale(
    ("gpt2-tiny",),
    epochs=3,
    rate=1e-2,
    warm_up=2,
    strength=20.0,
    rows=64,
    meanings=3,
    beams=2,
    base_epochs=2,
)
PRESET = replace(load_preset("smoke"), text=SCALE)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in E2E's layout."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "e2e").mkdir()
    rows = [
        (f"name[{name}], eatType[{kind}], area[{area}]", f"{name} is a {kind} in the {area}.")
        for name in PLACES
        for kind in KINDS
        for area in ("riverside", "city centre", "harbour", "old town", "park", "market")
    ]
    for file in FILES.values():
        with (folder / "e2e" / file).open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([("mr", "ref"), *rows])
    return folder


def quiet(done: int, total: int) -> None:
    """Nobody listens."""


@pytest.fixture(scope="module")
def store(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Everything that the experiment needs, carried out."""
    made = Store.open(tmp_path_factory.mktemp("runs") / "r")
    for spec in in_order(experiments.get("fidelity-text").runs(PRESET)):
        perform(Workbench(made, data), spec, quiet)
    return made


def test_base_clean_and_marked() -> None:
    specs = in_order(experiments.get("fidelity-text").runs(PRESET))
    assert [spec.label for spec in specs] == [
        "train gpt2-tiny on e2e train, clean, seed 0",
        "tune gpt2-tiny on e2e train, clean, seed 0",
        "tune gpt2-tiny on e2e train, neuralmark, seed 0",
    ]


def test_the_table_of_the_paper(store: Store) -> None:
    (table,) = experiments.get("fidelity-text").tables(PRESET, Results(list(store.rows())))
    assert table.head == ("", "BLEU", "NIST", "MET", "ROUGE-L", "CIDEr", "detection rate")
    clean, marked = table.rows
    assert [row[0] for row in table.rows] == ["Clean", "NeuralMark"]
    assert marked[-1] == Cell("100.00", "100", standing="open")
    assert clean[-1] == "–"
    for cell in (*clean[1:-1], *marked[1:-1]):
        assert isinstance(cell, Cell)
        assert float(cell.ours) >= 0


def test_what_a_run_leaves(store: Store) -> None:
    spec = experiments.get("fidelity-text").runs(PRESET)[-1]
    assert isinstance(spec, TuningSpec)
    row = store.row(spec)
    assert row is not None
    assert row["meanings"] == 3
    assert len(row["said"]) == 3
    assert row["data"]["note"] == "E2E train, 72 rows (42061 as published), 64 rows used"
    assert [epoch["rate"] for epoch in row["history"]][-1] == row["rate"] == 1.0
    home = store.folder(spec)
    claim = Claim.load(home / "claim.json")
    key = key_for(spec, partial(fitting, claim.placement))
    base = gpt2.load_model(store.folder(spec.needs[0]) / MODEL)
    suspect = peft.PeftModel.from_pretrained(base, home / MODEL)
    assert neuralmark.verify(suspect, key, claim=claim).verified


def test_a_killed_tuning_goes_on(store: Store, data: Path, tmp_path: Path) -> None:
    """From its last epoch, to the same row."""
    spec = experiments.get("fidelity-text").runs(PRESET)[-1]
    other = Store.open(tmp_path / "other")
    perform(Workbench(other, data), spec.needs[0], quiet)
    told: list[int] = []

    class KilledError(Exception):
        pass

    def killed(done: int, total: int) -> None:
        told.append(done)
        if done == 2 * total // 3 + 1:  # in the last epoch
            raise KilledError

    with pytest.raises(KilledError):
        perform(Workbench(other, data), spec, killed)
    assert (other.folder(spec) / "state.pt").exists()
    before = len(told)
    perform(Workbench(other, data), spec, lambda done, total: told.append(done))
    assert told[before:] == list(range(told[before - 1], told[-1] + 1))

    def timeless(row: Any) -> str:
        kept = {name: value for name, value in row.items() if name != "seconds"}
        kept["history"] = [{**each, "seconds": 0} for each in row["history"]]
        return json.dumps(kept, sort_keys=True)

    assert timeless(other.row(spec)) == timeless(store.row(spec))


def test_weights_from_the_data_folder_or_the_hub(tmp_path: Path) -> None:
    store, spec = Store.open(tmp_path / "r"), TuningSpec("gpt2-medium", 1, 1e-3, 8, 0)
    assert _options(store, tmp_path, spec) == {"weights": "gpt2-medium", "lora": True}
    (tmp_path / "gpt2-medium").mkdir()
    (tmp_path / "gpt2-medium" / "config.json").write_text("{}")
    here = str(tmp_path / "gpt2-medium")
    assert _options(store, tmp_path, spec)["weights"] == here
    tiny = replace(spec, architecture="gpt2-tiny", adapted=False)
    assert _options(store, tmp_path, tiny) == {"weights": "", "lora": False}


def test_without_data(tmp_path: Path) -> None:
    spec = TuningSpec("gpt2-tiny", 1, 1e-3, 8, 0, mark=MarkingSpec())
    store = Store.open(tmp_path / "r")
    with pytest.raises(MissingDataSetError, match="data=DIR"):
        perform(Workbench(store), spec, quiet)
    with pytest.raises(MissingDataSetError, match="there is no folder"):
        perform(Workbench(store, tmp_path / "nowhere"), spec, quiet)


def test_rows_are_spread() -> None:
    assert spread(range(10), None) == list(range(10))
    assert spread(range(10), 20) == list(range(10))
    assert spread(range(10), 3) == [0, 3, 6]
