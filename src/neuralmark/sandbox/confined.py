"""A sandboxed process as its parent sees it: calls that end in a value or in a named error."""

import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from neuralmark import errors
from neuralmark.errors import (
    MemoryLimitError,
    NeuralMarkError,
    SandboxError,
    TimeLimitError,
)
from neuralmark.sandbox import child
from neuralmark.sandbox.channel import LONGEST, send
from neuralmark.sandbox.limits import SandboxLimits

Answer = Callable[[str, list[Any]], bytes]
"""Answers a question of the process, which cannot reach it: a piece of a remote file, say."""
Progress = Callable[[str, int, int], None]

_PIECE = 1 << 20
_LENGTH = 5
_START = 120.0
"""Seconds for the interpreter to start, on a busy machine."""
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TZ")
"""Of the environment: nothing that may hold a password or a token."""
_COMPUTING = ("OPENBLAS_", "MKL_", "BLIS_", "NPY_", "NVPL_BLAS_")
"""How names begin that decide how numbers are added up: a verdict is the same here and there."""


@dataclass(frozen=True)
class Protection:
    """By what a sandboxed process is kept from things; empty: by nothing on this system."""

    network: str = ""
    writing: str = ""
    processes: str = ""

    @property
    def whole(self) -> bool:
        """Whether all of it is prevented."""
        return bool(self.network and self.writing and self.processes)

    def __str__(self) -> str:
        """In a line."""
        said = {"network": self.network, "writing": self.writing, "new processes": self.processes}
        kept = [f"no {name} ({by})" for name, by in said.items() if by]
        lost = [name for name, by in said.items() if not by]
        more = f"; this system cannot prevent {', '.join(lost)}" if lost else ""
        return ", ".join(kept) + more


@dataclass(frozen=True)
class Ended:
    """How a call ended."""

    value: Any = None
    error: NeuralMarkError | None = None
    dead: bool = False
    """Whether the process is gone: another must be started."""


