"""What a scan has done: a list of targets, and a file that only grows, flushed to the disk.

A scan that is killed at any moment goes on where the last whole line ends. Each round has two files
of its own, `targets-0001.jsonl` and `journal-0001.jsonl`; `scan.json` says of which scan they are.
"""

import json
import os
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from neuralmark.core.encoding import strict_json
from neuralmark.errors import OutputError, ParameterError, ScanMismatchError
from neuralmark.sandbox.confined import Protection
from neuralmark.scanning.contract import ScanRow, TargetName, Todo, kept_name, restored_name
from neuralmark.storage import files

ABOUT = "scan.json"
ABOUT_FORMAT = "neuralmark-scan/1"
SEEN = "seen.sqlite"
_DIGITS = "[0-9]" * 4
_OURS = (
    *("targets-*.jsonl", "journal-*.jsonl", "rows.jsonl", "rows.parquet", "index.html", SEEN),
    *(f"verdicts/{_DIGITS}.json", f"verdicts/{_DIGITS}.html"),
)
"""What a scan that is begun anew clears away."""


@dataclass(frozen=True)
class About:
    """Of which scan a folder holds the results."""

    parts: Mapping[str, Any]
    """Keys, claims, anchors, targets and what else changes rows: values, or their digests."""
    watches: bool
    """Whether it has rounds without end: then they share the bound."""
    finished: int = 0
    """How many rounds are complete."""
    begun: bool = False
    """Whether anything was given to workers yet."""
    protection: Protection | None = None
    """By what all of them were confined; None: by nothing, or not all of them."""

    def to_dict(self) -> dict[str, Any]:
        """As it stands in its file."""
        told = {"format": ABOUT_FORMAT, "parts": dict(self.parts), "watches": self.watches}
        told |= {"finished": self.finished, "begun": self.begun}
        return told | {"protection": None if self.protection is None else vars(self.protection)}

    def protected(self, by: Protection | None) -> "About":
        """The same, with workers that are confined by this: what all of them have counts."""
        known = self.protection
        if self.begun and known != by:
            by = None if known is None or by is None else _shared(known, by)
        return replace(self, begun=True, protection=by)

    def differences(self, parts: Mapping[str, Any], *, watches: bool) -> str:
        """In what a scan of these parts differs from this one, in words; empty: in nothing."""
        if not self.parts and parts:
            return "keys, targets or options"
        found: list[str] = []
        for name, value in parts.items():
            if self.parts.get(name) == value or (name == PLACES and found[:1] == [KEYS]):
                continue
            shown = not name.startswith(OWN)
            found.append(f"{name} ({self.parts.get(name)!r}, now {value!r})" if shown else name)
        if watches != self.watches:
            found.append(f"watching ({'no, now yes' if watches else 'yes, now no'})")
        return " and ".join([", ".join(found[:-1]), *found[-1:]] if found[1:] else found)


OWN = "its "
"""How the names of parts begin of which only a digest is kept."""
KEYS = f"{OWN}keys"
PLACES = f"{OWN}claims or anchors"
"""These differ whenever keys do."""


def _shared(one: Protection, other: Protection) -> Protection:
    """What both prevent, by whatever the first does."""
    return Protection(**{name: by * bool(vars(other)[name]) for name, by in vars(one).items()})


def begin(folder: Path, parts: Mapping[str, Any], *, watches: bool, overwrite: bool) -> About:
    """What a folder knows of this scan; a new folder is made, one of another scan is refused."""
    made_folder(folder)
    known = None if overwrite else _known(folder / ABOUT)
    if known is None and not overwrite and _holds_anything(folder):
        raise ScanMismatchError(
            f"{folder}: is not empty, and holds no results of a scan: choose another folder, or"
            " pass overwrite=True"
        )
    if known is not None:
        differences = known.differences(parts, watches=watches)
        if differences:
            raise ScanMismatchError(
                f"{folder}: holds results of a scan that differs in {differences}: choose another"
                " folder, or pass overwrite=True to begin anew"
            )
        return known
    with files.writing(folder):
        for old in chain.from_iterable(map(folder.glob, _OURS)):
            old.unlink()
    wanted = About(parts, watches)
    keep(folder, wanted)
    return wanted


def _holds_anything(folder: Path) -> bool:
    with files.writing(folder):
        return any(folder.iterdir())


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
        by = data["protection"]
        return About(
            dict(data["parts"]),
            bool(data["watches"]),
            int(data["finished"]),
            bool(data["begun"]),
            None if by is None else Protection(**by),
        )
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


def remember(folder: Path, listing: Listing) -> None:
    """Write down what a round looked at."""
    with closing(seen_before(folder)) as seen, seen:
        found = listing.read(range(len(listing)))
        pairs = ((kept_name(todo.target), stamp) for todo, stamp in found)
        seen.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?)", pairs)


def seen_before(folder: Path) -> sqlite3.Connection:
    """What earlier rounds looked at, on the disk."""
    path = folder / SEEN
    table = sqlite3.connect(path)
    try:
        table.execute("CREATE TABLE IF NOT EXISTS seen (target TEXT PRIMARY KEY, stamp TEXT)")
    except sqlite3.OperationalError as error:
        table.close()
        raise OutputError(f"{path} cannot be written ({error}): choose another place") from None
    except sqlite3.DatabaseError:
        table.close()
        raise ScanMismatchError(
            f"{path}: is damaged: choose another folder, or pass overwrite=True to begin anew"
        ) from None
    return table


def was_seen(seen: sqlite3.Connection, target: TargetName, stamp: str | None) -> bool:
    """Whether a target was looked at and has not changed since."""
    row = seen.execute("SELECT stamp FROM seen WHERE target = ?", (kept_name(target),)).fetchone()
    return row is not None and stamp is not None and row[0] == stamp
