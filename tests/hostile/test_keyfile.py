"""Key files that are cut off, edited, or ask for too much: named errors before any work is done."""

import base64
import json
import os
import resource
import subprocess
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuralmark import Key, Parameters
from neuralmark.core.encoding import canonical_json, enc
from neuralmark.errors import KeyFileError, NeuralMarkError, PassphraseError, WrongPassphraseError
from tests.support.checks import one_line
from tests.support.commands import PYTHON, call, clean_environment
from tests.support.models import gaussian

WORD = "correct horse"


def saved(path: Path, key: Key, encrypted: bool) -> Path:
    key.save(path, WORD if encrypted else None, cost=10)
    return path


def attempt(path: Path, content: bytes) -> Key | None:
    path.write_bytes(content)
    try:
        return Key.load(path, WORD)
    except KeyFileError as error:
        one_line(error)
        return None


def same(one: Key, other: Key) -> bool:
    return (one._body(), one.salt, one.parameters) == (other._body(), other.salt, other.parameters)


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("kind", ["native", "raw"])
def test_edited_at_every_byte(tmp_path: Path, encrypted: bool, kind: str) -> None:
    """Never a different key, and the same one only if nothing but white space changed."""
    key = Key.new(owner="Acme") if kind == "native" else Key.raw(gaussian(2, 3), 1, "strided")
    whole = saved(tmp_path / "a.nmkey", key, encrypted).read_bytes()
    rng = np.random.default_rng(3)
    for at in range(len(whole)):
        edits = [whole[at] ^ 1, int(rng.integers(256)), whole[at] ^ 0x20, ord("0"), ord(" ")]
        for byte in set(edits[: 2 if encrypted else 5]) - {whole[at]}:
            got = attempt(tmp_path / "b.nmkey", whole[:at] + bytes([byte]) + whole[at + 1 :])
            assert got is None or (at == len(whole) - 1 and same(got, key)), (at, byte)


@pytest.mark.parametrize("encrypted", [False, True])
def test_truncated_and_lengthened(tmp_path: Path, encrypted: bool) -> None:
    key = Key.new()
    whole = saved(tmp_path / "a.nmkey", key, encrypted).read_bytes()
    for length in range(len(whole) - 1):
        assert attempt(tmp_path / "b.nmkey", whole[:length]) is None
        if length:
            assert attempt(tmp_path / "b.nmkey", whole[:length] + whole[length + 1 :]) is None
    assert attempt(tmp_path / "b.nmkey", whole + b"x") is None


def test_wrong_passphrase(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.nmkey", Key.new(), True)
    for word in ("", "correct hors", "correct horse ", "Correct horse", "\0", "x" * 100_000):
        with pytest.raises(WrongPassphraseError) as caught:
            Key.load(path, word)
        one_line(caught.value)
    with pytest.raises(PassphraseError):
        Key.load(path, "\ud800")


def container(path: Path, encrypted: bool = False) -> dict[str, Any]:
    """A key file, parsed."""
    loaded: dict[str, Any] = json.loads(saved(path, Key.new(), encrypted).read_text())
    return loaded


@pytest.mark.parametrize(
    "changes",
    [
        {"log2_n": 9},
        {"log2_n": 21},
        {"log2_n": 20, "r": 32},
        {"log2_n": 18, "r": 9},
        {"log2_n": 16, "r": 8, "p": 17},
        {"log2_n": 18, "r": 8, "p": 5},
        {"log2_n": 63},
        {"log2_n": 10**9},
        {"log2_n": -1},
        {"log2_n": True},
        {"log2_n": 16.0},
        {"log2_n": "16"},
        {"log2_n": None},
        {"r": 0},
        {"r": 1 << 40},
        {"p": 0},
        {"p": 1 << 40},
        {"p": [1]},
        {"salt": ""},
        {"salt": "AAAA"},
        {"salt": 5},
        {"salt": "?" * 24},
        {"salt": "A" * 1_000_000},
        {"nonce": ""},
        {"nonce": None},
        {"nonce": "A" * 100},
        {"method": "rot13"},
        {"method": None},
        {"method": ["none"]},
    ],
)
def test_costs_are_capped(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = container(tmp_path / "a.nmkey", encrypted=True)
    file["protection"].update(changes)
    start = time.process_time()
    assert attempt(tmp_path / "b.nmkey", json.dumps(file).encode()) is None
    assert time.process_time() - start < 0.5


def test_costs_within_the_caps_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.nmkey"
    Key.new().save(path, WORD, cost=12)
    Key.load(path, WORD)
    for cost in (9, 21, 64):
        with pytest.raises(NeuralMarkError):
            Key.new().save(tmp_path / "b.nmkey", WORD, cost=cost)
    assert not (tmp_path / "b.nmkey").exists()


def crafted(path: Path, head: Any, rest: bytes = b"") -> bytes:
    """A plain key file with a payload of one's own."""
    file = container(path)
    payload = enc(canonical_json(head)) + rest
    return json.dumps(file | {"payload": base64.b64encode(payload).decode()}).encode()


HEAD = {
    "kind": "raw",
    "parameters": Parameters(16, 8, 1).to_dict(),
    "content": "",
    "salt": base64.b64encode(bytes(32)).decode(),
    "secret": base64.b64encode(bytes(32)).decode(),
}


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": {"bits": 65536, "pools": 65536}},
        {"parameters": {"bits": 1 << 40}},
        {"parameters": {"pools": 1 << 40}},
        {"parameters": {"rounds": 1 << 40}},
        {"parameters": {"rounds": 65}},
        {"parameters": {"bits": 0}},
        {"parameters": {"bits": True}},
        {"parameters": {"bits": 16.0}},
        {"parameters": {"pooling": "x" * 10_000}},
        {"parameters": {"pooling": []}},
        {"parameters": {"scheme": "other"}},
        {"parameters": {"more": 1}},
        {"parameters": []},
        {"content": base64.b64encode(bytes(65537)).decode()},
        {"content": None},
        {"salt": ""},
        {"secret": "AAAA", "kind": "native"},
        {"secret": None, "kind": "native"},
        {"kind": "other"},
        {"kind": None},
    ],
)
def test_parameters_are_capped(tmp_path: Path, change: dict[str, Any]) -> None:
    if isinstance(change.get("parameters"), dict):
        change = {"parameters": {**Parameters(16, 8, 1).to_dict(), **change["parameters"]}}
    rest = b"" if change.get("kind") == "native" else bytes(4 * 16 * 8)
    content = crafted(tmp_path / "a.nmkey", HEAD | change, rest)
    tracemalloc.start()
    try:
        assert attempt(tmp_path / "b.nmkey", content) is None
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("head", [None, [], 1, "a", {}, [1, 2]])
def test_payload_that_is_none(tmp_path: Path, head: Any) -> None:
    assert attempt(tmp_path / "b.nmkey", crafted(tmp_path / "a.nmkey", head)) is None


