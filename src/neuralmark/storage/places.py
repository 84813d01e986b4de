"""Where the bytes of a model are: a path of this machine, or something far that is read in ranges.

A format asks a place for its name, its size, what lies beside it and for bytes, never for more. So
the same code reads a file here and a file behind a URL, of which only what is asked for is fetched.
Whoever reaches a place in a new way writes a `FarPlace`.
"""

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, Self, cast

from neuralmark.errors import UsageError
from neuralmark.storage import files


@dataclass(frozen=True)
class FarStat:
    """What is known of a far file: as much of `os.stat_result` as formats ask for."""

    st_size: int


class FarPlace(ABC):
    """A file or folder that is not on this machine; it has the members of `Path` that are used.

    Equal places are the same one: they are keys of tables.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of its address."""

    @property
    @abstractmethod
    def parent(self) -> Self:
        """The folder that it lies in."""

    @abstractmethod
    def __truediv__(self, name: str) -> Self:
        """What lies in this folder under a bare name."""

    @abstractmethod
    def __str__(self) -> str:
        """Its address as it may be printed: without credentials."""

    @abstractmethod
    def is_file(self) -> bool:
        """Whether it holds bytes."""

    @abstractmethod
    def is_dir(self) -> bool:
        """Whether something lies in it."""

    @abstractmethod
    def iterdir(self) -> Iterator[Self]:
        """What lies in this folder, not deeper."""

    @abstractmethod
    def size(self) -> int:
        """How many bytes it holds."""

    @abstractmethod
    def stamp(self) -> tuple[Any, ...]:
        """What changes with its content (an ETag, a version), asked for anew."""

    @abstractmethod
    def read_into(self, buffer: memoryview, at: int) -> int:
        """Fill the buffer with the bytes from `at` on; returns how many there were."""

    @property
    def suffix(self) -> str:
        """The ending of its name, with the dot."""
        return PurePosixPath(self.name).suffix

    def exists(self) -> bool:
        """Whether there is anything."""
        return self.is_file() or self.is_dir()

    def glob(self, pattern: str) -> Iterator[Self]:
        """What lies in this folder under a name of this pattern."""
        return (each for each in self.iterdir() if fnmatchcase(each.name, pattern))

    def stat(self) -> FarStat:
        """Its size."""
        return FarStat(self.size())

    def open(self, mode: Literal["rb"] = "rb", buffering: int = -1) -> BinaryIO:
        """A file object that fetches what is read from it."""
        raw = FarFile(self)
        return cast(BinaryIO, io.BufferedReader(raw) if buffering else raw)

    def read_bytes(self) -> bytes:
        """All of it: for small files."""
        with self.open() as file:
            return file.read()

    def resolve(self) -> Self:
        """Itself: there are no links."""
        return self

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:  # noqa: B027 - may be ignored
        """Be told which (offset, length) will be read soon, in this order: fetch them ahead."""

    def pinned(self) -> str | None:
        """To which version of it all reading is held (a commit, a version, an ETag), if to any."""
        return None

    def walk(self) -> Iterator[Self]:
        """All files under this folder, however deep, found as they are asked for."""
        for each in self.iterdir():
            if each.is_dir():
                yield from each.walk()
            else:
                yield each


Place = Path | FarPlace
"""Where a model, or a file of it, is."""


class FarFile(io.RawIOBase):
    """A far file as Python sees files; `read_at` reads it without moving about."""

    def __init__(self, place: FarPlace) -> None:
        """Nothing is fetched yet."""
        super().__init__()
        self.place = place
        self._at = 0

    @property
    def name(self) -> str:
        """Its address, for messages."""
        return str(self.place)

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Read on elsewhere."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (self.place.size() if base is None else base)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, as far as the file goes."""
        got = self.place.read_into(memoryview(buffer).cast("B"), self._at)
        self._at += got
        return got


def read_at(file: BinaryIO, buffer: memoryview, at: int) -> int:
    """Fill the buffer with a file's bytes from `at` on; fewer only where the file ends."""
    done = 0
    while done < len(buffer):
        got = _once(file, buffer[done:], at + done)
        if not got:
            break
        done += got
    return done


def _once(file: BinaryIO, buffer: memoryview, at: int) -> int:
    raw = getattr(file, "raw", file)
    if isinstance(raw, FarFile):
        return raw.place.read_into(buffer, at)
    return os.preadv(file.fileno(), [buffer], at)


def expect(place: Place, ranges: Sequence[tuple[int, int]]) -> None:
    """Say which (offset, length) of a file will be read soon, in this order."""
    if isinstance(place, FarPlace):
        place.expect(ranges)


def bytes_at(file: BinaryIO, length: int, at: int) -> bytes:
    """A file's bytes from `at` on; fewer only where the file ends."""
    room = bytearray(length)
    return bytes(room[: read_at(file, memoryview(room), at)])


def read_small(place: Place, most: int) -> bytes:
    """The content of a small file, at most one byte more than `most`."""
    if isinstance(place, Path):
        return files.read_small(place, most)
    with place.open() as file:
        return file.read(most + 1)


def local(place: Place) -> Path:
    """The path of a place on this machine; writing and links are for these only."""
    if isinstance(place, FarPlace):
        raise UsageError(
            f"{place}: only a file or folder of this machine can be written: download it first"
        )
    return place
