"""What a scan has done: a list of targets, and a file that only grows, flushed to the disk.

A scan that is killed at any moment goes on where the last whole line ends. Each round has two files
of its own, `targets-0001.jsonl` and `journal-0001.jsonl`; `scan.json` says of which scan they are.
"""

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralmark.core.encoding import strict_json
from neuralmark.errors import OutputError, ParameterError, ScanMismatchError
from neuralmark.scanning.contract import ScanRow, Todo, kept_name, restored_name
from neuralmark.storage import files

ABOUT = "scan.json"
ABOUT_FORMAT = "neuralmark-scan/1"


@dataclass(frozen=True)
class About:
    """Of which scan a folder holds the results."""

    identity: str
    """Of keys, claims, anchors, targets and what else changes rows."""
    watches: bool
    """Whether it has rounds without end: then they share the bound."""
    finished: int = 0
    """How many rounds are complete."""

    def to_dict(self) -> dict[str, Any]:
        """As it stands in its file."""
        told = {"identity": self.identity, "watches": self.watches, "finished": self.finished}
        return {"format": ABOUT_FORMAT, **told}


def begin(folder: Path, identity: str, *, watches: bool, overwrite: bool) -> About:
    """What a folder knows of this scan; a new folder is made, one of another scan is refused."""
    made_folder(folder)
    known = _known(folder / ABOUT)
    wanted = About(identity, watches)
    if known is not None and (known.identity, known.watches) == (identity, watches):
        return known
    if known is None and any(folder.iterdir()) and not overwrite:
        raise ScanMismatchError(
            f"{folder}: is not empty, and holds no results of a scan: choose another folder, or"
            " pass overwrite=True"
        )
    if known is not None and not overwrite:
        raise ScanMismatchError(
            f"{folder}: holds results of a scan with other keys, targets or options: choose another"
            " folder, or pass overwrite=True to begin anew"
        )
    for old in [*folder.glob("targets-*.jsonl"), *folder.glob("journal-*.jsonl")]:
        old.unlink()
    keep(folder, wanted)
    return wanted


def made_folder(folder: Path) -> None:
    """Make a folder for results, if it is not there."""
    with files.writing(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise OutputError(
                f"{folder} is no folder, and the results need one: choose another name, or move it"
                " away"
            ) from None


def keep(folder: Path, about: About) -> None:
    """Write down what the folder holds."""
    text = json.dumps(about.to_dict(), indent=2) + "\n"
    files.write_text(folder / ABOUT, text, overwrite=True)


def _known(path: Path) -> About | None:
    if not path.is_file():
        return None
    try:
        data = strict_json(files.read_small(path, 1 << 16))
        if data["format"] != ABOUT_FORMAT:
            raise ValueError
        return About(str(data["identity"]), bool(data["watches"]), int(data["finished"]))
    except (ValueError, KeyError, TypeError):
        raise ScanMismatchError(
            f"{path}: is damaged, or of another version: choose another folder, or pass"
            " overwrite=True"
        ) from None


class Listing:
    """The targets of a round, on the disk; only where each line begins is held in memory."""

    def __init__(self, path: Path) -> None:
        """Of a list that is complete."""
        self._path = path
        self._starts = array("Q")
        at, line = 0, b"{}"
        with path.open("rb") as file:
            for line in file:
                self._starts.append(at)
                at += len(line)
        self._starts.pop()  # the last line says when it was made
        self.date = str(json.loads(line)["date"])
        """When the list was made."""

    @classmethod
    def of(cls, path: Path, found: Iterable[tuple[str, str | None]], date: str) -> "Listing":
        """The list of a round: the one that is there, or a new one of these.

        A list gets its name when all of it is written, so one that is there is complete.
        """
        if not path.is_file():
            with files.replacing(path) as temporary, files.create(temporary) as out:
                for target, stamp in found:
                    out.write(json.dumps([kept_name(target), stamp]).encode() + b"\n")
                out.write(json.dumps({"date": date}).encode() + b"\n")
        return cls(path)

    def __len__(self) -> int:
        """How many targets there are."""
        return len(self._starts)

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[Todo, str | None]]:
        """These targets, and their stamps."""
        with self._path.open("rb") as file:
            for number in numbers:
                file.seek(self._starts[number])
                target, stamp = json.loads(file.readline())
                yield Todo(number, restored_name(target)), stamp


class RoundJournal:
    """Rows of finished targets, in the order in which they were finished."""

    def __init__(self, path: Path, targets: int) -> None:
        """Goes on behind the last whole line; what a killed process left behind it is cut off."""
        self._path = path
        self.done = bytearray(targets)
        """For each target whether it has its rows."""
        self._starts = array("q", [-1]) * targets
        self._end = 0
        with files.writing(path):
            path.touch()
            with path.open("rb") as file:
                for line in file:
                    if not self._taken(line):
                        break
                    self._end += len(line)
            self._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            os.ftruncate(self._handle, self._end)

    def _taken(self, line: bytes) -> bool:
        try:
            number = json.loads(line)["number"]
        except (ValueError, KeyError, TypeError):
            return False
        if not line.endswith(b"\n"):
            return False
        if not 0 <= number < len(self.done):
            raise ParameterError(f"{self._path}: is not the journal of these targets")
        self.done[number], self._starts[number] = 1, self._end
        return True

    def add(self, outcomes: Iterable[tuple[int, Sequence[ScanRow]]]) -> None:
        """Write the rows of these targets, and flush them to the disk."""
        lines = b""
        for number, rows in outcomes:
            told = {"number": number, "rows": [row.to_dict() for row in rows]}
            line = json.dumps(told, allow_nan=False).encode() + b"\n"
            self._starts[number] = self._end + len(lines)
            self.done[number] = 1
            lines += line
        if not lines:
            return
        with files.writing(self._path):
            files.write_at(self._handle, lines, self._end)
            os.fsync(self._handle)
        self._end += len(lines)

    def waiting(self) -> Iterator[int]:
        """Targets without rows."""
        return (number for number, done in enumerate(self.done) if not done)

    def rows(self) -> Iterator[ScanRow]:
        """All rows, in the order of the targets."""
        with self._path.open("rb") as file:
            for start in self._starts:
                if start >= 0:
                    file.seek(start)
                    for row in json.loads(file.readline())["rows"]:
                        yield ScanRow.from_dict(row)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._handle)
