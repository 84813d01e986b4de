"""Folders and indices that lead outside, lie or loop: named errors, nothing outside touched."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import (
    CheckpointError,
    MalformedError,
    NeuralMarkError,
    UnknownFormatError,
    UnsafeError,
)
from tests.support.checks import content_of, one_line
from tests.support.commands import call
from tests.support.models import plain_key, sharded_model

FIRST = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return sharded_model(tmp_path / "model")


def index_of(folder: Path) -> Path:
    return folder / "model.safetensors.index.json"


def rewrite(folder: Path, table: Any) -> None:
    index_of(folder).write_text(json.dumps({"weight_map": table}))


def refused(path: Path, error: type[NeuralMarkError]) -> str:
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    assert type(caught.value) is error
    return one_line(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "..",
        ".",
        "",
        "/",
        "/etc/passwd",
        "/tmp/x.safetensors",
        "sub/x.safetensors",
        "./" + FIRST,
        FIRST + "/",
        "sub\\x.safetensors",
        "..\\x.safetensors",
        "C:\\x.safetensors",
        "\\\\server\\x.safetensors",
        "x.safetensors\0",
        "\0.safetensors",
        "x\n.safetensors",
        "config.json",
        "model.bin",
        "x.safetensors.index.json",
        "SAFETENSORS",
        "x" * 100_000 + ".safetensor",
    ],
)
def test_names_that_leave_the_folder(folder: Path, name: str) -> None:
    (folder.parent / "secret.safetensors").write_bytes((folder / FIRST).read_bytes())
    rewrite(folder, {"a.weight": name})
    for path in (folder, index_of(folder)):
        refused(path, UnsafeError)


def test_missing_shard(folder: Path) -> None:
    (folder / SECOND).unlink()
    assert SECOND in refused(folder, MalformedError)
    (folder / SECOND).mkdir()
    refused(folder, MalformedError)
    (folder / SECOND).rmdir()
    (folder / SECOND).symlink_to(folder / "nowhere")
    refused(folder, MalformedError)


def test_name_that_is_too_long(folder: Path) -> None:
    rewrite(folder, {"a.weight": "x" * 300 + ".safetensors"})
    refused(folder, CheckpointError)


def test_tensor_that_is_not_in_its_shard(folder: Path) -> None:
    rewrite(folder, {"a.weight": SECOND, "b.weight": SECOND})
    assert "'a.weight'" in refused(folder, MalformedError)
    rewrite(folder, {"a.weight": FIRST, "x" * 10_000: SECOND})
    refused(folder, MalformedError)


@pytest.mark.parametrize("table", [None, [], {}, "a", 1, {"a.weight": None}, {"a.weight": [FIRST]}])
def test_table_that_is_none(folder: Path, table: Any) -> None:
    rewrite(folder, table)
    refused(folder, MalformedError)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"{",
        b'{"weight_map": {"a": "x", "a": "y"}}',
        b'{"weight_map": ' + b"[" * 100_000,
        b"\xff\xfe",
        b'{"weight_map": {"a": NaN}}',
    ],
)
def test_index_that_is_none(folder: Path, content: bytes) -> None:
    index_of(folder).write_bytes(content)
    refused(folder, MalformedError)
    refused(index_of(folder), MalformedError)


def test_index_truncated_at_every_byte(folder: Path) -> None:
    whole = index_of(folder).read_bytes()
    for length in range(len(whole)):
        index_of(folder).write_bytes(whole[:length])
        refused(folder, MalformedError)


def test_huge_index(folder: Path) -> None:
    with index_of(folder).open("ab") as file:
        file.truncate((16 << 20) + 1)
    assert "larger than an index" in refused(folder, MalformedError)
    rewrite(folder, {f"t{i}": f"s{i}.safetensors" for i in range(10_001)})
    assert "10,001 shards" in refused(folder, MalformedError)


def test_index_that_names_itself(tmp_path: Path) -> None:
    index = tmp_path / "a.json.index.json"
    index.write_text(json.dumps({"weight_map": {"w": index.name}}))
    refused(index, UnsafeError)


def test_shard_that_is_damaged_or_foreign(folder: Path) -> None:
    whole = (folder / FIRST).read_bytes()
    (folder / FIRST).write_bytes(whole[:-1])
    assert FIRST in refused(folder, MalformedError)
    (folder / FIRST).write_bytes(b"GIF89a, not a model")
    refused(folder, UnknownFormatError)


def test_tensors_outside_the_index_do_not_count(folder: Path) -> None:
    rewrite(folder, {"a.weight": FIRST, "b.weight": SECOND})
    assert open_checkpoint(folder).names() == ["a.weight", "b.weight"]


def test_folders_without_a_model(tmp_path: Path) -> None:
    assert "no model file" in refused(tmp_path, UnknownFormatError)
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(b"")
    assert "2 safetensors files but no index" in refused(tmp_path, UnknownFormatError)


def test_links_to_folders_are_not_followed(folder: Path, tmp_path: Path) -> None:
    key, out = plain_key(tmp_path / "k.nmkey"), tmp_path / "out"
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "diary.txt").write_text("dear diary")
    for target in (secret, folder, Path("/")):
        (folder / "link").symlink_to(target)
        result = call("embed", folder, "--key", key, "-o", out)
        assert "links to a folder" in result.failed(3, "UnsafeError")
        assert not out.exists()
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
        (folder / "link").unlink()


def test_links_to_files_are_copied(folder: Path, tmp_path: Path) -> None:
    key, out = plain_key(tmp_path / "k.nmkey"), tmp_path / "out"
    blob = tmp_path / "blob"
    (folder / FIRST).rename(blob)
    (folder / FIRST).symlink_to(blob)
    before = blob.read_bytes()
    assert call("embed", folder, "--key", key, "-o", out).code == 0
    assert not (out / FIRST).is_symlink()
    assert call("embed", folder, "--key", key, "--in-place").code == 2
    assert blob.read_bytes() == before


def test_things_that_are_no_files(folder: Path, tmp_path: Path) -> None:
    key, out = plain_key(tmp_path / "k.nmkey"), tmp_path / "out"
    os.mkfifo(folder / "pipe")
    assert "pipe" in call("embed", folder, "--key", key, "-o", out).failed(3, "UnsafeError")
    (folder / "pipe").unlink()
    (folder / "gone").symlink_to("nowhere")
    call("embed", folder, "--key", key, "-o", out).failed(3, "UnsafeError")
    assert not out.exists()
    assert set(content_of(tmp_path)) >= {"k.nmkey"}
