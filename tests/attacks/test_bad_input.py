"""What a new user gets wrong: every attack says so in one line, and nothing hangs."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

from neuralmark import Claim, EmbedOptions, Key, attacks, embed, imprint, verify
from neuralmark.attacks import Data
from neuralmark.attacks.detect import Detect
from neuralmark.attacks.distill import Distill
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.finetune import Finetune
from neuralmark.attacks.forge_random import ForgeRandom
from neuralmark.attacks.merge import Merge
from neuralmark.attacks.noise import Noise
from neuralmark.attacks.nullspace import Nullspace
from neuralmark.attacks.restructure import Restructure
from neuralmark.attacks.shift import Shift
from neuralmark.errors import (
    AttackError,
    DataMismatchError,
    MissingDataError,
    NoMarkError,
    NonFiniteError,
    OutputError,
    ParameterError,
    UnknownTensorError,
)
from neuralmark.storage import files
from tests.support.checks import one_line
from tests.support.commands import PYTHON, call, clean_environment
from tests.support.images import LAYER, data, network
from tests.support.models import QUICK, gaussian, gaussian_model
from tests.support.processes import PATIENCE

KEY = Key(QUICK, b"", salt=bytes(32), secret=bytes([1]) * 32)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without an anchor: it is attacked as a table too, and a table has no claim beside it."""
    folder = tmp_path_factory.mktemp("bad")
    out = folder / "marked.safetensors"
    embed(gaussian_model(folder / "model.safetensors"), KEY, out, EmbedOptions(anchor=False))
    return out


@pytest.fixture(scope="module")
def live() -> tuple[nn.Module, Claim]:
    model = network()
    made = imprint(model, KEY, tensors=[LAYER], strength=4.0)
    assert made.claim is not None
    return model, made.claim


# Workers.

SCRIPT = """
import sys
from neuralmark import Key, attacks, errors
from safetensors.numpy import load_file
key = Key.load({key!r})
model = load_file({model!r})
if {live}:
    import torch
    module = torch.nn.Module()
    for name in ("layer1", "layer2"):
        weight = torch.from_numpy(model[name + ".weight"])
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data = weight
        module.add_module(name, layer)
    model = module
try:
    attacks.suite(model, key, attacks.SuiteOptions(only=["shift"], jobs=2))
except errors.AttackError as error:
    print("told:", error)
"""


@pytest.mark.parametrize(
    ("raw", "live", "stdin"),
    [(False, True, False), (False, False, False), (False, False, True), (True, False, False)],
    ids=["module", "table", "stdin", "raw key"],
)
def test_no_guard_ends_with_an_error(
    raw: bool, live: bool, stdin: bool, marked: Path, tmp_path: Path
) -> None:
    key = KEY
    if raw:  # its matrix alone would fill the pipe to a process that never reads it
        matrix = KEY.at(verify(marked, KEY).placement).matrix
        key = Key.raw(matrix, QUICK.rounds, "strided", filter=QUICK.filter)
    key.save(tmp_path / "k.nmkey", None)
    text = SCRIPT.format(key=str(tmp_path / "k.nmkey"), model=str(marked), live=live)
    script = tmp_path / "script.py"
    script.write_text(text)
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [PYTHON, "-" if stdin else script],
        input=text if stdin else None,
        env=clean_environment(TMPDIR=str(tmp_path / "tmp")),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "told: a worker process ended before its time" in done.stdout, done.stderr
    assert "__main__" in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []


def test_tables_as_others_reach_the_workers(marked: Path) -> None:
    table = load_file(marked)
    other = {name: gaussian(*value.shape, seed=9) for name, value in table.items()}
    cards = [
        attacks.suite(
            table,
            KEY,
            options=attacks.SuiteOptions(only=["merge"], others=[other], jobs=jobs, seed=3),
        )
        for jobs in (1, 2)
    ]
    points = [[p.change for row in card.rows for p in row.points] for card in cards]
    assert points[0] == points[1]


# Settings.


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None, True, 1 << 64])
def test_seeds(marked: Path, seed: Any) -> None:
    for go in (
        lambda: launch(Noise(), marked, KEY, options=LaunchOptions(seed=seed)),
        lambda: attacks.suite(
            marked, KEY, options=attacks.SuiteOptions(only=["shift"], jobs=1, seed=seed)
        ),
    ):
        with pytest.raises(ParameterError, match="seed") as caught:
            go()
        one_line(caught.value)


SAME: Sequence[Any] = (3, np.int64(3))


def test_seeds_of_numpy(marked: Path) -> None:
    one, two = (launch(Noise(), marked, KEY, options=LaunchOptions(seed=seed)) for seed in SAME)
    assert one.change == two.change


