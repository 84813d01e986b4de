"""Ranges that were fetched, kept on this machine: immutable files, so processes need no lock.

A range is a file of its own, named by where it begins and ends, in a folder named by the hash of
URL and version. It is written under another name and renamed, and ends in a digest: what a crash or
a full disk left of it is noticed and fetched again. The least recently used go first.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import time
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neuralmark.errors import ParameterError

FOLDER, SIZE = "NEURALMARK_CACHE", "NEURALMARK_CACHE_SIZE"
"""Environment variables: where the cache is, and how large it may grow."""
USUAL_LIMIT = 10 * 10**9
_DIGEST = 16
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZE = re.compile(r"(\d{1,15})\s*([kmgt]?)b?", re.IGNORECASE)
_ABANDONED = 3600.0


@dataclass(frozen=True)
class CacheUsage:
    """What the cache holds.

    Attributes:
        folder: Where it is.
        files: How many ranges it holds.
        size: Bytes of them.
        limit: Bytes that it may grow to.

    Examples:
        >>> CacheUsage("/tmp/cache", 0, 0, 10**9).limit
        1000000000
    """

    folder: str
    files: int
    size: int
    limit: int


def cache_folder() -> Path:
    """Where ranges are kept: $NEURALMARK_CACHE, else in the user's cache folder."""
    given = os.environ.get(FOLDER)
    if given:
        return Path(given) / "ranges"
    home = os.environ.get("XDG_CACHE_HOME")
    base = Path(home) if home and Path(home).is_absolute() else Path("~/.cache").expanduser()
    return base / "neuralmark" / "ranges"


def cache_limit() -> int:
    """Bytes that the cache may grow to: $NEURALMARK_CACHE_SIZE (such as 20GB), else 10 GB."""
    given = os.environ.get(SIZE)
    if not given:
        return USUAL_LIMIT
    found = _SIZE.fullmatch(given.strip())
    if found is None:
        raise ParameterError(f"{SIZE} must be a size such as 20GB, not {given[:40]!r}")
    return int(found[1]) * _UNITS[found[2].lower()]


class RangeCache:
    """Ranges of files that are not on this machine. What goes wrong with it only costs a fetch."""

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        """By default where the environment says, and as large."""
        self.folder = cache_folder() if folder is None else folder
        self.limit = cache_limit() if limit is None else limit
        self._known: dict[str, list[tuple[int, int]]] = {}
        self._size: int | None = None
        self._added = 0

    def read(self, name: str, start: int, stop: int) -> bytes:
        """The bytes from `start` on, up to `stop` or to where a kept range ends; or nothing."""
        for low, high in list(self._ranges(name)):
            if low <= start < high:
                data = self._content(name, low, high)
                if data is not None:
                    return data[start - low : min(stop, high) - low]
        return b""

    def next_kept(self, name: str, start: int, stop: int) -> int:
        """Where the next kept range begins, at most `stop`."""
        return min([low for low, _ in list(self._ranges(name)) if start < low < stop], default=stop)

    def keep(self, name: str, start: int, data: bytes | bytearray) -> None:
        """Keep a range, as far as there is room for it."""
        if not data or len(data) > self.limit // 4:
            return
        stop = start + len(data)
        folder = self._place(name)
        temporary = folder / f".{os.getpid()}-{secrets.token_hex(8)}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(temporary, "xb") as file:
                file.write(data)
                file.write(_digest(name, start, data))
            temporary.replace(folder / f"{start}-{stop}")
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        insort(self._ranges(name), (start, stop))
        self._grown(len(data) + _DIGEST)

    def usage(self) -> CacheUsage:
        """What it holds now."""
        sizes = [size for _, size, _ in self._all()]
        return CacheUsage(str(self.folder), len(sizes), sum(sizes), self.limit)

    def clear(self) -> CacheUsage:
        """Remove everything; gives what there was."""
        before = self.usage()
        for path, _, _ in self._all():
            _remove(path)
        self._known.clear()
        self._size = None
        return before

    def _place(self, name: str) -> Path:
        code = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        return self.folder / code[:2] / code[2:]

    def _ranges(self, name: str) -> list[tuple[int, int]]:
        """The kept ranges of a file, sorted, as they were when it was first asked for."""
        if name not in self._known:
            try:
                found = [_RANGE.fullmatch(each.name) for each in self._place(name).iterdir()]
            except OSError:
                found = []
            self._known[name] = sorted((int(each[1]), int(each[2])) for each in found if each)
        return self._known[name]

    def _content(self, name: str, low: int, high: int) -> bytes | None:
        path = self._place(name) / f"{low}-{high}"
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            data = b""
        body = data[:-_DIGEST]
        if len(body) == high - low and data[-_DIGEST:] == _digest(name, low, body):
            return body
        _remove(path)
        with contextlib.suppress(ValueError):
            self._known[name].remove((low, high))
        return None

    def _grown(self, size: int) -> None:
        """Make room where there is too little; now and then count anew what others added."""
        self._added += size
        if self._size is None or self._added > self.limit // 16:
            self._size, self._added = sum(each for _, each, _ in self._all()), 0
        if self._size + self._added > self.limit:
            self._trim()

    def _trim(self) -> None:
        """Remove what was not used for longest, down to nine tenths; one process at a time."""
        with contextlib.suppress(OSError), open(self.folder / ".lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            files = sorted(self._all(), key=lambda each: each[2])
            size = sum(each for _, each, _ in files)
            for path, each, _ in files:
                if size <= self.limit * 9 // 10:
                    break
                _remove(path)
                size -= each
            self._size, self._added = size, 0

    def _all(self) -> Iterator[tuple[Path, int, float]]:
        """Every kept range with its size and when it was last used; clears what was abandoned."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder) / name
                try:
                    stat = path.stat()
                except OSError:
                    continue
                if _RANGE.fullmatch(name):
                    yield path, stat.st_size, stat.st_mtime
                elif name != ".lock" and time.time() - stat.st_mtime > _ABANDONED:
                    _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
        path.parent.rmdir()


def _digest(name: str, start: int, data: bytes | bytearray) -> bytes:
    salt = hashlib.sha256(f"{start} {name}".encode("utf-8", "surrogatepass")).digest()
    return hashlib.blake2b(data, digest_size=_DIGEST, key=salt).digest()
