"""safetensors files that are cut off, overlap, lie or overflow: named errors, bounded memory."""

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

from neuralmark import Key, inspect, verify
from neuralmark.checkpoints import open_checkpoint
from neuralmark.core.carriers import Carriers
from neuralmark.errors import (
    CheckpointError,
    MalformedError,
    NeuralMarkError,
    NonFiniteError,
    UnknownFormatError,
    UnsuitableTensorError,
)
from tests.support.checks import one_line
from tests.support.commands import call
from tests.support.models import gaussian, plain_key

W = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def raw(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> Path:
    count = len(header) if length is None else length
    path.write_bytes(count.to_bytes(8, "little") + header + data)
    return path


def built(path: Path, header: Any, data: bytes = b"") -> Path:
    return raw(path, json.dumps(header).encode(), data)


def refused(path: Path, error: type[NeuralMarkError] = MalformedError) -> str:
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    assert type(caught.value) is error
    return one_line(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.safetensors"


def test_truncated_at_every_byte(path: Path) -> None:
    save_file({"a": gaussian(2, 3), "b": np.ones(3, np.int8)}, path, metadata={"k": "v"})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refused(path, UnknownFormatError if length < 9 else MalformedError)
    path.write_bytes(whole)
    assert open_checkpoint(path).names() == ["a", "b"]


def test_bytes_added_at_the_end(path: Path) -> None:
    save_file({"a": gaussian(2, 3)}, path)
    path.write_bytes(path.read_bytes() + b"\0")
    assert "bytes added" in refused(path)


@pytest.mark.parametrize("length", [0, 1, 7, 100, 1 << 20, (16 << 20) + 1, (1 << 40) - 1])
def test_header_of_another_length(path: Path, length: int) -> None:
    refused(raw(path, json.dumps({"a": W}).encode(), bytes(24), length))


@pytest.mark.parametrize("length", [1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_length_that_no_header_has(path: Path, length: int) -> None:
    refused(raw(path, b"{}", b"", length), UnknownFormatError)


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b'{"a": }',
        b'{"a": 1, "a": 2}',
        b'{"a": {"dtype": "F32", "dtype": "F32", "shape": [], "data_offsets": [0, 4]}}',
        b"{" + b'"a":{' * 100_000,
        b'{"a":' + b"[" * 100_000,
        b'{"\xff": 1}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"\\ud800": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}',
        b"{}" + b"x",
    ],
)
def test_header_that_is_no_table(path: Path, header: bytes) -> None:
    refused(raw(path, header, bytes(4)))


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": None},
        {"dtype": 1},
        {"dtype": ["F32"]},
        {"dtype": "F32" * 1000},
        {"dtype": "F64"},
        {"dtype": "F16"},
        {"shape": None},
        {"shape": "23"},
        {"shape": {}},
        {"shape": [2.0, 3]},
        {"shape": [True, 6]},
        {"shape": [-2, -3]},
        {"shape": [2, None]},
        {"shape": [[6]]},
        {"shape": [2, 4]},
        {"shape": []},
        {"shape": [1 << 62, 1 << 62]},
        {"shape": [1 << 61] * 64},
        {"shape": [10**100]},
        {"shape": [1] * 65},
        {"shape": [(1 << 62) - 1] * 200_000},
        {"data_offsets": None},
        {"data_offsets": [0]},
        {"data_offsets": [0, 24, 24]},
        {"data_offsets": [0.0, 24]},
        {"data_offsets": [False, 24]},
        {"data_offsets": [24, 0]},
        {"data_offsets": [-24, 0]},
        {"data_offsets": [4, 28]},
        {"data_offsets": [0, 23]},
        {"data_offsets": [1 << 61, (1 << 61) + 24]},
        {"data_offsets": ["0", "24"]},
        {"extra": 1},
    ],
)
def test_entry_that_lies(path: Path, change: dict[str, Any]) -> None:
    refused(built(path, {"a": W | change}, bytes(24)))


@pytest.mark.parametrize("entry", [None, 1, "a", [], {}, {"dtype": "F32"}, [W], True])
def test_entry_of_another_kind(path: Path, entry: Any) -> None:
    refused(built(path, {"a": entry}, bytes(24)))


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 24), (0, 24)],  # the same bytes twice
        [(0, 24), (12, 36)],  # overlap
        [(0, 24), (28, 52)],  # gap
        [(4, 28), (28, 52)],  # gap at the start
        [(0, 24), (24, 48), (24, 24), (30, 30)],  # an empty one inside another
    ],
)
def test_layout(path: Path, spans: list[tuple[int, int]]) -> None:
    header = {
        f"t{i}": {"dtype": "U8", "shape": [high - low], "data_offsets": [low, high]}
        for i, (low, high) in enumerate(spans)
    }
    refused(built(path, header, bytes(max(high for _, high in spans))))


