"""The header of a GGUF file: its fields and its list of tensors.

It is parsed here rather than by the `gguf` package, whose reader maps the file into memory (so it
reads nothing far) and takes whatever the file says. The tests hold the two against each other.
"""

import math
import struct
from dataclasses import dataclass
from typing import NamedTuple

from neuralmark.checkpoints.contract import MAX_TENSORS
from neuralmark.checkpoints.readers.forward import ForwardReader
from neuralmark.checkpoints.readers.gguf_types import TYPES
from neuralmark.errors import MalformedError, UnknownFormatError
from neuralmark.storage.places import Place

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_FIELDS = 1 << 16
MAX_KEY = 1 << 10
MAX_NAME = 1 << 10
MAX_KEPT = 1 << 10
"""Characters of a text, or numbers of a list, that is kept."""
MAX_WORDS = 4_000_000
"""Words in all lists together: the largest vocabularies have a tenth of it."""
MAX_DIMENSIONS = 4
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {
    number: struct.Struct(f"<{code}")
    for number, code in {
        **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f"},
        **{_BOOL: "B", 10: "Q", 11: "q", 12: "d"},
    }.items()
}
_U32, _U64 = _NUMBERS[4], _NUMBERS[10]

FieldValue = int | float | str | tuple[int | float, ...]
"""A field that is kept: long lists and lists of words are not."""


