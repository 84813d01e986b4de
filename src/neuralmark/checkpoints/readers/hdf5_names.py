"""The attribute `name` of a group of an HDF5 file, read without HDF5.

HDF5 keeps such texts in a heap, and its own reader never ends on some damaged heaps. So the few
structures on the way are followed here: the header of the group, its messages, the heap. Whatever
is not as Keras writes it gives no name, and the group keeps the one that it is stored under.
"""

import struct
from collections.abc import Callable, Iterator

ReadAt = Callable[[int, int], bytes]
"""Bytes of a file: how many, and from where; fewer where it ends."""

MAX_BLOCKS = 16
MAX_BLOCK = 1 << 16
MAX_HEAP = 1 << 20
MAX_TEXT = 1 << 10
_PREFIX, _MESSAGE = struct.Struct("<BxHII4x"), struct.Struct("<HHB3x")
_ATTRIBUTE, _REFERENCE = struct.Struct("<BBHHH"), struct.Struct("<IQI")
_HEAP, _OBJECT, _SPAN = struct.Struct("<4sB3xQ"), struct.Struct("<HHIQ"), struct.Struct("<QQ")
_CONTINUED, _IS_ATTRIBUTE = 0x10, 0x0C
_FIXED_TEXT, _VARIABLE = 3, 9


def name_of(read: ReadAt, address: int) -> str | None:
    """The text of the attribute `name` of the object at an address; None where there is none."""
    for kind, data in _messages(read, address):
        if kind == _IS_ATTRIBUTE:
            name, datatype, value = _attribute(data)
            if name == b"name":
                return _text(read, datatype, value)
    return None


def _messages(read: ReadAt, address: int) -> Iterator[tuple[int, bytes]]:
    """The messages of an object's header (version 1), with those of its continuations."""
    prefix = read(_PREFIX.size, address)
    if len(prefix) < _PREFIX.size or prefix[0] != 1:
        return
    waiting = [(address + _PREFIX.size, _PREFIX.unpack(prefix)[3])]
    for _ in range(MAX_BLOCKS):
        if not waiting:
            return
        at, length = waiting.pop(0)
        block, place = read(min(length, MAX_BLOCK), at), 0
        while place + _MESSAGE.size <= len(block):
            kind, size, _flags = _MESSAGE.unpack_from(block, place)
            data = block[place + _MESSAGE.size : place + _MESSAGE.size + size]
            place += _MESSAGE.size + size
            if kind == _CONTINUED and len(data) >= _SPAN.size:
                waiting.append(_SPAN.unpack_from(data))
            yield kind, data


def _attribute(data: bytes) -> tuple[bytes, bytes, bytes]:
    """An attribute's name, its type and its value."""
    if len(data) < _ATTRIBUTE.size or data[0] not in (1, 2, 3):
        return b"", b"", b""
    version, _flags, *sizes = _ATTRIBUTE.unpack_from(data)
    at, parts = _ATTRIBUTE.size + (version == 3), []
    for size in sizes:
        parts.append(data[at : at + size])
        at += -(-size // 8) * 8 if version == 1 else size
    return parts[0].split(b"\0")[0], parts[1], data[at:]


def _text(read: ReadAt, datatype: bytes, value: bytes) -> str | None:
    """A text of a fixed length, or one in the heap."""
    kind = datatype[0] & 0x0F if len(datatype) >= 8 else 0
    found: bytes | None = None
    if kind == _FIXED_TEXT:
        found = value[: int.from_bytes(datatype[4:8], "little")]
    elif kind == _VARIABLE and datatype[1] & 0x0F == 1 and len(value) >= _REFERENCE.size:
        length, address, index = _REFERENCE.unpack_from(value)
        found = _from_heap(read, address, index, length)
    if found is None or len(found) > MAX_TEXT:
        return None
    try:
        return found.split(b"\0")[0].decode("utf-8") or None
    except UnicodeDecodeError:
        return None


def _from_heap(read: ReadAt, address: int, index: int, length: int) -> bytes | None:
    """One object of a heap; every step goes on by 16 bytes at least."""
    head = read(_HEAP.size, address)
    if len(head) < _HEAP.size or not head.startswith(b"GCOL\1"):
        return None
    heap, at = read(min(_HEAP.unpack(head)[2], MAX_HEAP), address), _HEAP.size
    while at + _OBJECT.size <= len(heap):
        number, _uses, _unused, size = _OBJECT.unpack_from(heap, at)
        if number == 0:
            return None
        if number == index:
            return heap[at + _OBJECT.size : at + _OBJECT.size + min(size, length)]
        at += _OBJECT.size + -(-size // 8) * 8
    return None
