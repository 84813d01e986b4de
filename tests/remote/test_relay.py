"""A place over a socket: another process reads a model that it cannot reach itself."""

import multiprocessing
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from neuralmark import RemoteOptions, at_url
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import ChangedError, CheckpointError, RemoteError
from neuralmark.remote.transfer import relay
from neuralmark.remote.transfer.relay import RelayedPlace, relayed
from tests.support.ranges import RangeServer


@pytest.fixture
def array(tmp_path: Path) -> Any:
    made = np.random.default_rng(1).standard_normal((700, 900)).astype(np.float32)
    (tmp_path / "m").mkdir()
    save_file({"w": made}, tmp_path / "m/model.safetensors")
    return made


def content(place: RelayedPlace) -> Any:
    checkpoint = open_checkpoint(place)
    return np.concatenate([piece.view(np.float32).copy() for piece in checkpoint.read("w")])


def child(line: socket.socket, out: Any) -> None:
    place = RelayedPlace(line)
    out.send((content(place).sum(), str(place), place.name, open_checkpoint(place).pins()))


def test_a_process_without_anything_else_reads_a_model(
    web: RangeServer, options: RemoteOptions, tmp_path: Path, array: Any
) -> None:
    url = web.put("/model.safetensors", tmp_path / "m/model.safetensors")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with relayed(at_url(url, options)) as line:
        process = context.Process(target=child, args=(line, theirs))
        process.start()
        assert ours.poll(30)
        total, shown, name, pins = ours.recv()
        process.join()
    assert total == array.sum()
    assert (shown, name) == (url, "model.safetensors")
    assert list(pins) == ["model.safetensors"]


def test_folders_of_this_machine_are_served_too(tmp_path: Path, array: Any) -> None:
    with relayed(tmp_path / "m") as line:
        place = RelayedPlace(line)
        assert place.is_dir()
        assert [each.name for each in place.iterdir()] == ["model.safetensors"]
        assert np.array_equal(content(place), array.ravel())
        inner = place / "model.safetensors"
        assert inner.parent == place
        before = inner.stamp()
        save_file({"w": array * 2}, tmp_path / "m/model.safetensors")
        assert inner.stamp() != before
        assert not (place / "none").exists()
        with pytest.raises(FileNotFoundError):
            (place / "none").size()


def test_errors_keep_their_names(
    web: RangeServer, options: RemoteOptions, tmp_path: Path, array: Any
) -> None:
    url = web.put("/m.safetensors", tmp_path / "m/model.safetensors")
    with relayed(at_url(url, options)) as line:
        place = RelayedPlace(line)
        place.size()
        web.put("/m.safetensors", b"other" * 500_000)
        with pytest.raises(ChangedError, match="changed while it was read"):
            place.read_into(memoryview(bytearray(100_000)), 1_000_000)


@pytest.mark.parametrize("name", ["..", "a/b", "/etc/passwd", "a\\b", "", "a\nb", 7])
def test_a_child_that_asks_for_more_is_hung_up_on(tmp_path: Path, array: Any, name: Any) -> None:
    with relayed(tmp_path / "m") as line, pytest.raises(RemoteError, match="not served any more"):
        (RelayedPlace(line) / name).is_file()


@pytest.mark.parametrize(
    "asked",
    [
        *({}, [], {"verb": "read", "names": []}, {"verb": "erase", "names": []}),
        {"verb": "read", "names": [], "at": -1, "length": 5},
        {"verb": "read", "names": ["model.safetensors"], "at": 0, "length": 1 << 70},
        {"verb": "look", "names": ["x"] * 99},
        {"verb": "expect", "names": [], "ranges": 7},
    ],
)
def test_nonsense_ends_the_service(tmp_path: Path, array: Any, asked: Any) -> None:
    with relayed(tmp_path / "m") as line:
        relay._sent(line, asked, b"")
        line.settimeout(10)
        assert line.recv(100) == b""


def test_too_long_messages_end_the_service(tmp_path: Path, array: Any) -> None:
    with relayed(tmp_path / "m") as line:
        line.sendall(relay._LENGTH.pack(1 << 31, 1 << 40))
        line.settimeout(10)
        assert line.recv(100) == b""


def test_a_read_beyond_the_cap_is_answered_in_parts(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(range(256)) * 70_000)
    with relayed(tmp_path / "big") as line:
        room = bytearray(256 * 70_000)
        assert RelayedPlace(line).read_into(memoryview(room), 0) == len(room)
        assert room == (tmp_path / "big").read_bytes()


def test_a_parent_that_is_gone_is_a_named_error(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(CheckpointError, match="not served any more"):
        RelayedPlace(theirs).is_file()
