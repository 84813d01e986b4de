"""A run of bytes inside a file, read as if it were a file: archives that lie within others."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from neuralmark.storage.places import FarPlace, Place, read_at


@dataclass(frozen=True)
class WindowPlace(FarPlace):
    """The bytes `start` … `start + length - 1` of a file."""

    base: Place
    start: int
    length: int

    def __str__(self) -> str:
        return f"{self.base} (from byte {self.start:,} on)"

    @property
    def name(self) -> str:
        """That of the file."""
        return self.base.name

    @property
    def parent(self) -> Self:
        """Itself: it lies in no folder of its own."""
        return self

    def __truediv__(self, name: str) -> Self:
        return self

    def is_file(self) -> bool:
        """Yes."""
        return True

    def is_dir(self) -> bool:
        """No."""
        return False

    def iterdir(self) -> Iterator[Self]:
        """Nothing."""
        return iter(())

    def size(self) -> int:
        """How many bytes it shows."""
        return self.length

    def stamp(self) -> tuple[Any, ...]:
        """The file's."""
        if isinstance(self.base, FarPlace):
            return self.base.stamp()
        s = self.base.stat()
        return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns

    def read_into(self, buffer: memoryview, at: int) -> int:
        """Fill the buffer, as far as the window goes."""
        count = max(0, min(len(buffer), self.length - at))
        with self.base.open("rb", buffering=0) as file:
            return read_at(file, buffer[:count], self.start + at)
