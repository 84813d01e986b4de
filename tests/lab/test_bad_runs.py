"""What may be wrong around a run: data, presets, disk, memory, folders of another version."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch

import neuralmark.lab
from neuralmark.errors import ResultsError
from neuralmark.lab import experiments
from neuralmark.lab.execution.checks import check
from neuralmark.lab.execution.engines import OUT_OF_MEMORY, Here, Local, Notify
from neuralmark.lab.execution.runner import FAILED, carry_out
from neuralmark.lab.execution.store import Store
from neuralmark.lab.execution.work import _distribution
from neuralmark.lab.plan.preset import core_seconds, load_preset, preset_names
from neuralmark.lab.plan.spec import Assault, MarkingSpec, Probe, Spec, Training, identity, settings
from tests.support import layouts
from tests.support.commands import call, limited

PRESETS = Path(neuralmark.lab.__file__).parent / "presets"
SMOKE = ("--preset", "smoke")


def test_missing_data_is_told_once(tmp_path: Path) -> None:
    """And what waits for it is not begun."""
    common = ("--preset", "cpu", "--results", tmp_path / "r")
    (tmp_path / "empty").mkdir()
    said = call("lab", "run", "finetune-marked", *common, "--data", tmp_path / "empty")
    assert said.code == 1
    lines = [line for line in said.err.splitlines() if "not finished" in line]
    assert len(lines) == 3  # one for each data set, one for what waits
    for name in ("CIFAR-10", "CIFAR-100"):
        (line,) = [line for line in lines if f"MissingDataSetError: {name}:" in line]
        assert "get it from https://" in line
        assert "5 runs are not finished" in line
    (waits,) = [line for line in lines if "a run that it needs failed" in line]
    assert "10 runs are not finished" in waits


def test_damaged_data(tmp_path: Path) -> None:
    layouts.cifar10(tmp_path)
    batch = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    batch.write_bytes(batch.read_bytes()[:-50])
    preset = tmp_path / "mine.toml"
    text = (PRESETS / "cpu.toml").read_text()
    preset.write_text(text.replace('datasets = ["cifar10", "cifar100"]', 'datasets = ["cifar10"]'))
    given = ("--preset", preset, "--data", tmp_path, "--results", tmp_path / "r", "--json")
    said = call("lab", "run", "distribution", *given)
    assert said.code == 1
    assert {failed["why"].partition(":")[0] for failed in said.json["failed"]} == {
        "DamagedDataSetError"
    }


def test_no_space(tmp_path: Path) -> None:
    """The run fails by name, leaves nothing half-written, and is made another time."""
    common = (*SMOKE, "--results", tmp_path / "r", "--json")
    full = limited(100_000, "lab", "run", "convergence", *common)
    assert full.code == 1
    for failed in full.json["failed"]:
        assert "OutputError: no space left to write" in failed["why"]
    left = sorted(path.name for path in (tmp_path / "r" / "runs").rglob("*") if path.is_file())
    assert left == ["spec.json"] * 2
    done = call("lab", "run", "convergence", *common)
    assert (done.code, done.json["done"]) == (0, 2)


def hungry(spec: Spec, notify: Notify) -> None:
    """Ask for more memory than there is."""
    torch.empty(1 << 50)


def test_out_of_memory_names_the_setting(tmp_path: Path) -> None:
    board = carry_out([Probe("overlap")], Store.open(tmp_path / "r"), Here(hungry))
    (run,) = board.runs.values()
    assert (run.state, run.why) == (FAILED, OUT_OF_MEMORY)
    assert "`batch`" in run.why


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epochs = 2", "epoch = 2", "unknown key 'epoch' in [training]; did you mean 'epochs'?"),
        ("[sweeps]", "[sweep]", "unknown key 'sweep'; did you mean 'sweeps'?"),
        ("epochs = 2", "", "lacks 'epochs' in [training]"),
        ("[training]", "[training", "is not valid TOML"),
        ("[attack]", "[text]\nmodel = []\n[attack]", "'model' in [text]; did you mean 'models'?"),
    ],
)
def test_presets_that_are_none(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (PRESETS / "smoke.toml").read_text()
    (tmp_path / "mine.toml").write_text(text.replace(old, new, 1))
    given = ("--preset", tmp_path / "mine.toml", "--results", tmp_path / "r")
    said = call("lab", "run", "overlap", *given)
    assert message in said.failed(2, "ParameterError")
    assert not (tmp_path / "r").exists()


def test_a_folder_of_another_version_is_never_mixed(tmp_path: Path) -> None:
    (tmp_path / "lab.json").write_text(json.dumps({"lab": 1}))
    before = sorted(tmp_path.rglob("*"))
    for command in (("run", "overlap"), ("show", "overlap"), ("report", "-o", tmp_path / "o")):
        said = call("lab", *command, *SMOKE, "--results", tmp_path)
        assert "was written by version 1 of the lab" in said.failed(3, "ResultsError")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_model_of_another_run(tmp_path: Path) -> None:
    common = (*SMOKE, "--results", tmp_path / "r", "--json")
    assert call("lab", "run", "structural", *common).code == 0
    store = Store.open(tmp_path / "r")
    for row in store.rows():
        home = tmp_path / "r" / "runs" / row["run"]
        if row["spec"]["kind"] == "assault":
            (home / "row.json").unlink()
        else:
            (home / "model.safetensors").write_bytes(b"no model")
    said = call("lab", "run", "structural", *common)
    assert said.code == 1
    assert all("ResultsError" in failed["why"] for failed in said.json["failed"])
    assert all("remove its folder and run again" in failed["why"] for failed in said.json["failed"])


def test_what_runs_cost() -> None:
    preset = load_preset("cpu")
    table = dict(preset.seconds)
    victim = Training("smallcnn", "cifar10", 1, 0.1, 64, mark=MarkingSpec())
    attack = Assault(victim, "overwrite", settings(weight=1.0))
    probe = Probe("overlap")
    wanted = sum(float(table[name]) for name in ("training", "overwrite", "other"))
    assert core_seconds(preset, [victim, attack, probe]) == wanted
    assert core_seconds(load_preset("paper"), [victim]) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rate = 0.05", "rate = nan", "rate in [training] of the preset mine must be a number"),
        ("epochs = 2", 'epochs = "two"', "must be a whole number above 0, not 'two'"),
        ("epochs = 2", "epochs = -1", "must be a whole number above 0, not -1"),
        ("batch = 64", "batch = 0", "must be a whole number above 0, not 0"),
        ("images = 512", "images = 1.5", "must be a whole number above 0, not 1.5"),
        ('datasets = ["digits"]', 'datasets = "digits"', "must be a list, not 'digits'"),
        ('datasets = ["digits"]', "datasets = []", "datasets in [training] of the preset mine is"),
        ('datasets = ["digits"]', 'datasets = ["digit"]', "did you mean 'digits'?"),
        ('[["digits", "digits"]]', '[["digits"]]', "must be lists of 2, not ['digits']"),
        ("seeds = [0]", "seeds = []", "seeds in [training] of the preset mine is empty"),
        ("seeds = [0]", "seeds = [true]", "must be a whole number of 0 or more, not True"),
        ("pruned = [0.1, 0.5, 0.9]", "pruned = [0.1, 1.5]", "not below 1: [1.5]"),
        ('main = "digits"', 'main = "digit"', "did you mean 'digits'?"),
        ('main = "digits"', "main = 3", "main in [training] of the preset mine must be a name"),
        ("[seconds]", "[seconds]\ntraining = -1", "training in [seconds] of the preset mine must"),
    ],
)
def test_values_that_no_run_could_take(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Refused before anything is begun."""
    text = (PRESETS / "smoke.toml").read_text()
    assert old in text
    (tmp_path / "mine.toml").write_text(text.replace(old, new, 1))
    given = ("--preset", tmp_path / "mine.toml", "--results", tmp_path / "r")
    said = call("lab", "run", "pruning", "distribution", *given)
    assert message in said.failed(2, "ParameterError")
    assert not (tmp_path / "r").exists()


