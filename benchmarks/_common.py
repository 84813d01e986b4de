"""What all benchmarks share: timing, peak memory of child processes, tables, targets, --json."""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
"""The repository; children run here so that `python -m benchmarks.…` finds itself."""


@dataclass
class Report:
    """Collects tables and targets, prints them as text or as one JSON document."""

    title: str
    as_json: bool = False
    tables: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    targets: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Say at once what runs."""
        self._say(f"== {self.title}")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Any]], name: str = "") -> None:
        """A table with right-aligned columns, the first left-aligned."""
        self.tables.append({"name": name, "head": list(head), "rows": [list(r) for r in rows]})
        cells = [[str(cell) for cell in row] for row in [head, *rows]]
        widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
        self._say(f"\n{name}" if name else "")
        for row in cells:
            first, *rest = [
                c.rjust(w) if i else c.ljust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ]
            self._say("  " + "  ".join([first, *rest]).rstrip())

    def note(self, text: str) -> None:
        """One line of prose."""
        self.notes.append(text)
        self._say(text)

    def target(self, name: str, measured: float, wanted: str, *, passed: bool) -> None:
        """What must be reached, and whether it was."""
        self.targets.append(
            {"name": name, "measured": measured, "wanted": wanted, "passed": bool(passed)}
        )

    def finish(self) -> int:
        """Print the targets; the exit code is 1 if one was missed."""
        failed = [target for target in self.targets if not target["passed"]]
        if self.as_json:
            document = {
                "title": self.title,
                "passed": not failed,
                "targets": self.targets,
                "tables": self.tables,
                "notes": self.notes,
            }
            print(json.dumps(document, indent=2, ensure_ascii=False))
            return 1 if failed else 0
        print()
        for target in self.targets:
            verdict = "PASS" if target["passed"] else "FAIL"
            print(f"{verdict}  {target['name']}: {target['measured']:.4g} ({target['wanted']})")
        return 1 if failed else 0

    def _say(self, text: str) -> None:
        if not self.as_json:
            print(text, flush=True)


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with --json; the description is the script's docstring."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", action="store_true", help="print one JSON document")
    return made


@contextmanager
def scratch(folder: Path | None = None) -> Iterator[Path]:
    """A temporary folder (inside `folder` if given) that is removed in every case."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` is reached
    path = Path(tempfile.mkdtemp(prefix="nmbench-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def interleaved(
    repeats: int, ours: Callable[[], float], peer: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Measure the two in turn, each going first every other time."""
    mine: list[float] = []
    other: list[float] = []
    for turn in range(repeats):
        first, second = (ours, peer) if turn % 2 else (peer, ours)
        one, two = first(), second()
        mine.append(one if first is ours else two)
        other.append(one if first is peer else two)
    return mine, other


def seconds_of(action: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def median(values: Sequence[float]) -> float:
    """The median."""
    return float(statistics.median(values))


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Ratio of the medians."""
    return median(above) / median(below)


def peak_bytes() -> int:
    """Peak resident memory of this process since it was started (VmHWM).

    Not ru_maxrss: on Linux that starts with what the parent had at the fork.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def run_child(module: str, *arguments: str) -> dict[str, Any]:
    """Run `python -m benchmarks.MODULE …` and return the JSON object of its last line."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def command_line() -> str:
    """Path of the `neuralmark` command that belongs to this interpreter."""
    return str(Path(sys.executable).with_name("neuralmark"))


def drop_caches() -> bool:
    """Empty the page cache; False where that is not allowed."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def megabytes(size: float) -> str:
    """Bytes as MB."""
    return f"{size / 1e6:,.0f} MB"
