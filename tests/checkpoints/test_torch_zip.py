"""Zip files of torch.save: checksums, and archives that lie."""

import io
import struct
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from neuralmark.checkpoints import open_checkpoint, torch_zip
from neuralmark.checkpoints.readers import torch_archive, zipped
from neuralmark.errors import CheckpointError, MalformedError, UnknownFormatError, UnsafeError
from tests.support.checks import raw

STATE = {"a": torch.arange(6.0), "b": torch.ones(3, dtype=torch.float16)}


def saved(value: Any = None) -> bytes:
    buffer = io.BytesIO()
    torch.save(STATE if value is None else value, buffer)
    return buffer.getvalue()


def repacked(
    change: Callable[[str, bytes], bytes | None] = lambda name, data: data,
    method: int = zipfile.ZIP_STORED,
    target: Any = None,
) -> bytes:
    """The same records written by zipfile, each changed or (None) left out."""
    buffer = target or io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved())) as old, zipfile.ZipFile(buffer, "w", method) as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
    return bytes(buffer.getvalue())


class Unseekable(io.BytesIO):
    """Makes zipfile write data descriptors."""

    def seekable(self) -> bool:
        return False

    def seek(self, *args: Any) -> int:
        raise OSError

    def tell(self) -> int:
        raise OSError


def put(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "model.pt"
    path.write_bytes(data)
    return path


def edit(path: Path, out: Path) -> None:
    new = torch.full((6,), 9.0).numpy().tobytes()
    open_checkpoint(path).write(out, {"a": lambda: iter([new[:8], new[8:]])})


@pytest.mark.parametrize(
    "data",
    [saved(), repacked(), repacked(target=Unseekable())],
    ids=["torch", "local header", "descriptor"],
)
def test_checksums_are_renewed_everywhere(tmp_path: Path, data: bytes) -> None:
    path, out = put(tmp_path, data), tmp_path / "out.pt"
    edit(path, out)
    with zipfile.ZipFile(out) as archive:
        assert archive.testzip() is None
        info = next(i for i in archive.infolist() if i.filename.endswith("data/0"))
    assert torch.equal(torch.load(out, weights_only=True)["a"], torch.full((6,), 9.0))
    assert torch.equal(torch.load(out, mmap=True, weights_only=True)["b"], STATE["b"])
    crc = struct.pack("<L", info.CRC)
    old = struct.pack("<L", zlib.crc32(STATE["a"].numpy().tobytes()))
    assert out.read_bytes().count(crc) == 2
    assert out.read_bytes().count(old) == 0
    assert len(data) == out.stat().st_size


def test_a_descriptor_without_signature(tmp_path: Path) -> None:
    data = bytearray(saved({"a": torch.arange(6.0)}))
    crc = struct.pack("<L", zlib.crc32(STATE["a"].numpy().tobytes()))
    at = data.index(zipped._DESCRIPTOR + crc)
    data[at : at + 16] = data[at + 4 : at + 16] + b"\0\0\0\0"
    path, out = put(tmp_path, bytes(data)), tmp_path / "out.pt"
    edit(path, out)
    with zipfile.ZipFile(out) as archive:
        assert archive.testzip() is None
    assert out.read_bytes().count(crc) == 0
    data[at] ^= 1
    checkpoint = open_checkpoint(put(tmp_path, bytes(data)))
    assert raw(checkpoint, "a") == STATE["a"].numpy().tobytes()
    with pytest.raises(MalformedError, match="checksum"):
        checkpoint.in_place_ranges(["a"])


def test_saved_without_checksums(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        path = put(tmp_path, saved())
    finally:
        torch.serialization.set_crc32_options(True)
    edit(path, tmp_path / "out.pt")
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    assert torch.equal(loaded["a"], torch.full((6,), 9.0))


def test_ranges_name_the_checksums(tmp_path: Path) -> None:
    path = put(tmp_path, saved())
    ranges = open_checkpoint(path).in_place_ranges(["a"])
    assert [length for _, _, length in ranges] == [24, 4, 4]
    assert {file for file, _, _ in ranges} == {path}


def test_directory_agrees_with_zipfile(tmp_path: Path) -> None:
    for data in (saved(), repacked(), repacked(target=Unseekable())):
        path = put(tmp_path, data)
        with zipfile.ZipFile(path) as archive:
            expected = [(i.filename, i.CRC, i.file_size, i.header_offset) for i in archive.filelist]
        found = zipped.directory(path).values()
        assert [(r.name, r.crc, r.size, r.header) for r in found] == expected


def test_zip64_records(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved())) as old, zipfile.ZipFile(buffer, "w") as new:
        for info in old.infolist():
            with new.open(info.filename, "w", force_zip64=True) as target:
                target.write(old.read(info))
    path, out = put(tmp_path, buffer.getvalue()), tmp_path / "out.pt"
    edit(path, out)
    with zipfile.ZipFile(out) as archive:
        assert archive.testzip() is None


def test_zip64_directory_entry(tmp_path: Path) -> None:
    """A size of all ones in the directory is taken from the zip64 field."""
    data = bytearray(repacked())
    at = data.rindex(b"PK\x01\x02", 0, data.rindex(b"archive/data/0"))
    name_end = at + 46 + struct.unpack_from("<H", data, at + 28)[0]
    data[at + 20 : at + 28] = b"\xff" * 8
    struct.pack_into("<H", data, at + 30, 20)
    data[name_end:name_end] = struct.pack("<HHQQ", 1, 16, 24, 24)
    end = data.rindex(b"PK\x05\x06")
    struct.pack_into("<L", data, end + 12, struct.unpack_from("<L", data, end + 12)[0] + 20)
    checkpoint = open_checkpoint(put(tmp_path, bytes(data)))
    assert raw(checkpoint, "a") == STATE["a"].numpy().tobytes()
    struct.pack_into("<H", data, name_end, 7)
    with pytest.raises(MalformedError, match="64-bit"):
        open_checkpoint(put(tmp_path, bytes(data)))


def test_torchscript_archives_are_read(tmp_path: Path) -> None:
    path = tmp_path / "script.pt"
    module = torch.nn.Linear(3, 2)
    buffer = io.BytesIO()
    _save_script(module, buffer)
    path.write_bytes(buffer.getvalue())
    checkpoint = open_checkpoint(path)
    assert set(checkpoint.names()) == {"weight", "bias"}
    assert raw(checkpoint, "weight") == module.weight.detach().numpy().tobytes()


def _save_script(module: torch.nn.Module, buffer: io.BytesIO) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(module), buffer)


