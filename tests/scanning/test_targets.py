"""Which models are looked at."""

import io
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from neuralmark import RemoteOptions
from neuralmark.errors import CheckpointError, ParameterError
from neuralmark.scanning import targets
from neuralmark.scanning.targets import stamp_of, targets_of
from tests.support.models import gaussian_model, sharded_model
from tests.support.scans import MirroredAddress, mirrored


def names(*given: object, **more: object) -> list[str]:
    return [Path(each).name for each in targets_of(map(str, given), **more)]  # type: ignore[arg-type]


def test_folders_are_searched(tmp_path: Path) -> None:
    gaussian_model(tmp_path / "b.safetensors")
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    gaussian_model(tmp_path / "deep" / "deeper" / "c.safetensors")
    for name in ("a.pt", "x.GGUF", "notes.txt", "k.nmkey", "b.safetensors.claim.json", "b.anchor"):
        (tmp_path / name).write_bytes(b"?")
    (tmp_path / ".git").mkdir()
    gaussian_model(tmp_path / ".git" / "old.safetensors")
    assert names(tmp_path) == ["a.pt", "b.safetensors", "x.GGUF", "c.safetensors"]


def test_a_model_of_shards_is_its_index(tmp_path: Path) -> None:
    sharded_model(tmp_path / "whole")
    assert names(tmp_path) == ["model.safetensors.index.json"]
    (tmp_path / "dcp").mkdir()
    for name in (".metadata", "__0_0.distcp", "a.safetensors"):
        (tmp_path / "dcp" / name).write_bytes(b"?")
    assert names(tmp_path) == ["dcp", "model.safetensors.index.json"]


def test_files_are_known_by_how_they_begin(tmp_path: Path) -> None:
    gaussian_model(tmp_path / "renamed.dat")
    (tmp_path / "other.dat").write_bytes(b"GGUF and so on")
    (tmp_path / "none.dat").write_bytes(b"nothing of the kind")
    os.mkfifo(tmp_path / "pipe")
    assert names(tmp_path) == ["other.dat", "renamed.dat"]


def test_globs_addresses_and_what_is_not_there_pass_through(tmp_path: Path) -> None:
    gaussian_model(tmp_path / "b.safetensors")
    gaussian_model(tmp_path / "a.safetensors")
    assert sorted(names(tmp_path / "*.safetensors")) == ["a.safetensors", "b.safetensors"]
    given = ["s3://bucket/x", str(tmp_path / "none.npz"), str(tmp_path / "none-*.npz")]
    assert list(targets_of(given)) == given
    assert list(targets_of(["with\0zero"])) == ["with\0zero"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert list(targets_of([str(empty)])) == [str(empty)]


def test_what_is_named_is_taken_whatever_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("?")
    assert names(tmp_path / "notes.txt") == ["notes.txt"]


def test_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gaussian_model(tmp_path / "a.safetensors")
    listed = tmp_path / "list.txt"
    listed.write_text(f"# these\n\nhf://owner/name\n{tmp_path}\n")
    assert list(targets_of([], [listed])) == ["hf://owner/name", str(tmp_path / "a.safetensors")]
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    assert list(targets_of([], ["-"])) == ["one", "two"]
    with pytest.raises(ParameterError, match="no list of targets"):
        list(targets_of([], [tmp_path / "none"]))
    listed.write_bytes(b"\xff\0")
    with pytest.raises(ParameterError, match="no list of targets"):
        list(targets_of([], [listed]))


def test_our_own_folder_is_left_out(tmp_path: Path) -> None:
    gaussian_model(tmp_path / "a.safetensors")
    (tmp_path / "out").mkdir()
    gaussian_model(tmp_path / "out" / "b.safetensors")
    assert names(tmp_path, skip=tmp_path / "out") == ["a.safetensors"]


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    gaussian_model(tmp_path / "real" / "a.safetensors")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "real" / "a.safetensors")
    assert names(tmp_path) == ["link.safetensors", "a.safetensors"]


def test_a_huge_folder_is_read_as_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "MOST_SORTED", 8)
    for number in range(500):
        (tmp_path / f"{number:03}.npz").touch()
    looked: list[Path] = []
    usual = targets.is_model_file

    def noted(path: Path) -> bool:
        looked.append(path)
        return usual(path)

    monkeypatch.setattr(targets, "is_model_file", noted)
    assert len(list(islice(targets_of([tmp_path]), 20))) == 20
    assert len(looked) < 25
    assert len(set(targets_of([tmp_path]))) == 500


def test_stamps_change_with_files(tmp_path: Path) -> None:
    model = gaussian_model(tmp_path / "a.safetensors")
    before, when = stamp_of(str(model))
    assert before == stamp_of(str(model))[0]
    assert when == pytest.approx(model.stat().st_mtime)
    os.utime(model, (1, 1))
    assert stamp_of(str(model)) != (before, when)
    assert stamp_of(str(model))[1] == 1
    assert stamp_of("s3://bucket/x") == stamp_of(str(tmp_path / "none")) == (None, None)


def test_the_stamp_of_an_index_is_that_of_its_folder(tmp_path: Path) -> None:
    folder = sharded_model(tmp_path / "whole")
    index = str(folder / "model.safetensors.index.json")
    before = stamp_of(index)
    assert before == stamp_of(str(folder))
    os.utime(folder / "model-00002-of-00002.safetensors", (2e9, 2e9))
    assert stamp_of(index) != before


def test_what_cannot_be_listed_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaussian_model(tmp_path / "a.safetensors")
    (tmp_path / "shut").mkdir()
    usual = os.scandir

    def scandir(folder: Path) -> object:
        if Path(folder).name == "shut":
            raise PermissionError(13, "Permission denied")
        return usual(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert names(tmp_path) == ["a.safetensors"]


def test_far_folders_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "place_of", mirrored)
    model = gaussian_model(tmp_path / "a.safetensors")
    sharded_model(tmp_path / "whole")
    (tmp_path / "notes.txt").write_text("?")
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "model_index.json").write_text("{}")
    assert sorted(targets_of([f"mirror://{tmp_path}"])) == [
        f"mirror://{model}",
        f"mirror://{tmp_path}/pipeline",
        f"mirror://{tmp_path}/whole/model.safetensors.index.json",
    ]
    assert list(targets_of([f"mirror://{model}"])) == [f"mirror://{model}"]
    stamp, changed = stamp_of(f"mirror://{model}", RemoteOptions())
    assert stamp is not None
    assert changed is None
    assert stamp_of(f"mirror://{model}") == (None, None)


def test_far_folders_that_break_off_become_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "place_of", mirrored)
    gaussian_model(tmp_path / "a.safetensors")
    usual = MirroredAddress.iterdir

    def broken(self: MirroredAddress) -> Iterator[MirroredAddress]:
        yield from usual(self)
        raise CheckpointError("the connection broke off")

    monkeypatch.setattr(MirroredAddress, "iterdir", broken)
    found = list(targets_of([f"mirror://{tmp_path}"]))
    assert found == [f"mirror://{tmp_path}/a.safetensors", f"mirror://{tmp_path}"]

    def silent(self: MirroredAddress) -> None:
        raise OSError("no answer")

    monkeypatch.setattr(MirroredAddress, "stamp", silent)
    assert stamp_of(f"mirror://{tmp_path}/a.safetensors", RemoteOptions()) == (None, None)