class Confined:
    """A process of its own for reading suspects, kept for many calls.

    Args:
        limits: What it may use.
        answer: Answers its questions; without, every question is refused.
        confine: Whether it is confined at all; without, it is a process like any other.

    Raises:
        SandboxError: It could not be started.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        answer: Answer | None = None,
        *,
        confine: bool = True,
    ) -> None:
        """Start it, and wait until it has given everything up."""
        self.limits = limits or SandboxLimits()
        self._answer = answer
        self._progress: Progress | None = None
        self._buffer = bytearray()
        self._deadline = self._latest = time.monotonic() + _START
        ours, theirs = socket.socketpair()
        self._socket = ours
        memory = self.limits.memory if confine else 0
        words = [str(theirs.fileno()), str(memory), str(self.limits.files)]
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own words
            [sys.executable, "-m", "neuralmark.sandbox.child", *words],
            pass_fds=[theirs.fileno()],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        started = self.ended()
        if started.error is not None:
            raise SandboxError(f"the sandbox could not be started ({started.error})")
        self.protection = Protection(**started.value)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def fileno(self) -> int:
        """What becomes readable when the process says something, or is gone."""
        return self._socket.fileno()

    @property
    def left(self) -> float:
        """Seconds until the call that runs is given up."""
        return max(0.0, self._deadline - time.monotonic())

    def begin(
        self,
        work: child.Work,
        *arguments: Any,
        models: int = 1,
        progress: Progress | None = None,
    ) -> None:
        """Begin a call, with time for so many models; `heard` tells how it ends.

        Between two messages of the process there may be as much time as one model has. What it
        tells by `child.tell` goes to `progress`.
        """
        self._progress = progress
        seconds = self.limits.seconds * models
        self._latest = time.monotonic() + seconds + 1
        self._deadline = min(self._latest, time.monotonic() + self.limits.seconds + 1)
        if self.fileno() < 0:
            return
        try:
            send(self.fileno(), child.TASK, pickle.dumps((seconds, work, arguments)))
        except OSError:  # it is gone, which `heard` finds
            return

    def call(self, work: child.Work, *arguments: Any, progress: Progress | None = None) -> Any:
        """Carry out a function of that process, and give its value.

        Args:
            work: A function that can be imported by its name; its value must be JSON.
            arguments: What it is called with; they are pickled.
            progress: Called with what the process tells by `child.tell`.

        Returns:
            Its value.

        Raises:
            NeuralMarkError: What it raised, under its name.
            MemoryLimitError: It needed more memory than it has.
            TimeLimitError: It took longer than it may.
            SandboxError: It died, or raised what has no name here.
        """
        self.begin(work, *arguments, progress=progress)
        ended = self.ended()
        if ended.error is not None:
            raise ended.error
        return ended.value

    def heard(self) -> Ended | None:
        """What the process said; None while the call still runs. Does not wait."""
        if self.fileno() < 0:
            return Ended(error=SandboxError("the sandboxed process has ended"), dead=True)
        if not self.left:
            self.close()
            return Ended(error=_too_long(self.limits), dead=True)
        try:
            piece = self._socket.recv(_PIECE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            piece = b""
        if not piece:
            return Ended(error=self._cause(), dead=True)
        self._buffer += piece
        return self._understood()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def __enter__(self) -> "Confined":
        """The process, ended with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()

    def ended(self) -> Ended:
        """Wait until the call that runs has ended."""
        while True:
            if self.fileno() >= 0:
                select.select([self], [], [], self.left)
            ended = self.heard()
            if ended is not None:
                return ended

    def _understood(self) -> Ended | None:
        """Take the messages that are complete; what is no message ends the process."""
        while len(self._buffer) >= _LENGTH:
            length = int.from_bytes(self._buffer[:_LENGTH], "little")
            if not 0 < length <= LONGEST:
                return self._nonsense()
            if len(self._buffer) < _LENGTH + length:
                return None
            message = bytes(self._buffer[_LENGTH : _LENGTH + length])
            del self._buffer[: _LENGTH + length]
            try:
                ended = self._taken(message[:1], json.loads(message[1:]))
            except (ValueError, TypeError, KeyError, RecursionError):
                return self._nonsense()
            if ended is not None:
                return ended
        return None

    def _taken(self, kind: bytes, body: Any) -> Ended | None:
        if kind in (child.DONE, child.READY):
            return Ended(value=body)
        if kind == child.FAILED:
            if body["error"] == "MemoryError":
                return Ended(error=_too_much(self.limits))
            return Ended(error=error_of(body))
        self._deadline = min(self._latest, time.monotonic() + self.limits.seconds + 1)
        if kind == child.PROGRESS and self._progress is not None:
            what, done, total = body
            self._progress(str(what)[:200], int(done), int(total))
        elif kind == child.ASK:
            told = str(body[0]), list(body[1:])
            Thread(target=self._reply, args=told, daemon=True).start()  # others go on meanwhile
        return None

    def _reply(self, question: str, arguments: list[Any]) -> None:
        try:
            if self._answer is None:
                raise SandboxError("a sandboxed process reads files of this machine only")
            kind, body = child.BYTES, self._answer(question, arguments)
        except Exception as error:  # whatever it is, the process waits for an answer
            kind, body = child.REFUSED, json.dumps(child.told(error)).encode()
        try:
            send(self.fileno(), kind, body)
        except OSError:  # it is gone, which `heard` finds
            return

    def _nonsense(self) -> Ended:
        self.close()
        return Ended(error=SandboxError("the sandboxed process answered nonsense"), dead=True)

    def _cause(self) -> NeuralMarkError:
        """Why the process is gone."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        self.close()
        if code == -signal.SIGXCPU:
            return _too_long(self.limits)
        if code in (-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS):
            name = signal.Signals(-code).name
            return SandboxError(
                f"the reader died ({name}): the machine has too little memory for this model, or"
                " it breaks the reader"
            )
        return SandboxError(f"the reader died (exit code {code})")


def error_of(told: dict[str, Any]) -> NeuralMarkError:
    """The error of that name; one that has none here as a SandboxError."""
    name, message = str(told["error"])[:80], str(told["message"])[: child.LONGEST_REASON]
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, NeuralMarkError):
        found: NeuralMarkError = kind(message)
        return found
    return SandboxError(f"{name}: {message}" if message else name)


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_COMPUTING)
    }
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join(each or str(Path.cwd()) for each in sys.path)
    return {**kept, **one, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def _too_much(limits: SandboxLimits) -> MemoryLimitError:
    return MemoryLimitError(
        f"reading it takes more than the {limits.memory / 2**30:.3g} GiB of memory that the"
        " sandbox has: raise the limit (SandboxLimits(memory=...))"
    )


def _too_long(limits: SandboxLimits) -> TimeLimitError:
    return TimeLimitError(
        f"reading it takes longer than the {limits.seconds:g} s that the sandbox has: raise the"
        " limit (SandboxLimits(seconds=...))"
    )