@pytest.mark.parametrize("attack", ["noise", Noise, None, 3])
def test_what_is_no_attack(marked: Path, attack: Any) -> None:
    with pytest.raises(ParameterError, match=r"attacks\.get\(.*\)\(\)") as caught:
        launch(attack, marked, KEY)
    one_line(caught.value)


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        (Noise, "amount", "0.1"),
        (Noise, "amount", None),
        (Noise, "amount", True),
        (Noise, "amount", float("nan")),
        (Distill, "lr", float("inf")),
        (Distill, "steps", 1.5),
        (Distill, "steps", "3"),
        (Distill, "steps", None),
        (Distill, "steps", np.float64(2.5)),
        (Detect, "given", 3),
        (Detect, "given", None),
    ],
)
def test_settings_of_another_type(cls: Any, name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=name) as caught:
        cls(**{name: value})
    one_line(caught.value)


def test_numbers_of_numpy_are_plain_ones() -> None:
    assert Noise(np.float32(0.5)) == Noise(0.5)  # type: ignore[arg-type]
    assert Distill(steps=np.int64(3), batch=4.0).settings()["steps"] == 3  # type: ignore[arg-type]
    made = Distill(steps=np.int64(3), lr=np.float64(0.1), batch=1e2)  # type: ignore[arg-type]
    assert {type(value) for value in made.settings().values()} == {int, float}
    assert type(made.batch) is int


@pytest.mark.parametrize("only", ["noise", [], [None], 5, {"noise": 0.1}, iter(["noise"])])
def test_only_is_a_list_of_names(only: Any) -> None:
    with pytest.raises(ParameterError, match="only must be a list of names") as caught:
        attacks.SuiteOptions(only=only)
    one_line(caught.value)


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        (LaunchOptions, {"tensors": 5}, "tensors must be a list of names, not 5"),
        (LaunchOptions, {"tensors": [5]}, "tensors must be a list of names"),
        (LaunchOptions, {"others": 5}, "others must be a list of checkpoints, not 5"),
        (LaunchOptions, {"others": None}, "others must be a list of checkpoints"),
        (LaunchOptions, {"others": "base.safetensors"}, "others must be a list of checkpoints"),
        (LaunchOptions, {"others": {"a": np.zeros(2)}}, "others must be a list of checkpoints"),
        (LaunchOptions, {"keep": 5}, "keep must be a path, not 5"),
        (attacks.SuiteOptions, {"others": 5}, "others must be a list of checkpoints, not 5"),
        (attacks.SuiteOptions, {"others": network()}, "others must be a list of checkpoints"),
    ],
)
def test_what_no_attack_can_be_run_with(kind: Any, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        kind(**wrong)
    one_line(caught.value)


@pytest.mark.parametrize("jobs", [0, 1.5, "2", True])
def test_jobs(marked: Path, jobs: Any) -> None:
    with pytest.raises(ParameterError, match="jobs"):
        attacks.suite(marked, KEY, options=attacks.SuiteOptions(only=["shift"], jobs=jobs))


# Files.


@pytest.mark.parametrize("out", [".", "", "..", "folder"])
def test_a_folder_is_no_text_file(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="folder") as caught:
            files.write_text(Path(out), "text", overwrite=overwrite)
        one_line(caught.value)
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_nan_that_was_there_before_is_named(tmp_path: Path) -> None:
    sound = {"a": gaussian(16, 16), "b": gaussian(16, 16, seed=1)}
    broken = {**sound, "b": np.where(np.eye(16) > 0, np.float32("nan"), sound["b"])}
    for attack in (Detect(), Noise(), Shift(), Merge()):
        with pytest.raises(NonFiniteError, match="'b' holds NaN") as caught:
            launch(attack, broken)
        one_line(caught.value)
        launch(attack, broken, options=LaunchOptions(tensors=["a"]))
    for attack in (Merge(), Detect()):
        with pytest.raises(NonFiniteError, match=r"other checkpoint.*'b' holds NaN"):
            launch(attack, sound, options=LaunchOptions(others=[broken]))
    save_file(broken, tmp_path / "nan.safetensors")
    call("attack", "detect", tmp_path / "nan.safetensors").failed(3, "NonFiniteError")


def test_nan_in_a_live_model(live: tuple[nn.Module, Claim]) -> None:
    model = network()
    weight = model.get_parameter("2.weight")
    with torch.no_grad():
        weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"2\.weight"):
        launch(Nullspace(), model, data=data())


# Data.

