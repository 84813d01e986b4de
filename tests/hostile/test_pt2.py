"""Exported programs that are damaged in one way each: named errors, and nothing is run."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neuralmark.checkpoints import open_checkpoint, pt2
from neuralmark.errors import CheckpointError, MalformedError, UnsafeError
from tests.support.makers import values

CONFIG = "data/weights/model_weights_config.json"
ARRAY = np.arange(6, dtype="<f4").reshape(2, 3)


def entry(**changes: Any) -> dict[str, Any]:
    """What torch writes of a float32 tensor of 2 x 3."""
    meta = {
        "dtype": 7,
        "sizes": [{"as_int": 2}, {"as_int": 3}],
        "strides": [{"as_int": 3}, {"as_int": 1}],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }
    return {"path_name": "weight_0", "use_pickle": False, "tensor_meta": {**meta, **changes}}


def archive(folder: Path, config: Any, weight: bytes = ARRAY.tobytes(), more: str = "") -> Path:
    """An exported program of one weight; `config` as JSON, or as it is if it is a text.

    `more` names an empty record beside it.
    """
    path = folder / "model.pt2"
    told = config if isinstance(config, str) else json.dumps(config)
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("model/archive_format", "pt2")
        made.writestr(f"model/{CONFIG}", told)
        made.writestr("model/data/weights/weight_0", weight)
        if more:
            made.writestr(more, "")
    return path


def listing(**entries: Any) -> dict[str, Any]:
    return {"config": entries}


def saved(value: Any) -> bytes:
    held = io.BytesIO()
    torch.save(value, held)
    return held.getvalue()


def test_a_sound_program_of_the_same_kind(tmp_path: Path) -> None:
    path = archive(tmp_path, listing(w=entry()))
    assert open_checkpoint(path).names() == ["w"]
    assert np.array_equal(values(path, "w"), ARRAY)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("{", "is not valid JSON"),
        ('{"config": {}, "config": {}}', "is not valid JSON"),
        ("\xff", "is not valid JSON"),
        ([], "does not list the weights"),
        ({}, "does not list the weights"),
        ({"config": ["w"]}, "does not list the weights"),
        (listing(w=None), "'w' has no record"),
        (listing(w="weight_0"), "'w' has no record"),
        (listing(w={"path_name": 3, "tensor_meta": {}}), "'w' has no record"),
        (listing(w=entry(sizes=None)), "makes no sense"),
        (listing(w={**entry(), "path_name": "../weight_0"}), "is missing"),
    ],
)
def test_tables_that_make_no_sense_are_refused(tmp_path: Path, config: Any, why: str) -> None:
    with pytest.raises(MalformedError, match=why):
        open_checkpoint(archive(tmp_path, config))


def test_tables_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path, listing(w=entry(), v=entry()))
    with monkeypatch.context() as patched:
        patched.setattr(pt2, "MAX_TENSORS", 1)
        with pytest.raises(MalformedError, match="does not list the weights"):
            open_checkpoint(path)
    monkeypatch.setattr(pt2, "MAX_CONFIG", 10)
    with pytest.raises(UnsafeError, match="is over 10 bytes"):
        open_checkpoint(path)


def test_records_in_several_folders_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path, listing(w=entry()), more="other/data/weights/weight_1")
    with pytest.raises(MalformedError, match="in several folders"):
        open_checkpoint(path)


def test_a_program_without_weights_says_so(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as made:
        made.writestr("model/archive_format", "pt2")
    with pytest.raises(CheckpointError, match="has no weights"):
        open_checkpoint(tmp_path / "model.pt2")


@pytest.mark.parametrize(
    "changes", [{"dtype": 99}, {"dtype": "float"}, {"dtype": None}, {"layout": 1}, {"dtype": []}]
)
def test_what_is_no_plain_tensor_is_an_obstacle(tmp_path: Path, changes: dict[str, Any]) -> None:
    opened = open_checkpoint(archive(tmp_path, listing(w=entry(**changes))))
    assert opened.info("w").obstacle == "it is not a plain dense tensor"
    assert opened.info("w").shape == (2, 3)


def test_objects_of_other_kinds_are_passed_over(tmp_path: Path) -> None:
    other = {"path_name": "custom_obj_0", "tensor_meta": None}
    assert open_checkpoint(archive(tmp_path, listing(w=entry(), o=other))).names() == ["w"]


def test_a_pickled_weight_is_read_and_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    pickled = {**entry(), "use_pickle": True}
    path = archive(tmp_path, listing(w=pickled), saved(torch.from_numpy(ARRAY)))
    assert np.array_equal(values(path, "w"), ARRAY)
    assert "archive within an archive" in str(open_checkpoint(path).info("w").fixed)
    turned = torch.from_numpy(ARRAY).T
    assert np.array_equal(
        values(archive(tmp_path, listing(w=pickled), saved(turned)), "w"), ARRAY.T
    )
    for other in (Trap(), [torch.ones(2)], 3):
        opened = open_checkpoint(archive(tmp_path, listing(w=pickled), saved(other)))
        assert opened.info("w").obstacle == "it is not a plain dense tensor"
    assert not (tmp_path / "sprung").exists()


def test_a_pickled_weight_that_is_damaged(tmp_path: Path) -> None:
    pickled = {**entry(), "use_pickle": True}
    whole = saved(torch.from_numpy(ARRAY))
    for data in (b"", b"PK\x03\x04", whole[:-30], whole[30:]):
        with pytest.raises(CheckpointError):
            open_checkpoint(archive(tmp_path, listing(w=pickled), data))
