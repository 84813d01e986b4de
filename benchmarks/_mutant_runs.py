"""Running tests on a module that is loaded with a change: in a fork that has torch and pytest.

Nothing is written to the source: the child's importer gives it the changed text.
"""

import contextlib
import importlib
import importlib.machinery
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from benchmarks._common import ROOT

SOURCE = ROOT / "src" / "neuralmark"
_LOADED = (
    *("numpy", "scipy.optimize", "hypothesis", "torch", "safetensors.numpy", "safetensors.torch"),
    *("click", "rich.table", "cryptography.hazmat.primitives.ciphers.aead", "doctest"),
)
MEMORY = 4 << 30
_RUN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
PROFILE = "mutants"
"""Of hypothesis: the same examples each time, and no search for a simpler one that fails."""


def prepare() -> None:
    """Load what every child needs but the package itself; examples of hypothesis are the same."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(SOURCE.parent), str(ROOT)]
    for name in _LOADED:
        importlib.import_module(name)
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        PROFILE,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile(PROFILE)
    assert "neuralmark" not in sys.modules


class Watcher:
    """Which tests run which lines of some folders, and how long they take."""

    def __init__(self, folders: Sequence[str]) -> None:
        """Watch modules of these packages."""
        self.roots = tuple(f"{SOURCE / folder}{os.sep}" for folder in folders)
        self.lines: dict[str, dict[int, list[str]]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self._seen: set[tuple[str, int]] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Trace one test with its fixtures."""
        self._seen.clear()
        start = time.perf_counter()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.seconds[item.nodeid] = time.perf_counter() - start
            for path, line in self._seen:
                module = str(Path(path).relative_to(SOURCE))
                self.lines.setdefault(module, {}).setdefault(line, []).append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """What fails before anything is changed."""
        if report.failed:
            self.failed.append(report.nodeid)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(self.roots):
            return None
        self._seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self._seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


class Chooser:
    """Runs some tests in the order given, and remembers which failed."""

    def __init__(self, chosen: Sequence[str]) -> None:
        """Take the tests by their ids."""
        self.order = {name: index for index, name in enumerate(chosen)}
        self.killer = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Conftest files have chosen another profile: one that looks for the simplest example."""
        from hypothesis import settings

        settings.load_profile(PROFILE)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the others."""
        items[:] = [item for item in items if item.nodeid in self.order]
        items.sort(key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The first failure kills."""
        if report.failed and not self.killer:
            self.killer = report.nodeid


def watched(folders: Sequence[str], files: Sequence[str], scratch: Path) -> dict[str, Any]:
    """Lines by test, and durations, of these test files without any change.

    What fails already is named and left out: it can tell nothing.
    """

    def child() -> tuple[int, dict[str, Any]]:
        watcher = Watcher(folders)
        code = pytest_main(files, watcher, scratch)
        return code, {"lines": watcher.lines, "seconds": watcher.seconds, "failed": watcher.failed}

    code, answer = forked(child, scratch, 3600.0)
    if code not in _RUN or not answer:
        said = (scratch / "output.txt").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"the tests cannot be run: {said}")
    for test in answer["failed"]:
        print(f"left out, since it fails without any change: {test}", file=sys.stderr, flush=True)
        answer["seconds"].pop(test, None)
        for table in answer["lines"].values():
            for line, tests in table.items():
                table[line] = [other for other in tests if other != test]
    return answer


def tried(path: Path, text: bytes, tests: Sequence[str], scratch: Path, limit: float) -> str:
    """Run tests, the first failure ends it, on a changed module; what killed it, or nothing."""

    def child() -> tuple[int, dict[str, Any]]:
        resource.setrlimit(resource.RLIMIT_AS, (used() + MEMORY, resource.RLIM_INFINITY))
        exchange(path, text)
        chooser = Chooser(tests)
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        code = pytest_main(["-x", *files], chooser, scratch)
        return code, {"killer": chooser.killer or "collection"}

    code, answer = forked(child, scratch, limit)
    if code is None:
        return "timeout"
    return str(answer.get("killer", "crash")) if code else ""


def forked(
    action: Callable[[], tuple[int, dict[str, Any]]], scratch: Path, limit: float
) -> tuple[int | None, dict[str, Any]]:
    """Do this in a child with a limit of seconds; its code (None if too late) and its answer."""
    told = scratch / "answer.json"
    told.unlink(missing_ok=True)
    process = os.fork()
    if not process:
        status = 99
        try:
            os.setsid()
            with open(scratch / "output.txt", "wb") as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
            status, answer = action()
            told.write_text(json.dumps(answer))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    deadline = time.monotonic() + limit
    code = _waited(process, deadline)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)  # the child's own session, its children included
    if code is None:
        os.waitpid(process, 0)
        return None, {}
    return code, json.loads(told.read_text()) if told.exists() else {}


def _waited(process: int, deadline: float) -> int | None:
    """The exit code of a child (256 if a signal ended it), or None at the deadline."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 256
        time.sleep(0.01)
    return None


def pytest_main(words: Sequence[str], plugin: object, scratch: Path) -> int:
    """Run pytest in this process."""
    os.chdir(ROOT)
    loaded = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis, on purpose
    quiet = ["-q", "-p", "no:cacheprovider", "--tb=no", "-W", loaded]
    return int(pytest.main([*quiet, f"--basetemp={scratch / 'files'}", *words], plugins=[plugin]))


def exchange(path: Path, text: bytes) -> None:
    """Give the importer this text for a module."""
    plain = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        if loader.path == str(path):
            return compile(text, str(path), "exec", dont_inherit=True)
        return plain(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def used() -> int:
    """Bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
