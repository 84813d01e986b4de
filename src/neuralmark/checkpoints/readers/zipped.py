"""Zip archives as checkpoints: where each record's bytes and its checksums are.

The directory is parsed here because changing a record in place needs to know where its CRC-32
stands: in the directory, and in the local header or the data descriptor behind the data. An
archive in which two readers could see different things (duplicate or overlapping records, two
directories that disagree) is refused.
"""

import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from neuralmark.checkpoints.contract import CHUNK_BYTES, Checkpoint, Patch, StoredTensor
from neuralmark.errors import MalformedError, UnsafeError
from neuralmark.storage.places import Place, bytes_at, local

HEAD = b"PK\x03\x04"
STORED, DEFLATED = 0, 8
MAX_RECORDS = 1_000_000
MAX_DIRECTORY = 256 << 20
_END, _END64, _LOCATOR, _DESCRIPTOR = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x07\x08"
_CENTRAL = struct.Struct("<4s2x2xHHHHLLLHHH2x2x4xL")
_LOCAL = struct.Struct("<4s2xHH4xLLLHH")
_ENCRYPTED, _HAS_DESCRIPTOR, _UTF8 = 0x1, 0x8, 0x800


class ZipRecord(NamedTuple):
    """One entry of the directory (there may be a million: a tuple is the quickest)."""

    name: str
    raw_name: bytes
    method: int
    time: tuple[int, int]
    crc: int
    packed: int
    """Bytes in the archive."""
    size: int
    """Bytes of the content."""
    header: int
    """Offset of the local header."""
    entry: int
    """Offset of the entry in the directory."""
    limit: int = 0
    """Where the next record, or the directory, begins."""


@dataclass(frozen=True)
class ZipPlace:
    """A record whose local header was read: where its bytes are."""

    record: ZipRecord
    offset: int
    described: bool
    """Whether a data descriptor follows the data."""
    local_crc: int


def first_name(head: bytes) -> str:
    """Read the name of the first record from the first bytes of a file; empty if it has none."""
    if len(head) < _LOCAL.size or not head.startswith(HEAD):
        return ""
    length = _LOCAL.unpack_from(head)[6]
    return head[_LOCAL.size : _LOCAL.size + length].decode("utf-8", "replace")