class ListedTensor(NamedTuple):
    """One tensor of the list: its shape in numpy's order, its place in the file."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class GgufHeader:
    """What stands before the tensors."""

    fields: dict[str, FieldValue]
    tensors: list[ListedTensor]

    def text(self, key: str) -> str:
        """A field that is a text; empty where there is none."""
        value = self.fields.get(key)
        return value if isinstance(value, str) else ""

    def whole(self, key: str) -> int | None:
        """A field that is a whole number."""
        value = self.fields.get(key)
        return value if isinstance(value, int) else None

    def of_layer(self, key: str, layer: int) -> int | None:
        """A number that is one for all layers, or one for each."""
        value = self.fields.get(key)
        if isinstance(value, tuple):
            value = value[layer] if layer < len(value) else None
        return value if isinstance(value, int) else None


def read_header(place: Place) -> GgufHeader:
    """Parse the fields and the list of tensors; the tensors must lie inside the file."""
    with ForwardReader(place) as reader:
        _version(reader)
        count, fields = reader.number(_U64), reader.number(_U64)
        if count > MAX_TENSORS or fields > MAX_FIELDS:
            raise MalformedError(f"{place}: claims {count:,} tensors and {fields:,} fields")
        kept = _Fields(reader).read(fields)
        alignment = kept.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment % 8:
            raise MalformedError(f"{place}: its alignment {str(alignment)[:40]!r} is none")
        found = [_listed(reader) for _ in range(count)]
        start = -(-reader.at // alignment) * alignment
        size = reader.size
    tensors = [each._replace(offset=start + each.offset) for each in found]
    _check_layout(place, tensors, alignment, size)
    return GgufHeader(kept, tensors)


def _version(reader: ForwardReader) -> None:
    head = reader.take(8)
    version = _U32.unpack(head[4:])[0]
    if version and not version & 0xFFFF:
        raise UnknownFormatError(
            f"{reader.place}: is a big-endian GGUF file, which is not read: turn it round with"
            " 'gguf-convert-endian FILE little'"
        )
    if head[:4] != MAGIC or version not in VERSIONS:
        raise UnknownFormatError(
            f"{reader.place}: is a GGUF file of version {version}, and 2 and 3 are read: convert"
            " the model again"
        )


class _Fields:
    """Goes through the fields; keeps numbers, short texts and short lists of numbers."""

    def __init__(self, reader: ForwardReader) -> None:
        self._reader = reader
        self._words = 0

    def read(self, count: int) -> dict[str, FieldValue]:
        kept: dict[str, FieldValue] = {}
        seen: set[str] = set()
        for _ in range(count):
            key = _text(self._reader, MAX_KEY, "the name of a field")
            if key in seen:
                raise MalformedError(f"{self._reader.place}: has the field {key[:80]!r} twice")
            seen.add(key)
            value = self._value(self._reader.number(_U32))
            if value is not None:
                kept[key] = value
        return kept

    def _value(self, kind: int) -> FieldValue | None:
        if kind == _ARRAY:
            return self._list()
        if kind == _STRING:
            return self._string()
        number = _NUMBERS.get(kind)
        if number is None:
            raise MalformedError(f"{self._reader.place}: has a field of the unknown type {kind}")
        return self._reader.number(number)

    def _string(self) -> str | None:
        length = self._reader.number(_U64)
        if length > MAX_KEPT:
            self._reader.skip(length)
            return None
        return self._reader.take(length).decode("utf-8", "replace")

    def _list(self) -> tuple[int | float, ...] | None:
        kind, count = self._reader.number(_U32), self._reader.number(_U64)
        if kind == _STRING:
            self._words += count
            if self._words > MAX_WORDS:
                raise MalformedError(f"{self._reader.place}: has over {MAX_WORDS:,} words in lists")
            for _ in range(count):
                self._reader.skip(self._reader.number(_U64))
            return None
        number = _NUMBERS.get(kind)
        if number is None:
            raise MalformedError(f"{self._reader.place}: has a list of the unknown type {kind}")
        if count > MAX_KEPT:
            self._reader.skip(count * number.size)
            return None
        raw = self._reader.take(count * number.size)
        return tuple(value for (value,) in number.iter_unpack(raw))


def _text(reader: ForwardReader, most: int, what: str) -> str:
    length = reader.number(_U64)
    if length > most:
        raise MalformedError(f"{reader.place}: {what} has {length:,} bytes, over {most:,}")
    try:
        return reader.take(length).decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedError(f"{reader.place}: {what} is not text") from None


def _listed(reader: ForwardReader) -> ListedTensor:
    name = _text(reader, MAX_NAME, "the name of a tensor")
    dimensions = reader.number(_U32)
    if dimensions > MAX_DIMENSIONS:
        raise MalformedError(
            f"{reader.place}: {name[:80]!r} has {dimensions} dimensions, over {MAX_DIMENSIONS}"
        )
    shape = tuple(reader.number(_U64) for _ in range(dimensions))[::-1]
    if math.prod(shape) >= 1 << 62 or any(length >= 1 << 62 for length in shape):
        raise MalformedError(f"{reader.place}: {name[:80]!r} claims {list(shape)} elements")
    return ListedTensor(name, reader.number(_U32), shape, reader.number(_U64))


def extent(tensor: ListedTensor) -> int:
    """The bytes of a tensor; 0 of a type that is not known."""
    kind = TYPES.get(tensor.type)
    return 0 if kind is None else math.prod(tensor.shape) // kind.block * kind.size


def _check_layout(place: Place, tensors: list[ListedTensor], alignment: int, size: int) -> None:
    """No name twice, rows of whole blocks, no overlap, and all of it inside the file."""
    names: set[str] = set()
    for each in tensors:
        kind = TYPES.get(each.type)
        if each.name in names:
            raise MalformedError(f"{place}: has two tensors named {each.name[:80]!r}")
        names.add(each.name)
        if kind is not None and kind.block > 1 and (not each.shape or each.shape[-1] % kind.block):
            raise MalformedError(
                f"{place}: {each.name[:80]!r} has rows that are no whole blocks of {kind.name}"
            )
        if each.offset % alignment:
            raise MalformedError(
                f"{place}: {each.name[:80]!r} does not lie at a multiple of {alignment}"
            )
    end = 0
    for each in sorted(tensors, key=lambda each: (each.offset, extent(each))):
        if each.offset < end:
            raise MalformedError(f"{place}: {each.name[:80]!r} overlaps another tensor")
        end = each.offset + extent(each)
        if end > size:
            raise MalformedError(
                f"{place}: {each.name[:80]!r} ends at byte {end:,}, the file at {size:,} (a"
                " truncated download?)"
            )
