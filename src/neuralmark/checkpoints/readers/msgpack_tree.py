"""The tree in a msgpack file of Flax: where its arrays lie. Nothing of them is read.

What `flax.serialization` writes: tables with texts as keys, lists, numbers, and two extension
types that hold an array as (shape, name of the type, bytes). Anything else is refused.
"""

import math
import struct
from dataclasses import dataclass, field

from neuralmark.checkpoints.contract import MAX_TENSORS
from neuralmark.checkpoints.readers.forward import ForwardReader
from neuralmark.errors import MalformedError
from neuralmark.storage.places import Place

WINDOW = 1 << 12
"""Bytes that are fetched at once: headers are short, and arrays lie between them."""
MAX_NODES = MAX_TENSORS
MAX_DEPTH = 64
MAX_KEY = 1 << 10
MAX_DTYPE = 32
MAX_DIMENSIONS = 64
NDARRAY, COMPLEX, SCALAR = 1, 2, 3
_WORD, _SHORT, _BYTE = struct.Struct(">I"), struct.Struct(">H"), struct.Struct(">B")
_LENGTHS = {
    **{0xC4: _BYTE, 0xC5: _SHORT, 0xC6: _WORD},
    **{0xC7: _BYTE, 0xC8: _SHORT, 0xC9: _WORD},
    **{0xD9: _BYTE, 0xDA: _SHORT, 0xDB: _WORD},
    **{0xDC: _SHORT, 0xDD: _WORD, 0xDE: _SHORT, 0xDF: _WORD},
}
_NUMBERS = {
    code: struct.Struct(f">{letter}")
    for code, letter in {
        **{0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q"},
        **{0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"},
    }.items()
}
_EMPTY, _FALSE, _TRUE = 0xC0, 0xC2, 0xC3
_WORDS = {_EMPTY: None, _FALSE: False, _TRUE: True}


@dataclass(frozen=True)
class ArrayAt:
    """An array of the tree: what it is, and where its bytes begin."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass
class Branch:
    """A table or a list of the tree, its members by name."""

    members: "dict[str, Node]" = field(default_factory=dict)


Node = Branch | ArrayAt | int | float | None
"""A text is kept as None: none of them matters."""


def read_tree(place: Place) -> Branch:
    """Parse the whole file; it must be one table, and end with it."""
    with ForwardReader(place, window=WINDOW) as reader:
        tree = _MsgpackParser(reader).node(0)
        if not isinstance(tree, Branch):
            raise MalformedError(f"{place}: is no table of arrays")
        if reader.at != reader.size:
            raise MalformedError(
                f"{place}: goes on at byte {reader.at:,}, behind its table (bytes added?)"
            )
    return tree


def looks_like(head: bytes) -> bool:
    """Whether a file begins with a table whose first key is a printable text."""
    reader = head[: MAX_KEY + 16]
    if len(reader) < 3 or not (0x81 <= reader[0] <= 0x8F or reader[0] in (0xDE, 0xDF)):
        return False
    at = 1 if reader[0] < 0xDE else 3 if reader[0] == 0xDE else 5
    code = reader[at : at + 1]
    if not code:
        return False
    if 0xA1 <= code[0] <= 0xBF:
        start, length = at + 1, code[0] & 0x1F
    elif code[0] == 0xD9:
        start, length = at + 2, int.from_bytes(reader[at + 1 : at + 2], "big")
    else:
        return False
    return length > 0 and reader[start : start + length].decode("utf-8", "replace").isprintable()


class _MsgpackParser:
    """One pass over the file."""

    def __init__(self, reader: ForwardReader) -> None:
        self._reader = reader
        self._nodes = 0

    def node(self, depth: int) -> Node:
        """The next thing of the tree."""
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise self._bad(f"has over {MAX_NODES:,} members, or is over {MAX_DEPTH} deep")
        code = self._reader.take(1)[0]
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 256
        if code < 0xA0 or code >= 0xDC:
            return self._branch(code, depth)
        if code in _WORDS:
            return _WORDS[code]
        if code in _NUMBERS:
            return self._reader.number(_NUMBERS[code])
        if 0xC7 <= code <= 0xC9 or 0xD4 <= code <= 0xD8:
            return self._extension(code)
        self._reader.skip(self._length(code))  # a text, or bytes
        return None

    def _branch(self, code: int, depth: int) -> Branch:
        listed = 0x90 <= code < 0xA0 or code in (0xDC, 0xDD)
        length = code & 0x0F if code < 0xA0 else self._length(code)
        branch = Branch()
        for number in range(length):
            key = str(number) if listed else self._key()
            if key in branch.members:
                raise self._bad(f"has the key {key[:80]!r} twice in a table")
            branch.members[key] = self.node(depth + 1)
        return branch

    def _key(self) -> str:
        code = self._reader.take(1)[0]
        if not 0xA0 <= code <= 0xBF and code not in (0xD9, 0xDA, 0xDB):
            raise self._bad("has a key that is not a text")
        length = self._length(code)
        if length > MAX_KEY:
            raise self._bad(f"has a key of {length:,} bytes, over {MAX_KEY:,}")
        return self._text(length)

    def _text(self, length: int) -> str:
        try:
            return self._reader.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self._bad("has a key, or the name of a type, that is not text") from None

    def _length(self, code: int) -> int:
        if 0xA0 <= code <= 0xBF:
            return code & 0x1F
        kind = _LENGTHS.get(code)
        if kind is None:
            raise self._bad(f"has a byte {code:#x} where a value begins")
        return self._reader.number(kind)

    def _extension(self, code: int) -> ArrayAt | None:
        length = 1 << (code - 0xD4) if code >= 0xD4 else self._length(code)
        kind = self._reader.take(1)[0]
        end = self._reader.at + length
        self._reader.require(length)
        if kind == COMPLEX:
            self._reader.skip(length)
            return None
        if kind not in (NDARRAY, SCALAR):
            raise self._bad(f"has a value of the extension type {kind}, which Flax does not have")
        array = self._array()
        if self._reader.at != end:
            raise self._bad("has an array that is longer or shorter than it says")
        return array

    def _array(self) -> ArrayAt:
        if self._reader.take(1) != b"\x93":
            raise self._bad("has an array that is not of shape, type and bytes")
        shape = self.node(MAX_DEPTH - 1)
        lengths = tuple(shape.members.values()) if isinstance(shape, Branch) else (None,)
        whole = all(type(n) is int and 0 <= n < 1 << 62 for n in lengths)
        if not whole or len(lengths) > MAX_DIMENSIONS:
            raise self._bad("has an array without a shape")
        dtype = self._key()
        code = self._reader.take(1)[0]
        if len(dtype) > MAX_DTYPE or not dtype.isprintable() or not 0xC4 <= code <= 0xC6:
            raise self._bad("has an array without a type, or without bytes")
        nbytes = self._length(code)
        array = ArrayAt(dtype, lengths, self._reader.at, nbytes)  # type: ignore[arg-type]
        self._reader.skip(nbytes)
        return array

    def _bad(self, why: str) -> MalformedError:
        return MalformedError(f"{self._reader.place}: {why} (near byte {self._reader.at:,})")
