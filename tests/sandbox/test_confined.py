"""A sandboxed process: what honest readers need works, everything else is a named error."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuralmark.errors import (
    CheckpointError,
    MalformedError,
    MemoryLimitError,
    ParameterError,
    SandboxError,
    TimeLimitError,
)
from neuralmark.sandbox.confined import Confined
from neuralmark.sandbox.limits import SandboxLimits
from tests.support import hostile

LIMITS = SandboxLimits(memory=1 << 30, seconds=60)
HASTY = SandboxLimits(memory=1 << 30, seconds=1)


@pytest.fixture(scope="module")
def reader() -> Iterator[Confined]:
    """One for all tests that leave it alive."""
    with Confined(LIMITS) as made:
        yield made


def test_it_is_another_process_and_works(reader: Confined) -> None:
    value, pid = reader.call(hostile.fine, 5)
    assert value == 5
    assert pid == reader.pid != os.getpid()
    assert reader.call(hostile.working) == [2.0, 4.0, 40.0, 1.0]


def test_everything_is_prevented_here(reader: Confined) -> None:
    assert reader.protection.whole
    assert "seccomp" in reader.protection.network
    assert str(reader.protection).startswith("no network (seccomp), no writing (seccomp")


def test_it_has_no_network(reader: Confined) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        with pytest.raises(SandboxError, match="PermissionError"):
            reader.call(hostile.connect, server.getsockname()[1])
        with pytest.raises(TimeoutError):
            server.accept()
    with pytest.raises(SandboxError, match="PermissionError"):
        reader.call(hostile.datagram)


@pytest.mark.parametrize(
    "harm",
    [
        *(hostile.write, hostile.remove, hostile.rename, hostile.make_folder),
        *(hostile.change_mode, hostile.link),
    ],
)
def test_it_changes_nothing(reader: Confined, harm: Any, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_text("kept")
    target = tmp_path / "new" if harm is hostile.make_folder else file
    with pytest.raises(SandboxError, match=r"PermissionError|Permission denied"):
        reader.call(harm, str(target))
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]
    assert file.read_text() == "kept"
    assert file.stat().st_mode & 0o777


@pytest.mark.parametrize(
    "flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_RDONLY | os.O_CREAT]
)
def test_no_way_of_opening_writes(reader: Confined, flags: int, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_text("kept")
    with pytest.raises(SandboxError, match="PermissionError"):
        reader.call(hostile.open_to, str(file), flags)
    assert file.read_text() == "kept"


@pytest.mark.parametrize("harm", [hostile.fork, hostile.execute, hostile.signal_parent])
def test_it_starts_and_kills_nothing(reader: Confined, harm: Any) -> None:
    with pytest.raises(SandboxError, match="PermissionError"):
        reader.call(harm)
    assert reader.call(hostile.fine, 1)[0] == 1


def test_limits_cannot_be_raised_again(reader: Confined) -> None:
    assert reader.call(hostile.limits_raised) == [1 << 30, 0, LIMITS.files]


@pytest.mark.parametrize("harm", [hostile.allocate, hostile.allocate_array])
def test_memory_is_limited(reader: Confined, harm: Any) -> None:
    with pytest.raises(MemoryLimitError, match=r"more than the 1 GiB .*SandboxLimits\(memory="):
        reader.call(harm)
    assert reader.call(hostile.fine, 1)[0] == 1


def test_secrets_of_the_environment_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURALMARK_PASSPHRASE", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with Confined(LIMITS) as made:
        assert "secret" not in made.call(hostile.environment).values()


def test_numbers_are_added_up_as_they_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another kernel of the linear algebra gives other last digits of margins."""
    chosen = {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": "AVX2"}
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    with Confined(LIMITS) as made:
        assert chosen.items() <= made.call(hostile.environment).items()


@pytest.mark.parametrize("harm", [hostile.loop, hostile.sleep, hostile.whisper])
def test_time_is_limited(harm: Any) -> None:
    with Confined(HASTY) as made:
        with pytest.raises(TimeLimitError, match=r"longer than the 1 s that"):
            made.call(harm)
        with pytest.raises(SandboxError):  # it is gone
            made.call(hostile.fine, 1)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (hostile.crash, "the reader died .SIGSEGV"),
        (hostile.leave, "exit code 3"),
        (hostile.shout, "nonsense"),
    ],
)
def test_a_death_has_a_name(harm: Any, words: str) -> None:
    with Confined(LIMITS) as made, pytest.raises(SandboxError, match=words):
        made.call(harm)


def test_errors_keep_their_names(reader: Confined) -> None:
    with pytest.raises(MalformedError, match="a truncated file"):
        reader.call(hostile.named)
    with pytest.raises(SandboxError, match="LookupError: no such thing"):
        reader.call(hostile.fault)
    with pytest.raises(SandboxError, match="TypeError"):
        reader.call(hostile.not_json)


def test_progress_is_told(reader: Confined) -> None:
    seen: list[tuple[str, int, int]] = []
    assert reader.call(hostile.told, progress=lambda *told: seen.append(told)) == 3
    assert seen == [("counting", 0, 3), ("counting", 1, 3), ("counting", 2, 3)]


def test_questions_are_answered_by_the_parent_only() -> None:
    def answer(question: str, arguments: list[Any]) -> bytes:
        if question != "square":
            raise CheckpointError("no such question")
        return str(arguments[0] ** 2).encode()

    with Confined(LIMITS, answer) as made:
        assert made.call(hostile.asked, "square", 7) == "49"
        with pytest.raises(CheckpointError, match="no such question"):
            made.call(hostile.asked, "cube", 7)
    with Confined(LIMITS) as made, pytest.raises(SandboxError, match="files of this machine only"):
        made.call(hostile.asked, "square", 7)


@pytest.mark.parametrize(
    "wrong", [{"memory": 1}, {"memory": 2.0}, {"seconds": 0}, {"seconds": True}, {"files": 1}]
)
def test_limits_are_checked(wrong: Any) -> None:
    with pytest.raises(ParameterError):
        SandboxLimits(**wrong)
