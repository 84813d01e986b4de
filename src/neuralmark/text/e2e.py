"""The E2E NLG data: restaurants as meaning representations, and sentences that people wrote."""

import csv
import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neuralmark.errors import DamagedDataSetError, MissingDataSetError, ParameterError

ARCHIVE = "https://github.com/tuetschek/e2e-dataset/releases/download/v1.0.0/e2e-dataset.zip"
FILES = {"train": "trainset.csv", "dev": "devset.csv", "test": "testset_w_refs.csv"}
COLUMNS = ("mr", "ref")
PLACES = (".", "e2e-dataset", "e2e", "e2e/e2e-dataset")
"""Where in the given folder the files are looked for."""

ORIGINAL = {
    "train": (42061, "f27d48df45815288ab15619d47a79028c300fbb7f42e373668aba0b98c1d57c6"),
    "dev": (4672, "fc26b78cdb849c80545f513b223d1e051138b43882eeb79e3eb153e689c864f9"),
    "test": (4693, "edc8db685e39bb9824d5bd70c18b1c9b0412d14b527aa960e2d1c8251ee15ccd"),
}
"""Rows and SHA-256 of the files as they were published."""

NAMES = {"eatType": "Type", "priceRange": "price", "familyFriendly": "family friendly"}
"""Attributes that the LoRA paper's data calls by another name."""

_ATTRIBUTE = r"[^\[\],][^\[\]]*\[[^\[\]]*\]"
_MEANING = re.compile(rf"\s*{_ATTRIBUTE}(?:\s*,\s*{_ATTRIBUTE})*\s*")


@dataclass(frozen=True)
class E2ERow:
    """One line of the data."""

    meaning: str
    """Such as `name[Aromi], eatType[pub], area[riverside]`."""
    reference: str


@dataclass(frozen=True)
class E2ESplit:
    """The rows of one file, and which file it was."""

    name: str
    path: Path
    rows: tuple[E2ERow, ...]
    digest: str
    """SHA-256 of the file."""

    @property
    def complete(self) -> bool:
        """Whether this is the file as it was published."""
        return self.digest == ORIGINAL[self.name][1]

    @property
    def note(self) -> str:
        """What to say beside a result that rests on it."""
        if self.complete:
            return f"E2E {self.name}, complete"
        return f"E2E {self.name}, {len(self.rows)} rows ({ORIGINAL[self.name][0]} as published)"


@dataclass(frozen=True)
class E2ECase:
    """A meaning to put into words, and all the ways people did."""

    meaning: str
    references: tuple[str, ...]


def load(folder: Path | str, split: str) -> E2ESplit:
    """The rows of `train`, `dev` or `test`, from a folder that holds the published CSV files."""
    if split not in FILES:
        raise ParameterError(f"E2E has {', '.join(FILES)}, not {split!r}")
    path = find(Path(folder), FILES[split])
    try:
        content = path.read_bytes()
        rows = tuple(_rows(path, content.decode("utf-8-sig")))
    except OSError as error:
        raise DamagedDataSetError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DamagedDataSetError(f"{path} is not UTF-8: fetch it again from {ARCHIVE}") from None
    if not rows:
        raise DamagedDataSetError(f"{path} has no rows: fetch it again from {ARCHIVE}")
    return E2ESplit(split, path, rows, hashlib.sha256(content).hexdigest())


def find(folder: Path, file: str) -> Path:
    """Where a file of the data set is; says what is missing and where to get it."""
    for place in PLACES:
        if (path := folder / place / file).is_file():
            return path
    if not folder.is_dir():
        raise MissingDataSetError(
            f"there is no folder {folder}: make it, and unpack {ARCHIVE} in it"
        )
    missing = [f for f in FILES.values() if not any((folder / p / f).is_file() for p in PLACES)]
    raise MissingDataSetError(
        f"{folder} holds no {file} of the E2E data (missing: {', '.join(missing)}; also looked in"
        f" {', '.join(PLACES[1:])}): unpack {ARCHIVE} there"
    )


def group(rows: Sequence[E2ERow]) -> tuple[E2ECase, ...]:
    """The rows of each meaning together, in the order the meanings first appear.

    This is how the official scorer reads testset_w_refs.csv: 4,693 rows, 630 meanings.
    """
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row.meaning, []).append(row.reference)
    return tuple(E2ECase(meaning, tuple(several)) for meaning, several in found.items())


def linearise(meaning: str) -> str:
    """A meaning in the words that the LoRA paper's GPT-2 reads.

    >>> linearise("name[Aromi], eatType[pub], familyFriendly[no]")
    'name : Aromi | Type : pub | family friendly : no'
    """
    if not _MEANING.fullmatch(meaning):
        raise ParameterError(
            f"{meaning[:80]!r} is not a meaning representation like name[Aromi], eatType[pub]"
        )
    parts = re.findall(r"[\s,]*([^\[\]]*)\[([^\[\]]*)\]", meaning)
    pairs = [(name.strip(), value.strip()) for name, value in parts]
    return " | ".join(f"{NAMES.get(name, name)} : {value}" for name, value in pairs)


def _rows(path: Path, text: str) -> list[E2ERow]:
    """Every row, checked: a short line or an unreadable meaning is a sign of a damaged file."""
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = tuple(name.strip().lower() for name in next(reader, []))
        if header[: len(COLUMNS)] != COLUMNS:
            raise DamagedDataSetError(
                f"{path} should begin with the columns {', '.join(COLUMNS)}, and has"
                f" {', '.join(header)[:80] or 'none'}: fetch it again from {ARCHIVE}"
            )
        rows = []
        for cells in reader:
            if not cells:
                continue
            good = len(cells) == len(header) and cells[1].strip() and _MEANING.fullmatch(cells[0])
            if not good:
                raise csv.Error("not a meaning and a sentence")
            rows.append(E2ERow(cells[0].strip(), " ".join(cells[1].split())))
        return rows
    except csv.Error as error:
        raise DamagedDataSetError(
            f"{path} is damaged at line {reader.line_num} ({error}): fetch it again from {ARCHIVE}"
        ) from None
