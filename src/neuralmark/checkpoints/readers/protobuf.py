"""Messages of protocol buffers as they lie in a file: which field stands where; nothing is copied.

Long fields are skipped, not read, so that a model of gigabytes costs as little as a small one. What
two readers could understand differently (a field twice that may be there once) is refused by
`once`.
"""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from neuralmark.errors import MalformedError, UnsafeError
from neuralmark.storage.places import Place, bytes_at

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_FIELDS = 4_000_000
MAX_TEXT = 64 << 10
MAX_CHARACTERS = 64 << 20
_WINDOW = 64 << 10

Span = tuple[int, int]
"""Where a field's bytes begin and end."""
Field = tuple[int, int, int, Span]
"""Number, kind (as above), value of a number written as a varint, span of everything else."""


class Wire:
    """A file of messages, read in windows, within a budget of fields and texts."""

    def __init__(self, path: Place) -> None:
        """Nothing is read yet."""
        self.path = path
        self.size = path.stat().st_size
        self._file = path.open("rb", buffering=0)
        self._start, self._window = 0, b""
        self._fields = 0
        self._characters = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def fields(self, span: Span) -> Iterator[Field]:
        """The fields of the message at a span, in order."""
        at, end = span
        while at < end:
            self._fields += 1
            if self._fields > MAX_FIELDS:
                raise UnsafeError(f"{self.path}: has over {MAX_FIELDS:,} fields")
            tag, at = self.varint(at, end)
            number, kind = tag >> 3, tag & 7
            value, stop = 0, at
            if kind == VARINT:
                value, stop = self.varint(at, end)
            elif kind == BYTES:
                length, at = self.varint(at, end)
                stop = at + length
            elif kind in (FIXED64, FIXED32):
                stop = at + (8 if kind == FIXED64 else 4)
            if not number or stop > end or (stop == at and kind != BYTES):
                raise self.bad(f"has a field that makes no sense at byte {at:,} (truncated?)")
            yield number, kind, value, (at, stop)
            at = stop

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """A number of 7 bits a byte, and where it ends."""
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                break
            offset = at - self._start
            if not 0 <= offset < len(self._window):
                self._start, offset = at, 0
                self._window = bytes_at(self._file, _WINDOW, at)
                if not self._window:
                    break
            byte = self._window[offset]
            value |= (byte & 0x7F) << shift
            at += 1
            if byte < 0x80:
                return value & (1 << 64) - 1, at
        raise self.bad(f"is cut off, or not what it seems, at byte {at:,}")

    def bytes(self, span: Span, most: int) -> bytes:
        """The bytes of a short field."""
        if span[1] - span[0] > most:
            raise UnsafeError(f"{self.path}: a field of {span[1] - span[0]:,} bytes is too long")
        data = bytes_at(self._file, span[1] - span[0], span[0])
        if len(data) < span[1] - span[0]:
            raise self.bad("is cut off")
        return data

    def text(self, span: Span) -> str:
        """The text of a field."""
        self._characters += span[1] - span[0]
        if self._characters > MAX_CHARACTERS:
            raise UnsafeError(f"{self.path}: its names take over {MAX_CHARACTERS:,} characters")
        try:
            return self.bytes(span, MAX_TEXT).decode("utf-8")
        except UnicodeDecodeError:
            raise self.bad("has a name that is not text") from None

    def numbers(self, kind: int, value: int, span: Span) -> list[int]:
        """The signed numbers of a repeated field: one, or many packed together."""
        if kind == VARINT:
            return [signed(value)]
        if kind != BYTES or span[1] - span[0] > MAX_TEXT:
            raise self.bad("has a list of numbers that makes no sense")
        found, at = [], span[0]
        while at < span[1]:
            number, at = self.varint(at, span[1])
            found.append(signed(number))
        return found

    def bad(self, why: str) -> MalformedError:
        """The error for a file that makes no sense."""
        return MalformedError(f"{self.path}: {why}")


def signed(value: int) -> int:
    """A 64-bit number with its sign."""
    return value - (1 << 64) if value >> 63 else value