def directory(path: Place) -> dict[str, ZipRecord]:
    """Read the directory of an archive, checked for duplicates and overlaps."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start, length, count = _find(path, file, size)
        if count > MAX_RECORDS or length > MAX_DIRECTORY:
            raise UnsafeError(f"{path}: its directory has {count:,} records in {length:,} bytes")
        file.seek(start)
        data = file.read(length)
    records: dict[str, ZipRecord] = {}
    at = 0
    for _ in range(count):
        record, following = _entry(path, data, at, start)
        if record.name in records:
            raise MalformedError(f"{path}: has two records named {record.name[:80]!r}")
        records[record.name] = record
        at = following
    if at != length:
        raise MalformedError(f"{path}: its directory is longer than its {count:,} records")
    return _limited(path, records, start)


def _find(path: Place, file: BinaryIO, size: int) -> tuple[int, int, int]:
    """Find the directory: offset, length, number of records."""
    tail_start = max(0, size - (1 << 16) - 22 - 76)
    file.seek(tail_start)
    tail = file.read(size - tail_start)
    end = tail.rfind(_END)
    cut = MalformedError(f"{path}: has no directory at its end (a truncated download?)")
    if end < 0 or len(tail) < end + 22:
        raise cut
    disk, _, here, count, length, start, comment = struct.unpack_from("<4H2LH", tail, end + 4)
    if disk or here != count or end + 22 + comment != len(tail):
        raise cut
    found, limit = (start, length, count), tail_start + end
    if end >= 76 and tail[end - 20 : end - 16] == _LOCATOR:
        limit -= 76
        (at,) = struct.unpack_from("<Q", tail, end - 12)
        if at != limit or tail[end - 76 : end - 72] != _END64:
            raise cut
        here, count, length, start = struct.unpack_from("<4Q", tail, end - 52)
        wide, caps = (start, length, count), (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFF)
        if any(a not in (b, cap) for a, b, cap in zip(found, wide, caps, strict=True)):
            raise MalformedError(f"{path}: its two directories disagree")
        found = wide
    if found[0] + found[1] != limit:
        raise MalformedError(f"{path}: its directory does not stand at its end")
    return found


def _entry(path: Place, data: bytes, at: int, start: int) -> tuple[ZipRecord, int]:
    """Parse one entry of the directory; gives the offset of the next one too."""
    if at + _CENTRAL.size > len(data):
        raise MalformedError(f"{path}: its directory is cut off")
    signature, flags, method, time, date, crc, packed, size, *lengths, header = (
        _CENTRAL.unpack_from(data, at)
    )
    name_end = at + _CENTRAL.size + lengths[0]
    extra_end = name_end + lengths[1]
    if signature != b"PK\x01\x02" or extra_end + lengths[2] > len(data):
        raise MalformedError(f"{path}: its directory is damaged")
    raw_name = data[at + _CENTRAL.size : name_end]
    try:
        name = raw_name.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise MalformedError(f"{path}: a record's name is not text") from None
    if flags & _ENCRYPTED or "\0" in name:
        raise UnsafeError(f"{path}: the record {name[:80]!r} is encrypted or has a bad name")
    size, packed, header = _widened(path, data[name_end:extra_end], (size, packed, header))
    record = ZipRecord(name, raw_name, method, (date, time), crc, packed, size, header, start + at)
    return record, extra_end + lengths[2]


def _widened(path: Place, extra: bytes, values: tuple[int, int, int]) -> tuple[int, ...]:
    """Replace the values that do not fit 32 bits by those of the zip64 field."""
    wide: list[int] = []
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            body = extra[at + 4 : at + 4 + length]
            wide = [int.from_bytes(body[i : i + 8], "little") for i in range(0, len(body) & ~7, 8)]
        at += 4 + length
    result = []
    for value in values:
        if value == 0xFFFFFFFF:
            if not wide:
                raise MalformedError(f"{path}: a record's 64-bit size is missing")
            value = wide.pop(0)
        result.append(value)
    return tuple(result)


def _limited(path: Place, records: dict[str, ZipRecord], start: int) -> dict[str, ZipRecord]:
    """Note where each record must end; records that overlap are refused."""
    limits: dict[str, int] = {}
    limit = start
    for record in sorted(records.values(), key=lambda record: record.header, reverse=True):
        if record.header + _LOCAL.size + len(record.raw_name) + record.packed > limit:
            raise MalformedError(f"{path}: the record {record.name[:80]!r} overlaps another one")
        if record.method == STORED and record.packed != record.size:
            raise MalformedError(f"{path}: the record {record.name[:80]!r} lies about its size")
        limits[record.name] = limit
        limit = record.header
    return {name: record._replace(limit=limits[name]) for name, record in records.items()}


def place(path: Place, file: BinaryIO, record: ZipRecord) -> ZipPlace:
    """Read the local header of a record: it must agree with the directory."""
    raw = bytes_at(file, _LOCAL.size + len(record.raw_name), record.header)
    bad = MalformedError(f"{path}: the header of {record.name[:80]!r} contradicts the directory")
    if len(raw) < _LOCAL.size + len(record.raw_name):
        raise bad
    signature, flags, method, crc, _, _, name_length, extra_length = _LOCAL.unpack_from(raw)
    if signature != HEAD or method != record.method or name_length != len(record.raw_name):
        raise bad
    offset = record.header + _LOCAL.size + name_length + extra_length
    if raw[_LOCAL.size :] != record.raw_name or offset + record.packed > record.limit:
        raise bad
    return ZipPlace(record, offset, bool(flags & _HAS_DESCRIPTOR), crc)


def _crc_fields(path: Place, where: ZipPlace) -> list[int]:
    """Offsets of all the fields that hold the CRC-32 of a record."""
    record, end = where.record, where.offset + where.record.packed
    fields = [record.entry + 16]
    if not where.described or (where.local_crc and where.local_crc == record.crc):
        fields.append(record.header + 14)
    if where.described:
        with path.open("rb") as file:
            tail = bytes_at(file, 8, end)
        if tail[:4] == _DESCRIPTOR and end + 16 <= record.limit:
            fields.append(end + 4)
        elif tail[:4] == record.crc.to_bytes(4, "little") and end + 12 <= record.limit:
            fields.append(end)
        else:
            raise MalformedError(f"{path}: {record.name[:80]!r} has no checksum behind its data")
    return fields


def _crc_of(path: Place, offset: int, length: int) -> int:
    crc = 0
    with path.open("rb", buffering=0) as file:
        while length:
            piece = bytes_at(file, min(length, CHUNK_BYTES), offset)
            if not piece:
                raise MalformedError(f"{path}: ends inside a record")
            crc = zlib.crc32(piece, crc)
            offset, length = offset + len(piece), length - len(piece)
    return crc


def content(path: Place, where: ZipPlace, step: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Unpack a record in pieces of at most `step` bytes; its size and checksum must come true."""
    left, at, crc, packed = where.record.size, where.offset, 0, where.record.packed
    unpacker = zlib.decompressobj(-15) if where.record.method == DEFLATED else None
    bad = MalformedError(f"{path}: the record {where.record.name[:80]!r} is damaged")
    waiting = b""
    with path.open("rb", buffering=0) as file:
        while left:
            if not waiting:
                waiting = bytes_at(file, min(packed, step), at)
                if packed and not waiting:
                    raise bad
                at, packed = at + len(waiting), packed - len(waiting)
            try:
                piece = unpacker.decompress(waiting, min(step, left)) if unpacker else waiting
            except zlib.error:
                raise bad from None
            waiting = unpacker.unconsumed_tail if unpacker else b""
            if not piece and not packed and not waiting:
                raise bad
            crc, left = zlib.crc32(piece, crc), left - len(piece)
            yield piece
    if crc != where.record.crc:
        raise bad


class ZipCheckpoint(Checkpoint):
    """Tensors inside stored records of an archive; their checksums are renewed after a change."""

    def __init__(
        self, path: Place, form: str, tensors: Mapping[str, StoredTensor], places: list[ZipPlace]
    ) -> None:
        """`places` are the records that the tensors without obstacle are parts of."""
        super().__init__(path, form, tensors)
        self._places = sorted(places, key=lambda where: where.offset)

    def repairs(self, names: list[str], target: Callable[[Path], Path]) -> list[Patch]:
        """Renew the checksum of every record that holds one of these tensors."""
        patches = []
        for where in self._changed(names):
            file = target(local(self.path))
            crc = _crc_of(file, where.offset, where.record.packed).to_bytes(4, "little")
            patches += [Patch(file, at, crc) for at in _crc_fields(self.path, where)]
        return patches

    def in_place_ranges(self, names: list[str]) -> list[tuple[Path, int, int]]:
        """Every range that a change touches, with the checksums."""
        fields = [at for where in self._changed(names) for at in _crc_fields(self.path, where)]
        return super().in_place_ranges(names) + [(local(self.path), at, 4) for at in fields]

    def _changed(self, names: list[str]) -> list[ZipPlace]:
        starts = [where.offset for where in self._places]
        indices = {bisect_right(starts, self.span(name).offset) - 1 for name in names}
        return [self._places[index] for index in sorted(indices)]
