"""Tests collected once: a process that holds them forks for each change and runs some of them.

The functions of the changed module are given their new code, in the fork. What runs at import (a
constant, a class's default, a decorator) cannot be changed so late: `tried` is for that.
"""

import functools
import gc
import json
import os
import resource
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, TracebackType
from typing import Any

import pytest

from benchmarks._mutant_runs import MEMORY, PROFILE, SOURCE, exchange, forked, pytest_main, used

Place = tuple[str, str, int]
"""File, qualified name and first line of a function."""


class Collected:
    """Test files, collected in a process of their own; use it with `with`."""

    def __init__(self, files: Sequence[str], folder: Path) -> None:
        """Collect them."""
        self._sound: dict[str, bool] = {}
        self._said = folder / "server.txt"
        ours, theirs = socket.socketpair()
        self._process = os.fork()
        if not self._process:
            ours.close()
            _serve(files, folder, self._said, theirs)
        theirs.close()
        self._lines = ours.makefile("rw", encoding="utf-8")
        ours.close()

    def __enter__(self) -> "Collected":
        """Nothing to do."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self._lines.close()
        os.waitpid(self._process, 0)

    def tried(
        self, path: Path, text: bytes, lines: Sequence[int], tests: Sequence[str], limit: float
    ) -> str | None:
        """What killed a change, or nothing; None if it cannot be made here.

        A test kills only if it passes alone, in the same place, without a change.
        """
        wanted = list(tests)
        while True:
            killer = self._asked(path, text, lines, wanted, limit)
            if killer not in wanted or self._passes(killer, limit):
                return killer
            wanted.remove(killer)

    def _passes(self, test: str, limit: float) -> bool:
        if test not in self._sound:
            self._sound[test] = self._asked(None, b"", (), [test], limit) == ""
        return self._sound[test]

    def _asked(
        self,
        path: Path | None,
        text: bytes,
        lines: Sequence[int],
        tests: Sequence[str],
        limit: float,
    ) -> str | None:
        question = {
            "path": str(path or ""),
            "text": text.decode(),
            "lines": list(lines),
            "tests": list(tests),
            "limit": limit,
        }
        try:
            print(json.dumps(question), file=self._lines, flush=True)
            answer = self._lines.readline()
        except OSError:
            answer = ""
        if not answer:
            said = self._said.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the process that holds the tests has ended: {said}")
        killer: str | None = json.loads(answer)["killer"]
        return killer


class Server:
    """A pytest plugin: instead of running what was collected, waits for questions."""

    def __init__(self, questions: socket.socket, folder: Path) -> None:
        """Answer on the same socket."""
        self.lines = questions.makefile("rw", encoding="utf-8")
        self.folder = folder
        self.killer = ""
        self.items: dict[str, pytest.Item] = {}
        self.live: dict[Place, list[FunctionType]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Conftest files have chosen another profile: one that looks for the simplest example."""
        from hypothesis import settings

        settings.load_profile(PROFILE)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Answer until nobody asks any more."""
        self.items = {item.nodeid: item for item in session.items}
        self._look()
        for line in self.lines:
            asked = json.loads(line)
            code, answer = forked(lambda: self._try(asked), self.folder, asked["limit"])  # noqa: B023
            killer = "timeout" if code is None else answer.get("killer", "crash")
            print(json.dumps({"killer": killer}), file=self.lines, flush=True)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The first failure kills."""
        if report.failed and not self.killer:
            self.killer = report.nodeid

    def _look(self) -> None:
        """Note where the functions of the package are; forget what they have computed."""
        gc.collect()
        for thing in gc.get_objects():  # asked for its type only: some warn when they are looked at
            if type(thing) is functools._lru_cache_wrapper:
                if _ours(getattr(thing.__wrapped__, "__code__", None)):
                    thing.cache_clear()
            elif type(thing) is FunctionType and _ours(thing.__code__):
                self.live.setdefault(_place(thing.__code__), []).append(thing)
        gc.freeze()

    def _try(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        resource.setrlimit(resource.RLIMIT_AS, (used() + MEMORY, resource.RLIM_INFINITY))
        if asked["path"] and not self._changed(asked):
            return 0, {"killer": None}
        chosen: list[pytest.Item | None] = [self.items[name] for name in asked["tests"]]
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            if item is not None and not self.killer:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return 0, {"killer": self.killer}

    def _changed(self, asked: dict[str, Any]) -> bool:
        """Give functions their new code; whether the changed line is in one of them."""
        path, text, lines = asked["path"], asked["text"].encode(), set(asked["lines"])
        exchange(Path(path), text)  # if it is imported only now
        if not any(place[0] == path for place in self.live):
            return bool(lines)
        old, new = (compile(t, path, "exec") for t in (Path(path).read_bytes(), text))
        done = False
        for before, after in _pairs(old, new):
            for function in self.live.get(_place(before), ()):
                if len(before.co_freevars) != len(after.co_freevars):
                    return False
                function.__code__ = after
                done = done or bool(lines & _lines(before))
        return done


def _serve(files: Sequence[str], folder: Path, said: Path, questions: socket.socket) -> None:
    """Never comes back."""
    status = 99
    try:
        with said.open("wb") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        status = pytest_main(files, Server(questions, folder), folder)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _ours(code: CodeType | None) -> bool:
    return code is not None and code.co_filename.startswith(str(SOURCE))


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Functions and classes of two versions of a module, in the order of the text."""
    parts = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (old, new)]
    if len(parts[0]) == len(parts[1]):
        for before, after in zip(*parts, strict=True):
            yield before, after
            yield from _pairs(before, after)


def _lines(code: CodeType) -> set[int]:
    """The lines of a function and of those inside it."""
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    own = {line for *_, line in code.co_lines() if line is not None}
    return own.union(*map(_lines, inner))
