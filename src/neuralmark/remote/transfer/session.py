"""What is known and held of one service: files that were seen, listings, pieces, the cache."""

import errno
import threading
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from neuralmark.errors import AddressError, NeuralMarkWarning, RemoteError
from neuralmark.remote.contract import MOST_LISTED, Entry, FileFacts, FirstLook, RemoteService
from neuralmark.remote.transfer.cache import RangeCache
from neuralmark.remote.transfer.fetching import Fetcher
from neuralmark.remote.transfer.metering import count


class Session:
    """Shared by all places of one URL; a file is what it was when it was first seen."""

    def __init__(self, service: RemoteService) -> None:
        """Nothing is asked yet."""
        self.service = service
        options = service.options
        self._cache = RangeCache() if options.cache else None
        self._fetcher = Fetcher(self._get, options.connections)
        self._seen: dict[str, FileFacts | None] = {}
        self._listed: dict[str, dict[str, Entry]] = {}
        self._lock = threading.RLock()

    def facts(self, path: str) -> FileFacts:
        """What a file is; raises as a missing file does."""
        found = self._look(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", self._label(path))
        return found

    def is_file(self, path: str) -> bool:
        """Whether there are bytes; where the folder was listed, nothing is asked."""
        with self._lock:
            listed = self._listed.get(self.service.parent(path)) if path else None
        if listed is not None and path not in self._seen:
            entry = listed.get(self.service.name(path))
            return entry is not None and not entry.folder
        return self._look(path) is not None

    def is_dir(self, path: str) -> bool:
        """Whether something lies in it."""
        with self._lock:
            if path in self._listed:
                return bool(self._listed[path])
            if self._seen.get(path) is not None:
                return False
        return next(iter(self.service.listing(path)), None) is not None

    def entries(self, path: str) -> list[Entry]:
        """What lies in a folder; a folder of very many things is no model's."""
        with self._lock:
            known = self._listed.get(path)
        if known is None:
            found = list(islice(self.service.listing(path), MOST_LISTED + 1))
            if len(found) > MOST_LISTED:
                raise RemoteError(
                    f"{self._label(path)}: holds more than {MOST_LISTED:,} things: name the file"
                    " of the model in it (its index, where it has several)"
                )
            known = {entry.name: entry for entry in found}
            if self.service.quick_listing:
                with self._lock:
                    self._listed[path] = known
        return list(known.values())

    def stamp(self, path: str) -> tuple[Any, ...]:
        """What a file is now."""
        looked = self.service.look(path, head=False)
        return (self._label(path), None if looked is None else looked.facts)

    def read_into(self, path: str, buffer: memoryview, at: int) -> int:
        """Fill the buffer with the bytes from `at` on, as far as they go."""
        return self._fetcher.read_into(path, buffer, at, self.facts(path).size)

    def expect(self, path: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch these (offset, length) ahead, in this order."""
        wanted = [(start, start + length) for start, length in ranges if length > 0]
        if wanted:
            self._fetcher.expect(path, wanted, self.facts(path).size)

    def _label(self, path: str) -> str:
        return self.service.label(path)

    def _look(self, path: str) -> FileFacts | None:
        with self._lock:
            if path not in self._seen:
                if not path.isprintable():
                    raise AddressError(f"{self._label(path)}: its name has control characters")
                looked = self.service.look(path)
                self._seen[path] = None if looked is None else self._new(path, looked)
            return self._seen[path]

    def _new(self, path: str, looked: FirstLook) -> FileFacts:
        facts = looked.facts
        told = facts.strong or facts.version or facts.modified
        if facts.size and told is None:
            warnings.warn(
                f"{self._label(path)}: the server tells neither a version nor a date: a swap of"
                " the file while it is read might not be noticed",
                NeuralMarkWarning,
                stacklevel=2,
            )
        if looked.head:
            self._fetcher.put(path, 0, looked.head)
        return facts

    def _get(self, path: str, start: int, stop: int) -> bytes | bytearray:
        """A range, from the cache as far as it goes."""
        facts = self.facts(path)
        name = self._kept_as(path, facts)
        if self._cache is None or name is None:
            return self.service.fetch(path, facts, start, stop)
        parts = list(self._parts(name, path, facts, start, stop))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _parts(
        self, name: str, path: str, facts: FileFacts, start: int, stop: int
    ) -> Iterator[bytes | bytearray]:
        assert self._cache is not None
        while start < stop:
            data: bytes | bytearray = self._cache.read(name, start, stop)
            if data:
                count(cached=len(data))
            else:
                until = self._cache.next_kept(name, start, stop)
                data = self.service.fetch(path, facts, start, until)
                self._cache.keep(name, start, data)
            yield data
            start += len(data)

    def _kept_as(self, path: str, facts: FileFacts) -> str | None:
        """The name of this very version in the cache; None where nothing tells versions apart."""
        told = facts.version or facts.strong
        if told is None:
            return None
        return f"{self.service.identity(path)}\n{told}\n{facts.etag}\n{facts.size}"
