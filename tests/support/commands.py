"""Running the command line: in this process, as a process, on a terminal, on a full disk."""

import contextlib
import io
import json
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from neuralmark.cli import main
from tests.support.processes import PATIENCE

PYTHON = sys.executable


VARIABLE = "NEURALMARK_PASSPHRASE"


_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " os.execv(sys.argv[1], sys.argv[1:])"
)


@dataclass(frozen=True)
class Result:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output, parsed."""
        return json.loads(self.out)

    def failed(self, code: int, error: str) -> str:
        """Assert a named error on one line, without a traceback; give that line."""
        assert self.code == code, self
        *notes, line = self.err.splitlines()
        assert line.startswith(f"neuralmark: {error}: "), self
        assert all(note.startswith("neuralmark: ") for note in notes), self
        assert "Traceback" not in self.err, self
        return line


def call(*args: object, env: Mapping[str, str] | None = None) -> Result:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    handler = signal.getsignal(signal.SIGTERM)
    kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
    try:
        with (
            mock.patch.dict(os.environ, {**kept, **(env or {})}, clear=True),
            mock.patch.object(sys, "argv", ["neuralmark", *map(str, args)]),
            mock.patch.object(sys, "stdin", io.StringIO()),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as stop,
        ):
            main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert isinstance(stop.value.code, int)
    return Result(stop.value.code, out.getvalue(), err.getvalue())


def command_line(*args: object) -> list[str]:
    """The words that run a command as a process."""
    return [PYTHON, "-m", "neuralmark", *map(str, args)]


def clean_environment(**more: str) -> dict[str, str]:
    """An environment without anything of ours, but with the package under test (worktrees)."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "HOME": "/nonexistent", **more}


def run(
    *args: object, env: Mapping[str, str] | None = None, cwd: Path | None = None, text: str = ""
) -> Result:
    """Run a command as a process with a clean environment."""
    done = subprocess.run(
        command_line(*args),
        env=clean_environment(**(env or {})),
        cwd=cwd,
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def limited(limit: int, *args: object) -> Result:
    """Run with a limit on the size of a written file: what a full disk looks like to a program."""
    done = subprocess.run(
        command_line(*args),
        env=clean_environment(PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    return Result(done.returncode, done.stdout, done.stderr)


def on_terminal(
    *args: object, answers: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a command on a pseudo-terminal; each answer is typed after a prompt ending in ': '."""
    ours, theirs = pty.openpty()
    words = [PYTHON, "-c", _TAKE_TERMINAL, *command_line(*args)]
    environment = clean_environment(TERM="xterm", COLUMNS="120", **(env or {}))
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    screen, seen, left = b"", 0, list(answers)
    deadline = time.monotonic() + PATIENCE
    while select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = b""
        with contextlib.suppress(OSError):  # the terminal is closed when the process ends
            piece = os.read(ours, 65536)
        if not piece:
            break
        screen += piece
        if left and screen[seen:].endswith(b": "):
            seen = len(screen)
            os.write(ours, left.pop(0).encode() + b"\n")
    code = process.wait(timeout=PATIENCE)
    os.close(ours)
    return code, screen.decode()
