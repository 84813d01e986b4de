"""Files that become shorter after they were opened: a named error, never wrong values."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from neuralmark.checkpoints import npz, open_checkpoint
from neuralmark.checkpoints.readers import zipped
from neuralmark.errors import CheckpointError, MalformedError
from tests.support.checks import raw
from tests.support.models import gaussian


def write(path: Path, kind: str) -> Path:
    array = gaussian(200, 300)
    if kind == "safetensors":
        save_file({"a": array}, path)
    elif kind == "torch":
        torch.save({"a": torch.from_numpy(array)}, path)
    elif kind == "strided":
        torch.save({"a": torch.from_numpy(array).T}, path)
    else:
        saver: Any = np.savez_compressed if kind == "packed" else np.savez
        with path.open("wb") as file:
            saver(file, a=array)
    return path


@pytest.mark.parametrize("kind", ["safetensors", "torch", "strided", "stored", "packed"])
def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "m", kind)
    checkpoint = open_checkpoint(path)
    whole = raw(checkpoint, "a")
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(CheckpointError):
        raw(checkpoint, "a")
    os.truncate(path, 100)
    with pytest.raises(CheckpointError):
        raw(checkpoint, "a")
    if checkpoint.in_order("a"):
        with pytest.raises(MalformedError, match="ends inside 'a'"):
            checkpoint.read_run("a", 50_000, 60_000)
    write(path, kind)
    assert raw(checkpoint, "a") == whole


def test_an_archive_that_shrinks_before_its_records_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "m", "torch")
    records = zipped.directory(path)
    last = max(records.values(), key=lambda record: record.header)
    os.truncate(path, last.header + 3)
    with path.open("rb") as file, pytest.raises(MalformedError, match="contradicts"):
        zipped.place(path, file, last)


def test_an_archive_that_shrinks_while_it_is_written(tmp_path: Path) -> None:
    """The checksums of a record are renewed from what is in the file."""
    path, out = write(tmp_path / "m", "torch"), tmp_path / "out"
    checkpoint = open_checkpoint(path)
    new = bytes(200 * 300 * 4)
    os.truncate(path, 1000)
    with pytest.raises(CheckpointError):
        checkpoint.write(out, {"a": lambda: iter([new[:400]])})


def test_too_many_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "MAX_TENSORS", 2)
    np.savez(tmp_path / "m.npz", a=gaussian(2), b=gaussian(2), c=gaussian(2))
    with pytest.raises(MalformedError, match="3 arrays, over 2"):
        open_checkpoint(tmp_path / "m.npz")