GOOD = data()
X, Y = GOOD.inputs, GOOD.labels
BAD: Sequence[tuple[Any, str]] = (
    ((X, Y), "not tuple"),
    (torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y)), "not DataLoader"),
    (Data(X, None, X, Y), "labels .* not NoneType"),  # type: ignore[arg-type]
    (Data(X, Y, X, None), "test_labels .* not NoneType"),  # type: ignore[arg-type]
    (Data(X.numpy(), Y, X, Y), "inputs .* not ndarray"),  # type: ignore[arg-type]
    (Data(X, Y[:-1], X, Y), "64 inputs but 63 labels"),
    (Data(X, Y, X[:-1], Y), "63 test_inputs but 64 test_labels"),
    (Data(X, Y[:, None], X, Y), "one dimension"),
    (Data(X, Y.float(), X, Y), "whole numbers"),
    (Data(X[:0], Y[:0], X, Y), "inputs .* empty"),
    (Data(X, Y, X[:0], Y[:0]), "test_inputs .* empty"),
    (Data(X[:, :2], Y, X, Y), "does not fit"),
    (Data(X, Y, X[:, :2], Y), "does not fit"),
    (Data(X.long(), Y, X, Y), "int64 fail"),
)


@pytest.mark.parametrize(("given", "words"), BAD)
def test_bad_data(given: Any, words: str) -> None:
    model = network()
    for attack in (Finetune(), Nullspace(), Distill(), Restructure("permute"), Noise()):
        with pytest.raises(DataMismatchError, match=words) as caught:
            launch(attack, model, data=given)
        one_line(caught.value)


def test_bad_data_for_a_suite(live: tuple[nn.Module, Claim]) -> None:
    model, claim = live
    with pytest.raises(DataMismatchError, match="not tuple"):
        attacks.suite(model, KEY, claim=claim, data=(X, Y))  # type: ignore[arg-type]


# Tensors.


def test_names_as_inspect_prints_them() -> None:
    stored = {f"module.{name}.weight": gaussian(16, 16, seed=i) for i, name in enumerate("ab")}
    for name in ("a.weight", "module.a.weight"):
        result = launch(Shift(), stored, options=LaunchOptions(tensors=[name, "module.a.weight"]))
        assert result.weights is not None
        changed = [n for n, w in result.weights.items() if not np.array_equal(w, stored[n])]
        assert changed == ["module.a.weight"]
    with pytest.raises(UnknownTensorError, match=r"a\.weight"):
        launch(Shift(), stored, options=LaunchOptions(tensors=["a.weigt"]))
    twice = {**stored, "_orig_mod.a.weight": gaussian(4, 4)}
    with pytest.raises(UnknownTensorError, match="name one of them"):
        launch(Shift(), twice, options=LaunchOptions(tensors=["a.weight"]))


def test_nothing_to_attack(tmp_path: Path) -> None:
    path = tmp_path / "vectors.safetensors"
    save_file({"a": gaussian(16), "b": np.ones((4, 4), np.int32)}, path)
    for attack in (Noise(), Detect()):
        with pytest.raises(AttackError, match="no floating-point matrix") as caught:
            launch(attack, path)
        one_line(caught.value)
    assert launch(Noise(), path, options=LaunchOptions(tensors=["a"])).change > 0


# Suites.


def test_a_suite_that_runs_nothing_says_why(marked: Path) -> None:
    with pytest.raises(MissingDataError, match="finetune needs data") as caught:
        attacks.suite(marked, KEY, options=attacks.SuiteOptions(only=["finetune"]))
    one_line(caught.value)
    card = attacks.suite(
        marked, KEY, options=attacks.SuiteOptions(only=["finetune", "shift"], jobs=1)
    )
    assert [each.attack for each in card.skipped] == ["finetune"]


def test_a_live_module_is_restructured_whatever_the_jobs(live: tuple[nn.Module, Claim]) -> None:
    model, claim = live
    told = []
    for jobs in (1, 2):
        card = attacks.suite(
            model,
            KEY,
            options=attacks.SuiteOptions(only=["restructure", "shift"], jobs=jobs),
            claim=claim,
        )
        assert {row.attack for row in card.rows} == {"restructure", "shift"}
        told.append([(row.label, p.matched) for row in card.rows for p in row.points])
    assert told[0] == told[1]


# Forgers.


def test_forgers_need_no_mark(marked: Path) -> None:
    clean = marked.with_name("model.safetensors")
    with pytest.raises(NoMarkError):
        launch(Noise(), clean, KEY)
    result = launch(ForgeRandom(2), clean, KEY)
    assert result.before is not None
    assert not result.before.verified
    assert result.key is not None
    assert result.key.parameters == KEY.parameters
    assert result.after is not None
    assert not result.after.verified
