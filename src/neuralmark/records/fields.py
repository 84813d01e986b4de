"""Records read back from their files: every member checked, every complaint one line."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from neuralmark.core.encoding import canonical_json, strict_json
from neuralmark.errors import NeuralMarkError, RecordError
from neuralmark.storage import files

MAX_RECORD = 64 << 20
"""No file of a record is larger, in bytes."""

Word = TypeVar("Word", bound=str)

_LARGEST_COUNT = (1 << 63) - 1
_LARGEST_NUMBER = 1e100


class Record(ABC):
    """A frozen record with a file of its own: JSON that says what it is."""

    noun: ClassVar[str]
    file_format: ClassVar[str]
    """What its file calls itself: a name, a slash, a version."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """As it stands in its file.

        Returns:
            Plain values, by name.

        Examples:
            >>> neuralmark.verify("marked.safetensors", key).to_dict()["status"]
            'verified'
        """

    @classmethod
    @abstractmethod
    def _read(cls, given: "Fields") -> Self:
        """The record in a parsed file; raises ValueError on anything of the wrong form."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read back what `to_dict` gave.

        Args:
            data: The parsed content of a file.

        Returns:
            The record.

        Raises:
            RecordError: It is not a record of this kind, or damaged.

        Examples:
            >>> verdict = neuralmark.verify("marked.safetensors", key)
            >>> neuralmark.Verdict.from_dict(verdict.to_dict()) == verdict
            True
        """
        _check_format(cls, data)
        with damage(cls.noun):
            canonical_json(data)  # neither half a character nor an endless number, anywhere
            record = cls._read(Fields(data))
            _agree(data, record.to_dict())
        return record

    def to_json(self) -> str:
        """Readable JSON.

        Returns:
            The text of its file, ending in a line break.

        Examples:
            >>> neuralmark.verify("marked.safetensors", key).to_json().splitlines()[1]
            '  "format": "neuralmark-verdict/1",'
        """
        return to_json(self.to_dict())

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the record's file.

        Args:
            path: Where to write it.
            overwrite: Whether to replace a file that is there.

        Raises:
            OutputError: It cannot be written, or a file is there already.

        Examples:
            >>> neuralmark.verify("marked.safetensors", key).save("verdict.json")
            >>> neuralmark.Verdict.load("verdict.json").verified
            True
        """
        files.write_text(Path(path), self.to_json(), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a record's file; it is checked like any hostile input.

        Args:
            path: The file.

        Returns:
            The record.

        Raises:
            RecordError: It cannot be read, is not a record of this kind, or damaged.

        Examples:
            >>> neuralmark.verify("marked.safetensors", key).save("verdict.json")
            >>> neuralmark.Verdict.load("verdict.json").status
            'verified'
        """
        data = load_json(Path(path), cls.noun)
        try:
            return cls.from_dict(data)
        except RecordError as error:
            raise RecordError(f"{path}: {error}") from None


class Fields:
    """A table of a parsed record, whose members are taken by name and by kind."""

    def __init__(self, value: Any, at: str = "") -> None:
        """`at` is where in the record it stands."""
        if not isinstance(value, dict):
            raise TypeError(f"{at or 'it'} is not a table")
        self._members, self._at = value, at

    def _path(self, name: str) -> str:
        return f"{self._at}.{name}" if self._at else name

    def raw(self, name: str) -> Any:
        """A member as it is."""
        if name not in self._members:
            raise ValueError(f"{self._path(name)} is missing")
        return self._members[name]

    def optional(self, name: str) -> Any:
        """A member as it is; None where there is none."""
        return self._members.get(name)

    def empty(self, name: str) -> bool:
        """Whether a member is null."""
        return self.raw(name) is None

    def text(self, name: str) -> str:
        """A string."""
        return _text(self.raw(name), self._path(name))

    def text_or_none(self, name: str) -> str | None:
        """A string or null."""
        return None if self.empty(name) else self.text(name)

    def one_of(self, name: str, known: tuple[Word, ...]) -> Word:
        """A string that is one of those known."""
        value = self.text(name)
        for word in known:
            if value == word:
                return word
        raise ValueError(f"{self._path(name)} is none of {', '.join(known)}")

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.raw(name)
        if not isinstance(value, bool):
            raise TypeError(f"{self._path(name)} is neither true nor false")
        return value

    def count(self, name: str) -> int:
        """A whole number, not negative."""
        return _count(self.raw(name), self._path(name))

    def count_or_none(self, name: str) -> int | None:
        """A whole number or null."""
        return None if self.empty(name) else self.count(name)

    def number(self, name: str) -> float:
        """A number."""
        return _number(self.raw(name), self._path(name))

    def number_or_none(self, name: str) -> float | None:
        """A number or null."""
        return None if self.empty(name) else self.number(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        return tuple(_text(each, self._path(name)) for each in self._list(name))

    def counts(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers."""
        return tuple(_count(each, self._path(name)) for each in self._list(name))

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers."""
        return tuple(_number(each, self._path(name)) for each in self._list(name))

    def table(self, name: str) -> "Fields":
        """A table."""
        return Fields(self.raw(name), self._path(name))

    def tables(self, name: str) -> "list[Fields]":
        """A list of tables."""
        return [Fields(each, f"{self._path(name)}[{i}]") for i, each in enumerate(self._list(name))]

    def all_texts(self) -> dict[str, str]:
        """The whole table, where every member is a string."""
        return {name: self.text(name) for name in self._members}

    def all_numbers(self) -> dict[str, float | None]:
        """The whole table, where every member is a number or null."""
        return {name: self.number_or_none(name) for name in self._members}

    def _list(self, name: str) -> list[Any]:
        value = self.raw(name)
        if not isinstance(value, list):
            raise TypeError(f"{self._path(name)} is not a list")
        return value


def to_json(value: dict[str, Any]) -> str:
    """Readable JSON, ending in a line break; numbers that JSON lacks are an error."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def load_json(path: Path, noun: str, most: int = MAX_RECORD, *, links: bool = True) -> Any:
    """What a small file holds, parsed strictly."""
    try:
        data = files.read_small(path, most, links=links)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(data) > most:
        raise RecordError(f"{path}: is larger than a {noun} may be ({most:,} bytes)")
    return parse(data, str(path))


def parse(text: bytes | str, where: str) -> Any:
    """What a text holds, parsed strictly; `where` it is from begins the complaint."""
    try:
        return strict_json(text)
    except ValueError as error:
        raise RecordError(f"{where}: is not valid JSON ({error})") from None


@contextmanager
def damage(noun: str) -> Iterator[None]:
    """Turn whatever is wrong with a record into one line that says so."""
    try:
        yield
    except KeyError as error:
        raise RecordError(f"the {noun} is damaged ({str(error)[:200]} is missing)") from None
    except RecursionError:
        raise RecordError(f"the {noun} is damaged (nested too deeply)") from None
    except (NeuralMarkError, TypeError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        raise RecordError(f"the {noun} is damaged ({said})") from None


def _check_format(kind: type[Record], data: Any) -> None:
    found = data.get("format") if isinstance(data, dict) else None
    if found == kind.file_format:
        return
    name = kind.file_format.rpartition("/")[0]
    if isinstance(found, str) and found.rpartition("/")[0] == name:
        raise RecordError(f"a {kind.noun} of an unknown version; update neuralmark")
    raise RecordError(f"not a NeuralMark {kind.noun}")


def _agree(given: Any, told: Any, at: str = "") -> None:
    """Refuse members that are missing or not known, or contradict those they follow from."""
    if isinstance(given, dict) and isinstance(told, dict):
        for name in {**told, **given}:
            path = f"{at}.{name}" if at else name
            if name not in told:
                raise ValueError(f"{path} is not known to this version")
            if name not in given:
                raise ValueError(f"{path} is missing")
            _agree(given[name], told[name], path)
    elif isinstance(given, list) and isinstance(told, list) and len(given) == len(told):
        for i, (one, other) in enumerate(zip(given, told, strict=True)):
            _agree(one, other, f"{at}[{i}]")
    elif given != told or isinstance(given, bool) is not isinstance(told, bool):
        raise ValueError(f"{at} contradicts the rest")


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{at} is not text")
    return value


def _count(value: Any, at: str) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST_COUNT:
        raise TypeError(f"{at} is not a count")
    return value


def _number(value: Any, at: str) -> float:
    if type(value) not in (int, float) or not abs(value) <= _LARGEST_NUMBER:
        raise TypeError(f"{at} is not a number, or out of range")
    return value  # type: ignore[no-any-return]
