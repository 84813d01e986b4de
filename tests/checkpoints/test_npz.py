"""numpy's archives, stored and compressed: read like numpy.load, changed so that it sees it."""

import io
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuralmark.checkpoints import Checkpoint, npz, open_checkpoint
from neuralmark.checkpoints.contract import CHUNK_BYTES
from neuralmark.errors import (
    CheckpointError,
    MalformedError,
    UnknownFormatError,
    UnsafeError,
    UnsuitableTensorError,
    UsageError,
)

Array = npt.NDArray[Any]
SAVERS = [np.savez, np.savez_compressed]


def arrays() -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {
        "layer/w": random.normal(size=(3, 5)).astype(np.float32),
        "b": random.normal(size=7),
        "half": random.normal(size=(2, 1, 3)).astype(np.float16),
        "scalar": np.array(3.5),
        "none": np.empty((0, 4), np.float32),
        "large": random.normal(size=300_000),
    }


def put(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "model.npz"
    path.write_bytes(content)
    return path


def packed(saver: Any, values: dict[str, Array]) -> bytes:
    buffer = io.BytesIO()
    saver(buffer, **values)
    return buffer.getvalue()


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as target:
        for name, data in members.items():
            target.writestr(name, data)
    return buffer.getvalue()


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<L", len(header))
    return npz.MAGIC + bytes([version, 0]) + length + header.encode("latin-1") + data


def raw(checkpoint: Checkpoint, name: str) -> bytes:
    pieces = [bytes(piece) for piece in checkpoint.read(name)]
    assert all(0 < len(piece) <= CHUNK_BYTES for piece in pieces)
    return b"".join(pieces)


def same_except(out: Path, expected: dict[str, Array], changed: dict[str, Array]) -> None:
    with np.load(out) as loaded:
        assert list(loaded) == list(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(loaded[name], changed.get(name, array))
    with zipfile.ZipFile(out) as target:
        assert target.testzip() is None


@pytest.mark.parametrize("saver", SAVERS)
def test_read(tmp_path: Path, saver: Any) -> None:
    values = arrays()
    checkpoint = open_checkpoint(put(tmp_path, packed(saver, values)))
    assert checkpoint.format == "npz"
    assert checkpoint.names() == list(values)
    for name, array in values.items():
        assert checkpoint.info(name).shape == array.shape
        assert checkpoint.info(name).obstacle is None
        assert raw(checkpoint, name) == array.tobytes()


@pytest.mark.parametrize("saver", SAVERS)
@pytest.mark.parametrize("descr", npz.DTYPES)
def test_every_dtype(tmp_path: Path, saver: Any, descr: str) -> None:
    array = np.zeros((2, 3), descr)
    checkpoint = open_checkpoint(put(tmp_path, packed(saver, {"a": array})))
    assert checkpoint.info("a").dtype == npz.DTYPES[descr]
    assert checkpoint.info("a").nbytes == array.nbytes
    assert raw(checkpoint, "a") == array.tobytes()


@pytest.mark.parametrize("saver", SAVERS)
def test_an_array_of_several_pieces(tmp_path: Path, saver: Any) -> None:
    array = np.arange(CHUNK_BYTES // 4 * 2 + 5, dtype=np.float32) % 1000
    checkpoint = open_checkpoint(put(tmp_path, packed(saver, {"a": array})))
    assert raw(checkpoint, "a") == array.tobytes()


def test_a_highly_compressible_array(tmp_path: Path) -> None:
    array = np.zeros(5_000_000, np.float32)
    checkpoint = open_checkpoint(put(tmp_path, packed(np.savez_compressed, {"a": array})))
    assert raw(checkpoint, "a") == array.tobytes()


@pytest.mark.parametrize("saver", SAVERS)
def test_edit_and_reload(tmp_path: Path, saver: Any) -> None:
    values = arrays()
    path, out = put(tmp_path, packed(saver, values)), tmp_path / "out.npz"
    new = {"layer/w": values["layer/w"] + 1, "large": values["large"] * 2}
    edits: Any = {
        name: lambda a=array: iter([a.tobytes()[:8], a.tobytes()[8:]])
        for name, array in new.items()
    }
    open_checkpoint(path).write(out, edits)
    same_except(out, values, new)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out) as copy:
        for a, b in zip(old.infolist(), copy.infolist(), strict=True):
            assert (a.filename, a.date_time, a.compress_type) == (
                b.filename,
                b.date_time,
                b.compress_type,
            )


def test_stored_members_are_changed_in_place(tmp_path: Path) -> None:
    values = arrays()
    path = put(tmp_path, packed(np.savez, values))
    before = path.read_bytes()
    checkpoint = open_checkpoint(path)
    ranges = checkpoint.in_place_ranges(["b"])
    new = {"b": values["b"] - 1}
    checkpoint.apply({"b": lambda: iter([new["b"].tobytes()])}, lambda file: file)
    same_except(path, values, new)
    after = path.read_bytes()
    allowed = {at for _, start, length in ranges for at in range(start, start + length)}
    changed = {i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
    assert changed <= allowed


def test_compressed_members_are_not_changed_in_place(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(put(tmp_path, packed(np.savez_compressed, arrays())))
    with pytest.raises(UsageError, match="compressed; use out="):
        checkpoint.in_place_ranges(["b"])
    with pytest.raises(UsageError, match="compressed"):
        checkpoint.apply({"b": lambda: iter([])}, lambda file: file)


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.arange(3, dtype=">f4"), "big-endian"),
        (np.array([{"a": 1}, None]), "objects"),
        (np.array(["text"]), "dtype"),
        (np.zeros(2, [("a", "<f4"), ("b", "<i2", (3,))]), "dtype"),
        (np.asfortranarray(np.arange(6.0).reshape(2, 3)), "Fortran"),
        (np.zeros(2, "datetime64[s]"), "dtype"),
    ],
)
@pytest.mark.parametrize("saver", SAVERS)
def test_obstacles(tmp_path: Path, saver: Any, array: Array, why: str) -> None:
    path = put(tmp_path, packed(saver, {"a": array, "b": np.ones(2)}))
    checkpoint = open_checkpoint(path)
    assert why in str(checkpoint.info("a").obstacle)
    with pytest.raises(UnsuitableTensorError):
        checkpoint.read("a")
    assert raw(checkpoint, "b") == np.ones(2).tobytes()


def test_fortran_order_of_one_dimension_is_no_obstacle(tmp_path: Path) -> None:
    data = npy("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 3), }", bytes(12))
    checkpoint = open_checkpoint(put(tmp_path, archive({"a.npy": data})))
    assert checkpoint.info("a").obstacle is None


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }   \n",
        "{'shape': (3,), 'descr': '<f4', 'fortran_order': False}",
        "{'descr':'<f4','fortran_order':False,'shape':(3L,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,1,1), }",
    ],
)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_other_writers(tmp_path: Path, header: str, version: int) -> None:
    path = put(tmp_path, archive({"a.npy": npy(header, bytes(12), version)}))
    assert open_checkpoint(path).info("a").size == 3


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"