def test_every_preset_of_ours_is_sound() -> None:
    for name in preset_names():
        specs = [
            spec for e in experiments.names() for spec in experiments.get(e).runs(load_preset(name))
        ]
        check(specs, PRESETS, "cpu")


def test_what_cannot_work_is_told_at_once(tmp_path: Path) -> None:
    common = ("lab", "run", "fidelity-data", "--results", tmp_path / "r")
    assert "name it (--data DIR)" in call(*common).failed(2, "ParameterError")
    (tmp_path / "file").write_text("")
    said = call(*common, "--data", tmp_path / "file")
    assert "is not a folder" in said.failed(2, "ParameterError")
    if not torch.cuda.is_available():
        said = call(*common, *SMOKE, "--device", "cuda")
        assert "torch finds no GPU here" in said.failed(2, "ParameterError")
    assert not (tmp_path / "r").exists()
    said = call("lab", "report", "--results", tmp_path / "r", "-o", tmp_path / "o")
    assert "there are no results in" in said.failed(3, "ResultsError")


def test_other_data_of_the_same_name_are_refused(tmp_path: Path) -> None:
    """A partial set today and the whole one tomorrow must not meet in one table."""
    store = Store.open(tmp_path / "r")
    store.settle("cifar100-all-all", "a" * 64)
    store.settle("cifar100-all-all", "a" * 64)
    store.settle("cifar100-100-all", "b" * 64)
    with pytest.raises(ResultsError, match="made with other data of the name 'cifar100-all-all'"):
        Store.open(tmp_path / "r").settle("cifar100-all-all", "c" * 64)


