"""Fetching: from a real https server on this machine, and what happens without one."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from neuralmark import zoo
from neuralmark.errors import DamagedDataSetError, MissingDataSetError, OutputError, UnsafeError
from neuralmark.zoo import fetching
from neuralmark.zoo.fetching import Archive
from tests.support import layouts
from tests.support.checks import one_line


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_a_data_set_is_fetched(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, served = server
    layouts.cifar10(tmp_path / "made")
    packed = served / "cifar-10-python.tar.gz"
    with tarfile.open(packed, "w:gz") as rolls:
        rolls.add(tmp_path / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
    archive = Archive(f"{address}/{packed.name}", md5(packed))
    monkeypatch.setattr(type(zoo.source("cifar10")), "archive", archive)
    data = zoo.data("cifar10", tmp_path / "data", download=True)
    assert data.digest == zoo.data("cifar10", tmp_path / "made").digest
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-10-batches-py"]
    packed.unlink()
    assert zoo.data("cifar10", tmp_path / "data", download=True).digest == data.digest


def test_an_archive_in_an_archive(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, served = server
    layouts.caltech(tmp_path / "made" / "101_ObjectCategories", {"anchor": 3, "bass": 4})
    with tarfile.open(tmp_path / "inner.tar.gz", "w:gz") as rolls:
        rolls.add(tmp_path / "made" / "101_ObjectCategories", "101_ObjectCategories")
    packed, inner = served / "caltech-101.zip", "caltech-101/101_ObjectCategories.tar.gz"
    with zipfile.ZipFile(packed, "w") as book:
        book.write(tmp_path / "inner.tar.gz", inner)
    archive = Archive(f"{address}/{packed.name}", md5(packed), inner)
    monkeypatch.setattr(type(zoo.source("caltech101")), "archive", archive)
    assert zoo.data("caltech101", tmp_path / "data", download=True).classes == 2


def test_a_wrong_sum_leaves_nothing(server: tuple[str, Path], tmp_path: Path) -> None:
    address, served = server
    with zipfile.ZipFile(served / "a.zip", "w") as book:
        book.writestr("file", "abc")
    with pytest.raises(DamagedDataSetError, match="is not what was published"):
        fetching.fetch(Archive(f"{address}/a.zip", "0" * 32), tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_an_address_that_is_gone(server: tuple[str, Path], tmp_path: Path) -> None:
    with pytest.raises(MissingDataSetError, match=r"cannot fetch .*gone\.zip"):
        fetching.fetch(Archive(f"{server[0]}/gone.zip", ""), tmp_path / "data")


def test_a_server_that_nobody_vouches_for(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(MissingDataSetError, match="CERTIFICATE_VERIFY_FAILED"):
        fetching.fetch(Archive(f"{server[0]}/a.zip", ""), tmp_path / "data")


def test_download_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nobody listens there
    for name in ("cifar10", "tinyimagenet"):
        with pytest.raises(MissingDataSetError, match=r"cannot fetch https://.*data=DIR") as caught:
            zoo.data(name, tmp_path / "data", download=True)
        one_line(caught.value)
    assert list((tmp_path / "data").iterdir()) == []


def test_download_is_not_asked_for_what_is_there(tmp_path: Path) -> None:
    layouts.cifar10(tmp_path)
    assert len(zoo.data("cifar10", tmp_path, download=True).train_labels) == 100


def test_only_https_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(UnsafeError, match="only https"):
        fetching.fetch(Archive("http://example.org/a.zip", ""), tmp_path)


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot unpack"):
        fetching.fetch(Archive("https://example.org/a.zip", ""), tmp_path / "file" / "data")


def test_archives_are_unpacked(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as rolls:
        member = tarfile.TarInfo("inner/file")
        member.size = 3
        rolls.addfile(member, io.BytesIO(b"abc"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as book:
        book.writestr("inner/file", "abc")
    for name in ("a.tar.gz", "a.zip"):
        fetching.unpack(tmp_path / name, tmp_path / name.replace(".", "-"))
        assert (tmp_path / name.replace(".", "-") / "inner" / "file").read_bytes() == b"abc"


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out", "..\\out"])
def test_archives_do_not_leave_their_folder(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as book:
        book.writestr(name, "abc")
    with pytest.raises(UnsafeError, match=r"a\.zip: its member"):
        fetching.unpack(tmp_path / "a.zip", tmp_path / "folder")
    if name.startswith("../"):
        with tarfile.open(tmp_path / "a.tar", "w") as rolls:
            rolls.addfile(tarfile.TarInfo(name))
        with pytest.raises(UnsafeError, match=r"a\.tar: "):
            fetching.unpack(tmp_path / "a.tar", tmp_path / "folder")
    assert not (tmp_path / "out").exists()


def test_archives_that_are_damaged_or_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"\x1f\x8b\x08 not really")
    with pytest.raises(DamagedDataSetError, match="a damaged archive"):
        fetching.unpack(tmp_path / "a.tar.gz", tmp_path / "folder")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as book:
        book.writestr("file", bytes(1000))
    monkeypatch.setattr(fetching, "_MOST", 999)
    with pytest.raises(UnsafeError, match="unpacks to 1,000 bytes"):
        fetching.unpack(tmp_path / "a.zip", tmp_path / "folder")