def test_payload_lengths_lie(tmp_path: Path) -> None:
    file = container(tmp_path / "a.nmkey")
    for number, payload in enumerate((b"", b"\xff" * 8, b"\xff" * 100, b"\x05" + bytes(7) + b"{}")):
        text = json.dumps(file | {"payload": base64.b64encode(payload).decode()})
        assert attempt(tmp_path / f"b{number}.nmkey", text.encode()) is None


def test_matrix_with_nan(tmp_path: Path) -> None:
    rest = np.full(16 * 8, np.nan, np.float32).tobytes()
    assert attempt(tmp_path / "b.nmkey", crafted(tmp_path / "a.nmkey", HEAD, rest)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"version": 3},
        {"version": True},
        {"version": 1},
        {"version": 2.0},
        {"version": "9" * 10_000},
        {"format": "x"},
        {"fingerprint": "nm1-" + "\ud800" * 40},
        {"fingerprint": "nm1-" + "0" * 40},
        {"fingerprint": 5},
        {"commitment": ""},
        {"payload": None},
        {"payload": "not base64"},
        {"protection": None},
        {"protection": {}},
        {"protection": {"method": "none", "x": [1, 2, 3]}},
        {"more": 1},
    ],
)
def test_containers(tmp_path: Path, change: dict[str, Any]) -> None:
    file = container(tmp_path / "a.nmkey") | change
    got = attempt(tmp_path / "b.nmkey", json.dumps(file).encode())
    assert got is None or "x" in file["protection"]
    for options in ((), ("--json",)):
        result = call("key", "fingerprint", tmp_path / "b.nmkey", *options)
        assert "Traceback" not in result.err
        assert result.code in (0, 3)


def test_huge_files(tmp_path: Path) -> None:
    path = tmp_path / "a.nmkey"
    with path.open("wb") as file:
        file.truncate((96 << 20) + 1)
    with pytest.raises(KeyFileError, match="larger than a key file"):
        Key.load(path)
    for odd in (tmp_path, tmp_path / "no", path / "below"):
        with pytest.raises(KeyFileError, match="cannot be read"):
            Key.load(odd)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Half a gigabyte of address space is enough to refuse the worst of 32 MB."""
    path = tmp_path / "a.nmkey"
    for content in (b"[" + b"{}," * 10_000_000, b"[" * (32 << 20), b'{"a":' * (6 << 20)):
        path.write_bytes(content)
        done = subprocess.run(
            [PYTHON, "-m", "neuralmark", "key", "show", str(path)],
            env=clean_environment(OPENBLAS_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29)),
        )
        assert done.returncode == 3, done
        assert done.stderr.startswith("neuralmark: KeyFileError: "), done


@pytest.mark.parametrize("kind", ["fifo", "zero"])
def test_pipes_and_devices_are_no_keys(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "k.nmkey"
    if kind == "fifo":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    with pytest.raises(KeyFileError, match="plain file"):
        Key.load(place)
