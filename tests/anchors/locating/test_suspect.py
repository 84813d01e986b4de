"""A suspect's weights: the same from memory and from files of every format, whole and in part."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from neuralmark.anchors.locating import suspect as module
from neuralmark.anchors.locating.suspect import CheckpointWeights, TableWeights, take
from neuralmark.checkpoints import open_checkpoint
from neuralmark.checkpoints.readers.memory import MemoryCheckpoint
from tests.support.models import gaussian

TABLE = {
    "a": gaussian(40, 30),
    "b": gaussian(5, 4, 3, 3, seed=1),
    "c": gaussian(17, seed=2),
    "stack": gaussian(6, 40, 30, seed=3),
}


def opened(folder: Path, form: str) -> CheckpointWeights:
    path = folder / f"model.{form}"
    if form == "safetensors":
        save_file(TABLE, path)
    elif form == "npz":
        arrays: dict[str, Any] = dict(TABLE)
        np.savez_compressed(path, **arrays)
    elif form == "memory":
        return CheckpointWeights(MemoryCheckpoint(TABLE))
    elif form == "last.pt":
        tensors = {name: torch.from_numpy(value) for name, value in TABLE.items()}
        tensors["b"] = tensors["b"].contiguous(memory_format=torch.channels_last)
        torch.save(tensors, path)
    return CheckpointWeights(open_checkpoint(path))


FORMS = pytest.mark.parametrize("form", ["safetensors", "npz", "memory", "last.pt"])


@FORMS
def test_whole_tensors(form: str, tmp_path: Path) -> None:
    found = opened(tmp_path, form)
    assert dict(found.shapes) == {name: value.shape for name, value in TABLE.items()}
    assert len(found) == len(TABLE)
    for name in found:
        np.testing.assert_array_equal(found[name], TABLE[name])
        np.testing.assert_array_equal(found[name], TABLE[name])


@FORMS
@pytest.mark.parametrize("rows", [[0], [3, 1, 1, 4], [4, 0], [0, 1, 2, 3, 4]])
def test_rows_in_any_order(form: str, rows: list[int], tmp_path: Path) -> None:
    found, chosen = opened(tmp_path, form), np.array(rows)
    for name, value in TABLE.items():
        np.testing.assert_array_equal(found.read_rows(name, chosen), value[chosen])
    deep = found.read_rows("stack", chosen + 77, axes=2)
    np.testing.assert_array_equal(deep, TABLE["stack"].reshape(240, 30)[chosen + 77])


@FORMS
def test_a_part_of_a_stack(form: str, tmp_path: Path) -> None:
    index = np.array([2]), np.array([1, 30]), np.array([5])
    part = take(opened(tmp_path, form), "stack", index)
    np.testing.assert_array_equal(part, TABLE["stack"][np.ix_(*index)])


def test_rows_are_read_without_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"large": gaussian(2000, 300)}, tmp_path / "large.safetensors")
    found = CheckpointWeights(open_checkpoint(tmp_path / "large.safetensors"))
    runs = []
    checkpoint = found._checkpoint
    whole = checkpoint.read_run

    def counted(name: str, start: int, stop: int) -> object:
        runs.append(stop - start)
        return whole(name, start, stop)

    monkeypatch.setattr(checkpoint, "read_run", counted)
    found.read_rows("large", np.array([0, 1000, 1999]))
    assert runs == [300, 300, 300]
    runs.clear()
    found.read_rows("large", np.arange(100, 200))
    assert runs == [30_000]


def test_what_is_no_weight_is_left_out(tmp_path: Path) -> None:
    table: dict[str, Any] = {
        "whole": np.arange(4),
        "none": np.zeros((0, 3), np.float32),
        "one": np.ones((), np.float32),
        "half": gaussian(4, 4).astype(np.float16),
    }
    save_file(table, tmp_path / "odd.safetensors")
    found = CheckpointWeights(open_checkpoint(tmp_path / "odd.safetensors"))
    assert set(found) == {"half"}
    assert found["half"].dtype == np.float32
    weights = TableWeights({k: v for k, v in table.items() if k != "whole"})
    assert set(weights) == {"half"}
    assert len(weights) == 1


def test_kept_tensors_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 2 * TABLE["a"].nbytes)
    found = opened(tmp_path, "npz")
    for name in TABLE:
        found[name]
    assert set(found._kept) <= {"a", "b", "c"}
    assert sum(value.nbytes for value in found._kept.values()) <= 2 * TABLE["a"].nbytes


def test_values_beyond_float32_become_infinite(tmp_path: Path) -> None:
    save_file({"wide": np.array([1e300, 1.0])}, tmp_path / "wide.safetensors")
    found = CheckpointWeights(open_checkpoint(tmp_path / "wide.safetensors"))
    np.testing.assert_array_equal(found["wide"], [np.inf, 1])