def test_runs_settle_their_data(tmp_path: Path) -> None:
    common = (*SMOKE, "--results", tmp_path / "r", "--json")
    assert call("lab", "run", "convergence", *common).code == 0
    (settled,) = (tmp_path / "r" / "data").iterdir()
    assert settled.name == "digits-512-128.json"
    settled.write_text(json.dumps({"digest": "0" * 64}))
    said = call("lab", "run", "distribution", *common)
    assert said.code == 1
    assert all("ResultsError: the runs in" in failed["why"] for failed in said.json["failed"])


def test_a_damaged_head_does_not_advise_to_remove_everything(tmp_path: Path) -> None:
    (tmp_path / "lab.json").write_text("{")
    said = call("lab", "report", "--results", tmp_path, "-o", tmp_path / "o")
    assert "choose another folder" in said.failed(3, "ResultsError")


def test_what_diverges_leaves_a_row(tmp_path: Path) -> None:
    """NaN is no JSON: it becomes null."""
    store = Store.open(tmp_path / "r")
    spec = Probe("overlap")
    store.finish(spec, {"accuracy": 0.1, "history": [{"loss": float("nan")}], "x": (float("inf"),)})
    row = store.row(spec)
    assert row is not None
    assert (row["history"], row["x"]) == ([{"loss": None}], [None])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("weights = [1, 1000]", "weights = []", "weights in [sweeps] of the preset mine is empty"),
        ("rounds = [1, 2]", "rounds = [1, 1]", "holds a value twice: [1, 1]"),
        ("seeds = [0]", "seeds = [0, 0]", "seeds in [training] of the preset mine holds a value"),
        ("[seconds]", "[key]\nbit = 160\n[seconds]", "'bit' in [key]; did you mean 'bits'?"),
        ("[training]", "key = 3\n[training]", "[key] of the preset mine must be a table, not 3"),
        ("[attack]", "[training.options]\nfoo = 1\n[attack]", "digits has no option 'foo'"),
        ('main = "digits"', 'main = "gpt2-tiny"', "gpt2-tiny is for texts"),
    ],
)
def test_presets_that_would_fail_later(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (PRESETS / "smoke.toml").read_text()
    assert old in text
    (tmp_path / "mine.toml").write_text(text.replace(old, new, 1))
    given = ("--preset", tmp_path / "mine.toml", "--results", tmp_path / "r")
    assert message in call("lab", "run", "convergence", *given).failed(2, "ParameterError")


def test_one_is_one(tmp_path: Path) -> None:
    """Whole numbers where any number is asked for give the same runs."""
    text = (PRESETS / "smoke.toml").read_text()
    changed = text.replace("strength = 10.0", "strength = 10")
    changed = changed.replace("weights = [1, ", "weights = [1.0, ")
    assert changed != text
    (tmp_path / "mine.toml").write_text(changed)
    for name in ("modes", "overwrite-lambda"):
        ours, theirs = (
            [identity(spec) for spec in experiments.get(name).runs(load_preset(preset))]
            for preset in ("smoke", str(tmp_path / "mine.toml"))
        )
        assert ours == theirs


def broken(folder: Path, spec: Spec, notify: Notify) -> None:
    """Fail as CUDA does, which is no lack of memory."""
    (folder / f"{os.getpid()}").touch()
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_cuda_error_is_told_and_its_worker_replaced(tmp_path: Path) -> None:
    specs: list[Spec] = [Probe("overlap", seed=seed) for seed in (1, 2)]
    workers = tmp_path / "workers"
    workers.mkdir()
    board = carry_out(specs, Store.open(tmp_path / "r"), Local(partial(broken, workers), 1))
    for run in board.runs.values():
        assert run.state == FAILED
        assert "illegal memory access" in run.why
    assert len(list(workers.iterdir())) == 2


def test_a_diverged_training_leaves_no_distribution() -> None:
    model = torch.nn.Linear(30, 40)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    assert _distribution(model, ("weight",)) is None
