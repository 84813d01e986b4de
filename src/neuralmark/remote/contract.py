"""The contract of a URL's scheme: what is behind it, what lies in it, and ranges of its bytes.

A scheme's module (one file beside this one; its name is the scheme: `hf` reads `hf://`) holds one
class that derives from `RemoteService`. It says what it knows of a path (`look`), fetches a range
of the version that was seen first (`fetch`), and lists (`listing`, `tree`). Reading ahead, the
cache, memory of what was seen, and the members of `FarPlace` are `RemotePlace` and the session
behind it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from neuralmark.errors import ParameterError
from neuralmark.remote.transfer import addresses
from neuralmark.remote.transfer.addresses import Address
from neuralmark.storage.places import FarPlace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuralmark.remote.transfer.session import Session

MOST_LISTED = 5_000
"""Entries of a folder that are looked through for a model."""


@dataclass(frozen=True)
class RemoteOptions:
    """How URLs are read; the defaults suit most.

    Attributes:
        allow_private: Whether machines of this network, and this machine, may be asked; also
            whether they may be asked without encryption (http).
        cache: Whether fetched ranges are kept on this machine and used again.
        timeout: Seconds without progress after which a connection is given up.
        retries: How often a request that failed in passing is made again.
        connections: How many ranges are fetched at once.

    Raises:
        ParameterError: A value is out of range.

    Examples:
        >>> neuralmark.RemoteOptions(cache=False).allow_private
        False
    """

    allow_private: bool = False
    cache: bool = True
    timeout: float = 20.0
    retries: int = 4
    connections: int = 6

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if not 0 < self.timeout <= 3600:
            raise ParameterError(f"timeout must be above 0 and at most 3600, not {self.timeout!r}")
        if type(self.retries) is not int or not 0 <= self.retries <= 100:
            raise ParameterError(f"retries must be a number from 0 to 100, not {self.retries!r}")
        if type(self.connections) is not int or not 1 <= self.connections <= 64:
            raise ParameterError(
                f"connections must be a number from 1 to 64, not {self.connections!r}"
            )


@dataclass(frozen=True)
class FileFacts:
    """What a server said of a file when it was first asked; all reading is held to it."""

    size: int
    etag: str | None = None
    """As the server writes it; only a strong one (not `W/…`) tells one content from another."""
    version: str | None = None
    """A commit or an object's version."""
    modified: str | None = None

    @property
    def strong(self) -> str | None:
        """The ETag, if it is one that changes with every byte."""
        return None if self.etag is None or self.etag.startswith("W/") else self.etag

    @property
    def told(self) -> str:
        """To what reading is held, in words."""
        if self.version is not None:
            return self.version
        if self.etag is not None:
            return f"ETag {addresses.printable(self.etag)[:200]}"
        if self.modified is not None:
            return f"last modified {addresses.printable(self.modified)[:60]}, {self.size:,} bytes"
        return f"{self.size:,} bytes (the server tells no version: a swap might not be noticed)"


@dataclass(frozen=True)
class FirstLook:
    """What is known of a file, and its first bytes if they came with it."""

    facts: FileFacts
    head: bytes = b""


@dataclass(frozen=True)
class Entry:
    """What a folder holds under a bare name."""

    name: str
    folder: bool = False
    size: int | None = None


class RemoteService(ABC):
    """One host, bucket or repository, and how it is asked. Paths are its own, without a host."""

    quick_listing = True
    """Whether one request tells all that lies in a folder: then single names are not asked for."""

    def __init__(self, options: RemoteOptions) -> None:
        """Nothing is asked yet."""
        self.options = options

    @classmethod
    @abstractmethod
    def at(cls, address: Address, options: RemoteOptions) -> tuple[Self, str]:
        """The service that a URL is of, and the path on it; raises on a URL that is none."""

    @abstractmethod
    def label(self, path: str) -> str:
        """The URL of a path, as it may be printed."""

    @abstractmethod
    def look(self, path: str, *, head: bool = True) -> FirstLook | None:
        """What is known of a file, asked for anew; None where there is no such file.

        With `head` its first bytes may come along, if they cost no further request.
        """

    @abstractmethod
    def fetch(self, path: str, facts: FileFacts, start: int, stop: int) -> bytes | bytearray:
        """The bytes start … stop-1 of this very version, all of them; named errors."""

    @abstractmethod
    def listing(self, path: str) -> Iterator[Entry]:
        """What lies in a folder, not deeper, found as it is asked for; nothing: no folder."""

    @abstractmethod
    def tree(self, path: str) -> Iterator[str]:
        """The paths of all files under a folder, found as they are asked for."""

    def identity(self, path: str) -> str:
        """What tells this path from all others, for the cache."""
        return self.label(path)

    def parent(self, path: str) -> str:
        """The folder of a path."""
        return path.rpartition("/")[0]

    def child(self, path: str, name: str) -> str:
        """What lies in a folder under a bare name."""
        return f"{path}/{name}" if path else name

    def name(self, path: str) -> str:
        """The last part of a path; of the root, what people call it."""
        return path.rpartition("/")[2]


class RemotePlace(FarPlace):
    """A file or folder behind a URL. Places of one session share what it knows and fetches."""

    def __init__(self, session: "Session", path: str) -> None:
        """Nothing is asked yet."""
        self.session = session
        self.path = path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePlace) and self._self == other._self

    def __hash__(self) -> int:
        return hash(self._self)

    @property
    def _self(self) -> tuple[int, str]:
        return id(self.session), self.path

    def __str__(self) -> str:
        return self.session.service.label(self.path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __truediv__(self, name: str) -> Self:
        return type(self)(self.session, self.session.service.child(self.path, name))

    @property
    def name(self) -> str:
        """The last part of its address."""
        return self.session.service.name(self.path)

    @property
    def parent(self) -> Self:
        """The folder that it lies in."""
        return type(self)(self.session, self.session.service.parent(self.path))

    def is_file(self) -> bool:
        """Whether it holds bytes."""
        return self.session.is_file(self.path)

    def is_dir(self) -> bool:
        """Whether something lies in it."""
        return self.session.is_dir(self.path)

    def iterdir(self) -> Iterator[Self]:
        """What lies in this folder, not deeper; too many entries are a named error."""
        return (self / entry.name for entry in self.session.entries(self.path))

    def walk(self) -> Iterator[Self]:
        """All files under this folder, however deep, found as they are asked for."""
        return (type(self)(self.session, path) for path in self.session.service.tree(self.path))

    def size(self) -> int:
        """How many bytes it holds."""
        return self.session.facts(self.path).size

    def stamp(self) -> tuple[Any, ...]:
        """What changes with its content, asked for anew."""
        return self.session.stamp(self.path)

    def pinned(self) -> str | None:
        """To which version of it all reading is held."""
        return self.session.facts(self.path).told

    def read_into(self, buffer: memoryview, at: int) -> int:
        """Fill the buffer with the bytes from `at` on; returns how many there were."""
        return self.session.read_into(self.path, buffer, at)

    def expect(self, ranges: "Sequence[tuple[int, int]]") -> None:
        """Fetch these (offset, length) ahead, in this order."""
        self.session.expect(self.path, ranges)
