"""Distributed checkpoints whose metadata or parts are damaged in one way each: named errors."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo

from neuralmark.checkpoints import dcp, open_checkpoint
from neuralmark.errors import CheckpointError, MalformedError, UnsafeError
from tests.support.makers import dcp as maker
from tests.support.makers import values

ARRAYS = {"w": np.arange(24, dtype=np.float32).reshape(4, 6), "v": np.ones(6, np.float32)}
KEY = "model.w"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return maker.make(ARRAYS, tmp_path)


def change(folder: Path, alter: Callable[[Any], Any]) -> None:
    """Alter the metadata in place, or give other metadata."""
    told = pickle.loads((folder / ".metadata").read_bytes())
    (folder / ".metadata").write_bytes(pickle.dumps(alter(told) or told))


def index(told: Any) -> Any:
    """The entry that says where the weight lies."""
    return next(each for each in told.storage_data if each.fqn == KEY)


def place(told: Any, **changes: Any) -> None:
    at = index(told)
    told.storage_data[at] = replace(told.storage_data[at], **changes)


def entry(told: Any, **changes: Any) -> None:
    told.state_dict_metadata[KEY] = replace(told.state_dict_metadata[KEY], **changes)


def chunk(told: Any, **changes: Any) -> None:
    entry(told, chunks=[replace(told.state_dict_metadata[KEY].chunks[0], **changes)])


def test_metadata_that_was_only_written_again(folder: Path) -> None:
    change(folder, lambda told: None)
    assert np.array_equal(values(folder, "w"), ARRAYS["w"])


@pytest.mark.parametrize(
    ("alter", "why"),
    [
        (lambda told: {"w": 1}, "is not the metadata of a distributed checkpoint"),
        (lambda told: metadata.MetadataIndex("w"), "is not the metadata of a distributed"),
        (lambda told: replace(told, storage_data=None), "does not say which tensors"),
        (lambda told: replace(told, state_dict_metadata=[]), "does not say which tensors"),
        (lambda told: entry(told, size=None), "has no shape, or no parts"),
        (lambda told: entry(told, size=(-4, 6)), "has no shape, or no parts"),
        (lambda told: entry(told, chunks=[]), "has no shape, or no parts"),
        (lambda told: entry(told, chunks=None), "has no shape, or no parts"),
        (lambda told: entry(told, properties=None), "has no dtype"),
        (lambda told: entry(told, chunks=["all of it"]), "has a part without a place"),
        (lambda told: chunk(told, offsets=None), "has a part without a place"),
        (lambda told: chunk(told, sizes=(4,)), "has a part without a place"),
        (lambda told: chunk(told, offsets=(1, 0)), "has a part that is nowhere"),
        (lambda told: chunk(told, sizes=(1 << 20, 6)), "has a part that is shorter than it says"),
        (lambda told: chunk(told, sizes=(3, 6)), "do not cover it"),
        (lambda told: entry(told, size=(5, 6)), "do not cover it"),
        (lambda told: place(told, relative_path=None), "has a part without a file"),
        (lambda told: place(told, offset=-1), "has a part without a file"),
        (lambda told: place(told, length="all"), "has a part without a file"),
        (lambda told: place(told, length=1 << 40), "is cut off"),
        (lambda told: place(told, relative_path="absent.distcp"), "is missing"),
        (lambda told: told.storage_data.pop(index(told)) and None, "has a part that is nowhere"),
    ],
)
def test_metadata_that_lies_is_refused(folder: Path, alter: Callable[[Any], Any], why: str) -> None:
    change(folder, alter)
    with pytest.raises(MalformedError, match=why):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["../__0_0.distcp", "/etc/passwd", "..", "sub/__0_0.distcp"])
def test_parts_outside_the_folder_are_refused(folder: Path, name: str) -> None:
    change(folder, lambda told: place(told, relative_path=name))
    with pytest.raises(UnsafeError):
        open_checkpoint(folder)


def test_parts_at_the_same_bytes_are_refused(folder: Path) -> None:
    def alter(told: Any) -> None:
        other = next(each for each in told.storage_data if each.fqn == "model.v")
        there = told.storage_data[other]
        place(told, offset=there.offset, length=there.length)

    change(folder, alter)
    with pytest.raises(MalformedError, match="two parts lie at the same bytes"):
        open_checkpoint(folder)


def test_compressed_parts_say_what_to_do(folder: Path) -> None:
    change(folder, lambda told: place(told, transform_descriptors=["zstd"]))
    with pytest.raises(CheckpointError, match="is compressed, which is not read"):
        open_checkpoint(folder)


def test_too_many_parts_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp, "MAX_TENSORS", 3)
    with pytest.raises(UnsafeError, match="over 3 parts"):
        open_checkpoint(folder)


def test_properties_that_are_pickled_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = pickle.loads((folder / ".metadata").read_bytes())
    monkeypatch.delattr(metadata.TensorProperties, "__getstate__")
    monkeypatch.setattr(
        metadata.TensorProperties,
        "__reduce__",
        lambda self: (type(self), (), {"dtype": self.dtype}),
    )
    (folder / ".metadata").write_bytes(pickle.dumps(told))
    assert np.array_equal(values(folder, "w"), ARRAYS["w"])


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ([1, 2, 3], "is not a tensor"),
        (torch.zeros(6, 4), "is not what it should be"),
        (torch.zeros(4, 6, dtype=torch.float64), "is not what it should be"),
        (torch.zeros(1).expand(4, 6), "is not what it should be"),
    ],
)
def test_parts_of_another_kind_are_refused(folder: Path, other: Any, why: str) -> None:
    """The metadata is in order; the file that it names holds something else."""
    torch.save(other, folder / "other.distcp")
    size = (folder / "other.distcp").stat().st_size
    change(folder, lambda told: place(told, relative_path="other.distcp", offset=0, length=size))
    opened = open_checkpoint(folder)
    with pytest.raises(MalformedError, match=why):
        list(opened.read("w"))


def test_storage_that_is_not_of_tensors_is_passed_over(folder: Path) -> None:
    def alter(told: Any) -> None:
        told.storage_data["a text"] = _StorageInfo("/etc/passwd", 0, 1)
        told.storage_data[metadata.MetadataIndex("absent")] = _StorageInfo("/etc/passwd", 0, 1)

    change(folder, alter)
    assert np.array_equal(values(folder, "w"), ARRAYS["w"])


def shard(folder: Path, number: int, array: Any, told: Any) -> None:
    """What the writer for Hugging Face leaves of one process."""
    text = told if isinstance(told, str) else json.dumps(told)
    name = f"shard-{number:05}-model-00001-of-00001.safetensors"
    save_file({"w": array}, folder / name, {"DCP_SHARDING_INFO": text})


HALF = np.ones((2, 6), np.float32)


@pytest.mark.parametrize(
    ("array", "told", "why"),
    [
        (HALF, "{", "its sharding is not valid JSON"),
        (HALF, [], "does not say where its parts begin"),
        (HALF, {"w": [2, 0]}, "does not say where its parts begin"),
        (HALF, {"w": {}}, "does not say where its 'w' begins"),
        (HALF, {"w": {"saved_offsets": [2]}}, "does not say where its 'w' begins"),
        (HALF, {"w": {"saved_offsets": [-2, 0]}}, "does not say where its 'w' begins"),
        (HALF, {"w": {"saved_offsets": [3, 0]}}, "do not cover it"),
        (HALF, {"w": {"saved_offsets": [1, 0]}}, "do not cover it"),
        (HALF.astype(np.float16), {"w": {"saved_offsets": [2, 0]}}, "are not of one kind"),
        (HALF[0], {"w": {"saved_offsets": [12]}}, "are not of one kind"),
    ],
)
def test_shards_that_lie_are_refused(tmp_path: Path, array: Any, told: Any, why: str) -> None:
    shard(tmp_path, 1, HALF, {"w": {"saved_offsets": [0, 0]}})
    shard(tmp_path, 2, HALF * 2, {"w": {"saved_offsets": [2, 0]}})
    assert np.array_equal(values(tmp_path, "w"), np.concatenate([HALF, HALF * 2]))
    shard(tmp_path, 2, array, told)
    with pytest.raises(MalformedError, match=why):
        open_checkpoint(tmp_path)
