"""A place that only answers what a far one does: a local file or folder, read in ranges."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from neuralmark.storage.places import FarPlace


class MirrorPlace(FarPlace):
    """Stands for `path` at a distance; remembers how many bytes were fetched."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fetched = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MirrorPlace) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __str__(self) -> str:
        return f"far:{self.path}"

    def __truediv__(self, name: str) -> Self:
        return type(self)(self.path / name)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def parent(self) -> Self:
        return type(self)(self.path.parent)

    def is_file(self) -> bool:
        return self.path.is_file()

    def is_dir(self) -> bool:
        return self.path.is_dir()

    def iterdir(self) -> Iterator[Self]:
        return (type(self)(each) for each in sorted(self.path.iterdir()))

    def size(self) -> int:
        return self.path.stat().st_size

    def stamp(self) -> tuple[Any, ...]:
        return (str(self), self.path.stat().st_mtime_ns)

    def read_into(self, buffer: memoryview, at: int) -> int:
        with self.path.open("rb", buffering=0) as file:
            got = os.preadv(file.fileno(), [buffer], at)
        self.fetched += got
        return got
