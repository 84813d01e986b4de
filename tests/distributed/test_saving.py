"""What four real processes save of one marked model: read as one, and the mark found in it."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import neuralmark
from neuralmark import Claim, Key
from neuralmark.checkpoints import open_checkpoint
from neuralmark.checkpoints.readers.dtypes import decode
from neuralmark.errors import CheckpointError, MalformedError, UsageError
from tests.support.checks import trouble_of
from tests.support.commands import call
from tests.support.makers import values
from tests.support.models import QUICK
from tests.support.processes import torchrun

WORKER = Path(__file__).with_name("saving_worker.py")
KEY = Key(QUICK, salt=bytes(32), secret=bytes(range(32)))
WAYS = ("rows", "columns", "both", "old")
SAVED = [*(f"dcp-{way}" for way in (*WAYS, "hub")), *(f"ranks-{way}" for way in WAYS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saving")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Linear(64, 257), torch.nn.ReLU(), torch.nn.Linear(257, 96)),
        torch.nn.Linear(96, 5),  # of four ranks, the last has nothing of it
    )
    save_file(model.state_dict(), folder / "source.safetensors")
    neuralmark.embed(folder / "source.safetensors", KEY, folder / "marked.safetensors")
    torch.save(load_file(folder / "marked.safetensors"), folder / "whole.pt")
    done = torchrun(4, WORKER, str(folder))
    if done.returncode:
        pytest.fail(done.stderr[-3000:])
    return folder


def claim(folder: Path) -> Claim:
    return Claim.load(next(folder.glob("marked*claim*")))


@pytest.mark.parametrize("saved", SAVED)
def test_parts_are_joined(folder: Path, saved: str) -> None:
    whole = load_file(folder / "marked.safetensors")
    assert set(open_checkpoint(folder / saved).names()) == set(whole)
    for name, tensor in whole.items():
        assert np.array_equal(values(folder / saved, name), tensor.numpy())
        stop = min(90, tensor.numel())
        run = decode(open_checkpoint(folder / saved).read_run(name, 3, stop), "F32")
        assert np.array_equal(run, tensor.numpy().reshape(-1)[3:stop])


@pytest.mark.parametrize("saved", SAVED)
def test_the_mark_is_found(folder: Path, saved: str) -> None:
    verdict = neuralmark.verify(folder / saved, KEY, claim=claim(folder))
    assert verdict.verified
    assert verdict.matched == 160


def test_halves_are_shown_as_they_are_stored(folder: Path) -> None:
    for saved in ("dcp-half", "ranks-half"):
        assert open_checkpoint(folder / saved).info("0.weight").stored == "BF16"
        assert neuralmark.verify(folder / saved, KEY, claim=claim(folder)).verified


def test_inspect_shows_what_was_found(folder: Path) -> None:
    for saved, form in (("dcp-both", "dcp"), ("ranks-both", "fsdp")):
        shown = call("inspect", folder / saved, "--json").json
        assert shown["format"] == form
        assert {row["name"]: row["shape"] for row in shown["rows"]}["0.weight"] == [257, 64]


def test_local_state_says_what_to_save(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"local state of FSDP.*; save with"):
        open_checkpoint(folder / "ranks-local")


def test_one_rank_alone_asks_for_the_others(folder: Path) -> None:
    info = open_checkpoint(folder / "ranks-both" / "model_rank_1.pt").info("0.weight")
    assert info.obstacle is not None
    assert "give the folder" in info.obstacle
    assert info.shape == (257, 64)


@pytest.mark.parametrize("way", WAYS)
def test_a_missing_rank_is_noticed(folder: Path, way: str, tmp_path: Path) -> None:
    for gone in ("model_rank_0.pt", "model_rank_3.pt"):
        copy = tmp_path / gone
        shutil.copytree(folder / f"ranks-{way}", copy)
        (copy / gone).unlink()
        with pytest.raises(MalformedError):
            open_checkpoint(copy)


def test_a_missing_part_is_noticed(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "dcp-rows", tmp_path / "copy")
    (tmp_path / "copy" / "__2_0.distcp").unlink()
    with pytest.raises(MalformedError, match=r"__2_0\.distcp is missing"):
        open_checkpoint(tmp_path / "copy")


def test_a_missing_shard_of_the_hub_is_noticed(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "dcp-hub", tmp_path / "copy")
    sorted((tmp_path / "copy").iterdir())[1].unlink()
    with pytest.raises(MalformedError, match="do not cover"):
        open_checkpoint(tmp_path / "copy")


def test_marking_says_what_to_convert(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dcp_to_torch"):
        neuralmark.embed(folder / "dcp-rows", KEY, tmp_path / "out")


def test_every_damaged_byte_of_the_metadata_is_a_named_error(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder / "dcp-both", copy)
    whole = (copy / ".metadata").read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 300):
        damaged = bytearray(whole)
        damaged[place] ^= int(rng.integers(1, 256))
        (copy / ".metadata").write_bytes(damaged)
        told = trouble_of(copy)
        assert told is None or "\n" not in told