def test_what_the_peer_refuses_is_refused(path: Path) -> None:
    """Whatever the safetensors library rejects among small edits, we reject as well."""
    save_file({"a": gaussian(2, 3), "b": np.ones(3, np.int8)}, path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(400):
        edited = bytearray(whole)
        edited[rng.integers(len(whole) - 27)] = rng.choice(list(b'"{}[]:,0123456789FIa \x00\xff'))
        path.write_bytes(edited)
        try:
            checkpoint = open_checkpoint(path)
        except CheckpointError:
            continue
        names = checkpoint.names()
        if any(checkpoint.info(name).obstacle for name in names):
            continue  # a dtype that neither knows
        with safetensors.safe_open(path, "np") as peer:
            assert sorted(peer.keys()) == sorted(names)


def test_unknown_dtype_is_an_obstacle(path: Path) -> None:
    key = Key.new()
    built(path, {"a": W | {"dtype": "Q4_K"}, "b": W | {"data_offsets": [24, 48]}}, bytes(48))
    rows = {row.name: row for row in inspect(path).rows}
    assert "Q4_K" in str(rows["a"].obstacle)
    assert rows["b"].obstacle is None
    with pytest.raises(UnsuitableTensorError):
        verify(path, key, tensors=["a"])


def test_empty_tensors(path: Path, tmp_path: Path) -> None:
    save_file({"a": np.zeros((0, 5), np.float32), "b": np.zeros(0, np.float16)}, path)
    assert [row.size for row in inspect(path).rows] == [0, 0]
    key = plain_key(tmp_path / "k.nmkey")
    call("verify", path, "--key", key).failed(2, "TooFewCarriersError")
    call("verify", path, "--key", key, "--tensor", "a").failed(2, "UnsuitableTensorError")
    call("embed", path, "--key", key, "--in-place").failed(2, "TooFewCarriersError")


def test_no_tensors_at_all(path: Path, tmp_path: Path) -> None:
    built(path, {})
    assert inspect(path).rows == ()
    built(path, {"__metadata__": {"a": "b"}})
    key = plain_key(tmp_path / "k.nmkey")
    call("verify", path, "--key", key).failed(2, "TooFewCarriersError")


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"])
def test_nothing_but_nan(path: Path, tmp_path: Path, dtype: str) -> None:
    size = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}.get(dtype, 1) * 128 * 128
    entry = {"dtype": dtype, "shape": [128, 128], "data_offsets": [0, size]}
    built(path, {"a": entry}, b"\xff" * size)
    key = Key.load(plain_key(tmp_path / "k.nmkey"))
    with pytest.raises(NonFiniteError) as caught:
        verify(path, key)
    one_line(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_one_bad_carrier(path: Path, tmp_path: Path, value: float) -> None:
    """Found wherever it lies among the carriers; elsewhere it does no harm."""
    key = Key.load(plain_key(tmp_path / "k.nmkey"))
    total = 128 * 128
    carriers = Carriers.of(key.at((("a", (128, 128)),)), total).positions()
    others = np.setdiff1d(np.arange(total), carriers)
    for place in (*carriers[::700], *others[::3000]):
        weights = gaussian(128, 128).astype(np.float64)
        weights.flat[place] = value
        save_file({"a": weights}, path)
        if place in others:
            assert not verify(path, key, tensors=["a"]).verified
            continue
        with pytest.raises(NonFiniteError) as caught:
            verify(path, key, tensors=["a"])
        one_line(caught.value)


def test_signalling_nan(path: Path, tmp_path: Path) -> None:
    save_file({"a": np.full((128, 128), 0x7F800001, np.uint32).view(np.float32)}, path)
    with pytest.raises(NonFiniteError):
        verify(path, Key.load(plain_key(tmp_path / "k.nmkey")))


def test_huge_numbers(path: Path, tmp_path: Path) -> None:
    key = plain_key(tmp_path / "k.nmkey")
    secret = Key.load(key).at((("a", (128, 128)),))
    free = np.setdiff1d(np.arange(128 * 128), Carriers.of(secret, 128 * 128).positions())
    weights = gaussian(128, 128).astype(np.float64)
    weights.flat[free[:10]] = 1e300
    save_file({"a": weights}, path)
    assert call("verify", path, "--key", key, "--tensor", "a").code == 1
    save_file({"a": np.full((128, 128), 3e38, np.float32) * gaussian(128, 128)}, path)
    assert call("embed", path, "--key", key, "--in-place").code == 0


def test_memory_is_bounded(path: Path) -> None:
    """A claim of petabytes costs nothing; the largest header costs a few dozen times itself."""
    lies: list[Any] = [
        {"a": {"dtype": "U8", "shape": [1 << 50], "data_offsets": [0, 1 << 50]}},
        {"a": {"dtype": "F32", "shape": [1 << 30] * 60, "data_offsets": [0, 4]}},
    ]
    tracemalloc.start()
    try:
        for header in lies:
            refused(built(path, header, bytes(4)))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        refused(raw(path, b'{"a":[' + b"{}," * 300_000 + b"0]}"))
        assert tracemalloc.get_traced_memory()[1] < 60 << 20
    finally:
        tracemalloc.stop()


def test_neither_file_nor_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", CheckpointError)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused(tmp_path / "loop", CheckpointError)
    (tmp_path / "empty").write_bytes(b"")
    refused(tmp_path / "empty", UnknownFormatError)
