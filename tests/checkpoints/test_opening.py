"""Opening: what is refused whatever the format, and what a folder stands for."""

from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file

from neuralmark.checkpoints import open_checkpoint, safetensors
from neuralmark.checkpoints.readers.memory import MemoryCheckpoint
from neuralmark.errors import CheckpointError, MalformedError
from tests.support.checks import one_line, raw
from tests.support.models import gaussian


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_checkpoint("x" * 5000)


def test_half_of_a_character_is_no_name(tmp_path: Path) -> None:
    torch.save({"a\ud800": torch.ones(2)}, tmp_path / "m.pt")
    with pytest.raises(MalformedError, match="not valid text") as caught:
        open_checkpoint(tmp_path / "m.pt")
    one_line(caught.value)


def test_a_folder_with_one_file_of_any_name(tmp_path: Path) -> None:
    save_file({"a": gaussian(3, 4)}, tmp_path / "adapter.safetensors")
    assert open_checkpoint(tmp_path).names() == ["a"]


def test_too_many_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors, "MAX_TENSORS", 2)
    save_file({name: gaussian(2) for name in "abc"}, tmp_path / "m.safetensors")
    with pytest.raises(MalformedError):
        open_checkpoint(tmp_path / "m.safetensors")


def test_an_empty_tensor_with_strides_has_no_bytes(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(9.0).as_strided((0, 3), (1, 3))}, tmp_path / "m.pt")
    checkpoint = open_checkpoint(tmp_path / "m.pt")
    assert checkpoint.info("a").shape == (0, 3)
    assert raw(checkpoint, "a") == b""


def test_arrays_in_memory_are_in_no_file() -> None:
    arrays = {"a": gaussian(3, 4), "b": gaussian(3, 4)}
    checkpoint = MemoryCheckpoint(arrays)
    assert (checkpoint.files(), checkpoint.tied(), checkpoint.stamps()) == ([], set(), [])
    assert raw(checkpoint, "b") == arrays["b"].tobytes()
