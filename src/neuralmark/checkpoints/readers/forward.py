"""Reads a header from front to back, near or far, without holding more of it than a window."""

import struct
from types import TracebackType
from typing import Self

from neuralmark.errors import MalformedError
from neuralmark.storage.places import Place, bytes_at

WINDOW = 1 << 18
"""Bytes that are fetched at once, if nothing else is said."""


class ForwardReader:
    """Gives the next bytes of a file; whatever ends too early is a named error."""

    def __init__(self, place: Place, window: int = WINDOW) -> None:
        """Begin at the front; so many bytes are fetched at once."""
        self.place = place
        self.size = place.stat().st_size
        self.at = 0
        self._most = window
        self._start, self._window = 0, b""
        self._file = place.open("rb", buffering=0)

    def __enter__(self) -> Self:
        """Itself; the file is closed at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._file.close()

    def take(self, length: int) -> bytes:
        """The next bytes; who asks has made sure that they are few."""
        low = self.at - self._start
        if low + length > len(self._window):
            self.require(length)
            self._start, low = self.at, 0
            self._window = bytes_at(self._file, max(length, self._most), self.at)
            if len(self._window) < length:
                raise self.cut_off()
        self.at += length
        return self._window[low : low + length]

    def skip(self, length: int) -> None:
        """Go on behind the next bytes, which are not read."""
        self.require(length)
        self.at += length

    def require(self, length: int) -> None:
        """Raise where the file does not have so many bytes more."""
        if length > self.size - self.at:
            raise self.cut_off()

    def number(self, kind: struct.Struct) -> int:
        """The next number."""
        value: int = kind.unpack(self.take(kind.size))[0]
        return value

    def cut_off(self) -> MalformedError:
        """The error for a file that ends too early."""
        return MalformedError(
            f"{self.place}: is cut off at byte {self.size:,}: what begins at byte {self.at:,}"
            " is not complete (a truncated download?)"
        )