@pytest.mark.parametrize(
    "member",
    [
        b"",
        b"\x93NUMPY",
        b"PK" + npy(HEADER, bytes(12)),
        npy(HEADER, bytes(11)),
        npy(HEADER, bytes(13)),
        npy(HEADER, bytes(12), version=4),
        npy(HEADER + " " * 70_000, bytes(12), version=2),
        npz.MAGIC + b"\x02\x00\xff\xff\xff\xff{}",
        npy(""),
        npy("{}"),
        npy("[" * 30_000),
        npy("{'descr': " + "(" * 30_000 + ")" * 30_000 + "}"),
        npy("{'descr': " + "[" * 60_000 + "}"),
        npy("__import__('os').system('ls')"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }", bytes(12)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (,), }", bytes(12)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,,3), }", bytes(12)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': 3, }", bytes(12)),
        npy("{'descr': '<f4', 'fortran_order': 0, 'shape': (3,), }", bytes(12)),
        npy("{'descr': '<f4', 'fortran_order': False, }", bytes(12)),
        npy("{'descr': '<f4', 'shape': (3,), 'descr': '<f4', 'fortran_order': False}", bytes(12)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'x': 1}", bytes(12)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 50 + ",)}", bytes(12)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 99 + ")}", bytes(4)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (400000000000,), }", bytes(12)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': ((3,),), }", bytes(12)),
    ],
)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_that_lie(tmp_path: Path, member: bytes, method: int) -> None:
    start = time.process_time()
    with pytest.raises(MalformedError, match="member 'a'"):
        open_checkpoint(put(tmp_path, archive({"a.npy": member}, method)))
    assert time.process_time() - start < 1