def test_compressed_records_are_refused(tmp_path: Path) -> None:
    bomb = repacked(
        lambda name, data: bytes(50_000_000) if name.endswith("data/0") else data,
        zipfile.ZIP_DEFLATED,
    )
    start = time.process_time()
    with pytest.raises(UnsafeError, match="compressed"):
        open_checkpoint(put(tmp_path, bomb))
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("record", "content", "message"),
    [
        ("byteorder", b"big", "big-endian"),
        ("data/0", None, "missing"),
        ("data/0", bytes(20), "length"),
        ("data/0", bytes(28), "length"),
        ("data.pkl", b"", "pickle"),
        ("data.pkl", b"garbage", "pickle"),
        ("data.pkl", b"N0" * 100, "pickle"),
    ],
)
def test_changed_records(tmp_path: Path, record: str, content: bytes | None, message: str) -> None:
    data = repacked(lambda name, old: content if name == f"archive/{record}" else old)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(put(tmp_path, data))


def test_no_byteorder_means_little(tmp_path: Path) -> None:
    data = repacked(lambda name, old: None if name.endswith("byteorder") else old)
    assert open_checkpoint(put(tmp_path, data)).names() == ["a", "b"]


def test_other_archives_are_not_of_this_format(tmp_path: Path) -> None:
    two = io.BytesIO()
    with zipfile.ZipFile(two, "w") as archive:
        archive.writestr("a/data.pkl", b"")
        archive.writestr("b/data.pkl", b"")
    with pytest.raises(UnknownFormatError):
        open_checkpoint(put(tmp_path, two.getvalue()))
    with pytest.raises(MalformedError, match="several folders"):
        torch_zip.open(put(tmp_path, two.getvalue()))


