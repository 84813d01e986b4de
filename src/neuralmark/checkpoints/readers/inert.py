"""What a pickle is read into without being run: records of what it asks for, and a bounded reader.

None of the records compares or hashes what it holds: shared parts can make a small pickle stand
for an exponentially large structure.
"""

from dataclasses import dataclass, field
from typing import Any, BinaryIO

from neuralmark.errors import UnsafeError

MAX_BYTES = 64 << 20
MAX_LINE = 64 << 10


@dataclass(frozen=True, eq=False, slots=True)
class Global:
    """A name that a pickle wants imported; it never is."""

    module: str
    name: str

    def is_named(self, module: str, name: str) -> bool:
        """Whether it is the `name` of `module`."""
        return (self.module, self.name) == (module, name)


@dataclass(frozen=True, eq=False, slots=True)
class Persistent:
    """A reference to something outside the pickle; torch puts its storages there."""

    value: Any


@dataclass(eq=False, slots=True)
class Call:
    """A note that a pickle wants `function(*args)` called; `state` and `items` come later."""

    function: Any
    args: tuple[Any, ...]
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class Opaque:
    """Stands for a dictionary key that is not a scalar (and holds it), or for a giant number."""

    value: Any = None


class Reader:
    """A file from where it stands, for at most `limit` bytes; pickles may follow each other."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._left = min(limit, MAX_BYTES)
        self._capped = limit > MAX_BYTES

    def read(self, count: int) -> bytes:
        """At most `count` bytes; fewer at the end."""
        if self._capped and count > self._left:
            raise UnsafeError(f"its pickle is longer than {MAX_BYTES:,} bytes")
        data = self._file.read(min(count, self._left))
        self._left -= len(data)
        return data

    def readline(self) -> bytes:
        """Read a line with its newline."""
        data = self._file.readline(min(MAX_LINE, self._left))
        self._left -= len(data)
        if len(data) == MAX_LINE:
            raise UnsafeError(f"its pickle has a line over {MAX_LINE:,} bytes")
        return data

    @property
    def name(self) -> str:
        """Name of the file, for messages."""
        return str(self._file.name)
