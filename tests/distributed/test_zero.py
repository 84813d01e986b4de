"""Folders that DeepSpeed itself wrote, in two processes: put together, and the mark found."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import neuralmark
from neuralmark import Claim, Key
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import CheckpointError, MalformedError, UsageError
from tests.support.commands import call
from tests.support.makers import values
from tests.support.models import QUICK
from tests.support.processes import torchrun

WORKER = Path(__file__).with_name("zero_worker.py")
KEY = Key(QUICK, salt=bytes(32), secret=bytes(range(32)))
STAGES = [f"stage{n}{half}" for n in (1, 2, 3) for half in ("", "half")]
STEP = "global_step1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zero")
    torch.manual_seed(0)
    sizes = {"0": (255, 64), "2": (96, 255), "3": (5, 96)}
    state = {f"{n}.weight": 0.05 * torch.randn(size) for n, size in sizes.items()}
    state |= {f"{n}.bias": 0.05 * torch.randn(size[0]) for n, size in sizes.items()}
    state["1.factor"] = torch.rand(255)
    save_file(state, folder / "source.safetensors")
    neuralmark.embed(folder / "source.safetensors", KEY, folder / "marked.safetensors")
    torch.save(load_file(folder / "marked.safetensors"), folder / "whole.pt")
    done = torchrun(2, WORKER, str(folder), environment={"DS_ACCELERATOR": "cpu"})
    if done.returncode:
        pytest.fail(done.stderr[-3000:])
    return folder


def claim(folder: Path) -> Claim:
    return Claim.load(next(folder.glob("marked*claim*")))


@pytest.mark.parametrize("stage", STAGES)
def test_weights_are_those_of_deepspeeds_own_conversion(folder: Path, stage: str) -> None:
    converted = torch.load(folder / f"{stage}.pt")
    assert set(converted) <= set(open_checkpoint(folder / stage).names())
    for name, tensor in converted.items():
        assert np.array_equal(values(folder / stage, name), tensor.float().numpy())


@pytest.mark.parametrize("stage", ["stage0", "stage0half", *STAGES])
def test_nothing_is_missing(folder: Path, stage: str) -> None:
    assert set(open_checkpoint(folder / stage).names()) == set(torch.load(folder / "whole.pt"))


@pytest.mark.parametrize("stage", ["stage0", *STAGES])
def test_the_mark_is_found(folder: Path, stage: str) -> None:
    for path in (folder / stage, folder / stage / STEP):
        verdict = neuralmark.verify(path, KEY, claim=claim(folder))
        assert verdict.verified
        assert verdict.matched == 160


def test_inspect_shows_what_was_found(folder: Path) -> None:
    shown = call("inspect", folder / "stage3", "--json").json
    assert shown["format"] == "deepspeed"
    assert {row["name"]: row["shape"] for row in shown["rows"]}["2.weight"] == [96, 255]


def test_one_partition_alone_is_listed(folder: Path) -> None:
    file = folder / "stage2" / STEP / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    names = open_checkpoint(file).names()
    assert names[0] == "optimizer_state_dict.single_partition_of_fp32_groups.0"


def test_marking_says_what_to_convert(folder: Path, tmp_path: Path) -> None:
    for stage in ("stage0", "stage2"):
        with pytest.raises(UsageError, match=r"zero_to_fp32\.py"):
            neuralmark.embed(folder / stage, KEY, tmp_path / "out")


def test_a_missing_process_is_noticed(folder: Path, tmp_path: Path) -> None:
    for stage in ("stage1", "stage3"):
        copy = tmp_path / stage
        shutil.copytree(folder / stage, copy)
        next((copy / STEP).glob("*rank_1_mp*optim*")).unlink()
        with pytest.raises(MalformedError, match="partitions of 1 processes, of 2"):
            open_checkpoint(copy)


def test_a_model_that_several_processes_share_says_what_to_run(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "stage1", tmp_path / "copy")
    states = tmp_path / "copy" / STEP / "mp_rank_00_model_states.pt"
    shutil.copy(states, states.with_name("mp_rank_01_model_states.pt"))
    with pytest.raises(CheckpointError, match="ds_to_universal"):
        open_checkpoint(tmp_path / "copy")


@pytest.mark.parametrize("told", ["../elsewhere", "", ".."])
def test_the_latest_folder_must_be_inside(folder: Path, tmp_path: Path, told: str) -> None:
    shutil.copytree(folder / "stage1", tmp_path / "copy")
    (tmp_path / "copy" / "latest").write_text(told)
    with pytest.raises(CheckpointError):
        open_checkpoint(tmp_path / "copy")