def test_duplicate_names(tmp_path: Path) -> None:
    buffer = io.BytesIO(repacked())
    with zipfile.ZipFile(buffer, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("archive/data/0", bytes(24))
    with pytest.raises(MalformedError, match="two records"):
        open_checkpoint(put(tmp_path, buffer.getvalue()))


def entry_of(data: bytearray, name: bytes) -> int:
    """Offset of a record's entry in the directory."""
    return data.rindex(b"PK\x01\x02", 0, data.rindex(name))


def forged(offset: int, form: str, value: int) -> Callable[[bytearray], None]:
    """Change a field of the directory entry of data/1."""

    def change(data: bytearray) -> None:
        struct.pack_into(form, data, entry_of(data, b"archive/data/1") + offset, value)

    return change


def overlap(data: bytearray) -> None:
    first, second = entry_of(data, b"archive/data/0"), entry_of(data, b"archive/data/1")
    data[second + 42 : second + 46] = data[first + 42 : first + 46]


def rename_locally(data: bytearray) -> None:
    at = data.index(b"archive/data/1")
    data[at : at + 14] = b"archive/data/2"


def miscount(by: int) -> Callable[[bytearray], None]:
    """Change both numbers of records at the end."""

    def change(data: bytearray) -> None:
        at = data.rindex(b"PK\x05\x06")
        count = struct.unpack_from("<H", data, at + 8)[0] + by
        struct.pack_into("<2H", data, at + 8, count, count)

    return change


def break_end(offset: int, value: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[data.rindex(b"PK\x05\x06") + offset] ^= value

    return change


@pytest.mark.parametrize(
    "change",
    [
        overlap,
        rename_locally,
        forged(42, "<L", 0x7FFFFFFF),
        forged(42, "<L", 1),
        forged(24, "<L", 7),
        forged(20, "<L", 0x7FFFFFFF),
        forged(24, "<L", 0xFFFFFFFF),
        forged(10, "<H", 8),
        forged(10, "<H", 99),
        forged(8, "<H", 1),
        forged(28, "<H", 0xFFFF),
        forged(28, "<H", 3),
        forged(0, "<H", 3),
        miscount(-1),
        miscount(1),
        break_end(4, 1),
        break_end(8, 1),
        break_end(10, 1),
        break_end(12, 1),
        break_end(16, 1),
        break_end(20, 1),
        lambda data: data.extend(b"more"),
    ],
)
@pytest.mark.parametrize("source", [saved, repacked])
def test_forged_directories(
    tmp_path: Path, source: Callable[[], bytes], change: Callable[[bytearray], None]
) -> None:
    data = bytearray(source())
    change(data)
    with pytest.raises(CheckpointError):
        open_checkpoint(put(tmp_path, bytes(data)))


def test_too_many_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipped, "MAX_RECORDS", 3)
    with pytest.raises(UnsafeError, match="records"):
        open_checkpoint(put(tmp_path, saved()))


def test_too_long_a_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_archive, "MAX_BYTES", 100)
    with pytest.raises(UnsafeError, match="longer"):
        open_checkpoint(put(tmp_path, saved()))


def test_names_that_are_no_text(tmp_path: Path) -> None:
    data = bytearray(saved())
    at = entry_of(data, b"archive/data/1") + 46
    for byte, error in ((0xFF, MalformedError), (0, UnsafeError)):
        data[at] = byte
        with pytest.raises(error):
            open_checkpoint(put(tmp_path, bytes(data)))


@pytest.mark.parametrize(
    ("name", "message"),
    [("archive/DATA/0", "apart"), ("archive/more/DATA.PKL", "2 pickles")],
)
def test_names_that_torch_does_not_tell_apart(tmp_path: Path, name: str, message: str) -> None:
    buffer = io.BytesIO(repacked())
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(name, bytes(24))
    with pytest.raises(MalformedError, match=message):
        open_checkpoint(put(tmp_path, buffer.getvalue()))