@given(st.text(max_size=80))
def test_any_text_is_a_header_or_none(text: str) -> None:
    npz._fields("{" + text + "}")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_compression(tmp_path: Path, method: int) -> None:
    with pytest.raises(UnsafeError, match="unusual"):
        open_checkpoint(put(tmp_path, archive({"a.npy": npy(HEADER, bytes(12))}, method)))


def entry_of(data: bytearray) -> int:
    return data.index(b"PK\x01\x02")


def test_a_size_that_no_unpacking_can_reach(tmp_path: Path) -> None:
    data = bytearray(packed(np.savez_compressed, {"a": np.ones(1000)}))
    struct.pack_into("<L", data, entry_of(data) + 24, 0x7FFFFFFF)
    with pytest.raises(UnsafeError, match="claims more"):
        open_checkpoint(put(tmp_path, bytes(data)))


def claim_more(data: bytearray) -> None:
    """Raise the number of elements in the directory only: the data ends too early."""
    data[:] = archive(
        {"a.npy": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9,), }", bytes(12))},
        zipfile.ZIP_DEFLATED,
    )
    at = entry_of(data) + 24
    struct.pack_into("<L", data, at, struct.unpack_from("<L", data, at)[0] + 24)


def wrong_checksum(data: bytearray) -> None:
    data[entry_of(data) + 16] ^= 1


def damaged_stream(data: bytearray) -> None:
    at = data.index(b"a.npy") + 5
    at += struct.unpack_from("<H", data, 28)[0]
    middle = (at + entry_of(data)) // 2
    data[middle : middle + 40] = b"\xff" * 40


@pytest.mark.parametrize("damage", [claim_more, wrong_checksum, damaged_stream])
def test_damage_is_noticed_while_unpacking(
    tmp_path: Path, damage: Callable[[bytearray], None]
) -> None:
    values = np.random.default_rng(0).normal(size=1000)
    data = bytearray(packed(np.savez_compressed, {"a": values}))
    damage(data)
    with pytest.raises(MalformedError, match="damaged"):
        raw(open_checkpoint(put(tmp_path, bytes(data))), "a")


@pytest.mark.parametrize("saver", SAVERS)
def test_every_truncation_gives_a_named_error(tmp_path: Path, saver: Any) -> None:
    data = packed(saver, {"a": np.arange(40.0), "b": np.ones(3)})
    for length in range(0, len(data), 11):
        with pytest.raises(CheckpointError):
            open_checkpoint(put(tmp_path, data[:length]))


@pytest.mark.parametrize("saver", SAVERS)
def test_flipped_bytes_give_a_named_error_or_arrays(tmp_path: Path, saver: Any) -> None:
    data = packed(saver, {"a": np.arange(40.0)})
    for at in range(0, len(data), 5):
        damaged = bytearray(data)
        damaged[at] ^= 0x41
        try:
            checkpoint = open_checkpoint(put(tmp_path, bytes(damaged)))
            for name in checkpoint.names():
                if checkpoint.info(name).obstacle is None:
                    raw(checkpoint, name)
        except CheckpointError:
            pass


def test_other_archives_are_not_of_this_format(tmp_path: Path) -> None:
    for members in ({}, {"a.txt": b"x"}, {"a.npy": npy(HEADER, bytes(12)), "b.txt": b""}):
        with pytest.raises(UnknownFormatError):
            open_checkpoint(put(tmp_path, archive(members)))
