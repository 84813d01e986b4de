"""Archives of `numpy.savez` and `numpy.savez_compressed`: a zip whose members are .npy files.

The headers of the members are parsed here, strictly, rather than evaluated as Python. Arrays of
objects, big-endian or Fortran-ordered ones are listed with an obstacle. Compressed members are
read in pieces; a file with compressed members is marked by writing a new one, never in place.
"""

import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from neuralmark.checkpoints.contract import (
    CHUNK_BYTES,
    MAX_TENSORS,
    Checkpoint,
    Copying,
    Edits,
    StoredTensor,
    TensorInfo,
)
from neuralmark.checkpoints.readers import zipped
from neuralmark.checkpoints.readers.dtypes import ITEMSIZE, Raw
from neuralmark.errors import CheckpointError, MalformedError, UnsafeError, UsageError
from neuralmark.storage.places import Place, local

SUFFIX = ".npy"
MAGIC = b"\x93NUMPY"
MAX_HEADER = 64 << 10
_VERSIONS = (b"\x01", b"\x02", b"\x03")
MAX_RATIO = 1100
"""Deflate cannot pack better than about 1032 to 1."""

DTYPES = {
    **{"<f8": "F64", "<f4": "F32", "<f2": "F16", "<c8": "C64", "<c16": "C128", "|b1": "BOOL"},
    **{"<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8"},
    **{"<u8": "U64", "<u4": "U32", "<u2": "U16", "|u1": "U8"},
}

_FIELD = re.compile(
    r"\s*'(descr|fortran_order|shape)'\s*:\s*"
    r"('[^'\\]{1,64}'|True|False|\([\dL,\s]*\)|\[[^\n]*\])\s*(?:,\s*|$)"
)


def matches(path: Place, head: bytes) -> bool:
    """Look at the names in an archive, or at the first one where the directory is broken."""
    if not head.startswith(zipped.HEAD):
        return False
    try:
        names = list(zipped.directory(path))
    except CheckpointError:
        names = [zipped.first_name(head)]
    return bool(names) and all(name.endswith(SUFFIX) for name in names)


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Read the directory and the header of every member."""
    records = zipped.directory(path)
    if len(records) > MAX_TENSORS:
        raise MalformedError(f"{path}: has {len(records):,} arrays, over {MAX_TENSORS:,}")
    with path.open("rb") as file:
        members = [_Member(path, file, record) for record in records.values()]
    return _Npz(path, members)


class _Member:
    """One .npy file in the archive: what its header says, and where it is."""

    def __init__(self, path: Place, file: BinaryIO, record: zipped.ZipRecord) -> None:
        if record.method not in (zipped.STORED, zipped.DEFLATED):
            raise UnsafeError(f"{path}: {record.name[:80]!r} is compressed in an unusual way")
        if record.size > MAX_RATIO * record.packed + MAX_HEADER:
            raise UnsafeError(f"{path}: {record.name[:80]!r} claims more than it can unpack to")
        self.path = path
        self.place = zipped.place(path, file, record)
        self.name = record.name.removesuffix(SUFFIX)
        self.start, self.header = self._read_header()
        self.info = self._describe()

    @property
    def compressed(self) -> bool:
        """Whether the bytes in the file are not the array's own."""
        return self.place.record.method != zipped.STORED

    def pieces(self, start: int, step: int = CHUNK_BYTES) -> Iterator[bytearray]:
        """Unpack the member from `start` on, in pieces of `step` bytes (the last may be less)."""
        rest, skip = bytearray(), start
        for part in zipped.content(self.path, self.place, step):
            rest += part[skip:]
            skip = max(0, skip - len(part))
            while len(rest) >= step:
                yield rest[:step]
                del rest[:step]
        if rest:
            yield rest

    def prefix(self) -> bytes:
        """Give the bytes before the array's own."""
        return bytes(next(self.pieces(0, self.start)))

    def _read_header(self) -> tuple[int, str]:
        """Give where the array begins in the member, and the text of its header."""
        data = bytes(next(self.pieces(0, MAX_HEADER), b""))
        width = 2 if data[6:7] == b"\x01" else 4
        length = int.from_bytes(data[8 : 8 + width], "little")
        start = 8 + width + length
        if not data.startswith(MAGIC) or data[6:7] not in _VERSIONS or start > len(data):
            raise self._bad(f"is no .npy file, or its header is over {MAX_HEADER:,} bytes")
        return start, data[8 + width : start].decode("latin-1").strip()

    def _describe(self) -> TensorInfo:
        descr, fortran, shape = _fields(self.header) or (None, False, ())
        if descr is None:
            raise self._bad("has a header that is not a table of descr, fortran_order and shape")
        dtype = DTYPES.get(descr, descr)
        obstacle = None
        if dtype not in ITEMSIZE:
            obstacle = _why_not(descr)
        elif fortran and 0 not in shape and sum(length > 1 for length in shape) > 1:
            obstacle = "it is in Fortran order; save it with numpy.ascontiguousarray"
        info = TensorInfo(self.name, dtype, shape, obstacle)
        if dtype in ITEMSIZE and self.start + info.nbytes != self.place.record.size:
            raise self._bad(f"says {descr} {list(shape)} but has another number of bytes")
        return info

    def _bad(self, why: str) -> MalformedError:
        return MalformedError(f"{self.path}: the member {self.name[:80]!r} {why}")


def _fields(text: str) -> tuple[str, bool, tuple[int, ...]] | None:
    """Parse a header's three fields, in any order; None if it is anything else."""
    if not (text.startswith("{") and text.endswith("}")):
        return None
    body, at = text[1:-1].strip(), 0
    found: dict[str, str] = {}
    while at < len(body):
        match = _FIELD.match(body, at)
        if match is None or match[1] in found:
            return None
        found[match[1]], at = match[2], match.end()
    descr, fortran, shape = (found.get(k, "") for k in ("descr", "fortran_order", "shape"))
    lengths = _lengths(shape)
    if descr[:1] not in ("'", "[") or fortran not in ("True", "False") or lengths is None:
        return None
    return descr.strip("'")[:80], fortran == "True", lengths


def _lengths(text: str) -> tuple[int, ...] | None:
    """Parse a tuple of lengths; Python 2 wrote an L behind long ones."""
    if not text.startswith("("):
        return None
    parts = [part.strip().removesuffix("L") for part in text[1:-1].split(",")]
    if parts[-1] == "":
        parts.pop()
    if len(parts) > 64 or not all(part.isdecimal() and len(part) < 19 for part in parts):
        return None
    return tuple(map(int, parts))


def _why_not(descr: str) -> str:
    if descr.startswith(">"):
        return "it is big-endian; save it with .astype('<f4')"
    if descr.startswith("|O"):
        return "it holds Python objects, which are never unpickled"
    return f"its dtype {descr[:40]!r} is not known"


class _Npz(zipped.ZipCheckpoint):
    """Arrays in a zip; those in compressed members are unpacked while they are read."""

    def __init__(self, path: Place, members: list[_Member]) -> None:
        self._members = {member.name: member for member in members}
        tensors = {
            name: StoredTensor(
                member.info, path, member.place.offset + (0 if member.compressed else member.start)
            )
            for name, member in self._members.items()
        }
        super().__init__(path, "npz", tensors, [member.place for member in members])

    def read(self, name: str) -> Iterator[Raw]:
        """As in the base; compressed members are unpacked piece by piece."""
        member = self._members[name]
        if member.info.obstacle or not member.compressed:
            return super().read(name)
        return (np.frombuffer(piece, np.uint8) for piece in member.pieces(member.start))

    def in_order(self, name: str) -> bool:
        """As in the base; compressed members are packed."""
        return not self._members[name].compressed and super().in_order(name)

    def overlap(self, names: Iterable[str]) -> tuple[str, str] | None:
        """Members of an archive never overlap."""
        return None

    @contextmanager
    def copying(self, out: Path) -> Iterator[Copying]:
        """As in the base; with compressed members, all are packed again in the same order."""
        if any(member.compressed for member in self._members.values()):
            yield Copying(partial(self._pack, out))
            return
        with super().copying(out) as copy:
            yield copy

    def _pack(self, out: Path, edits: Edits) -> None:
        with zipfile.ZipFile(out, "x") as archive:
            for name, member in self._members.items():
                with archive.open(_zip_info(member.place.record), "w") as target:
                    if name not in edits:
                        pieces: Iterator[bytes | bytearray] = member.pieces(0)
                    else:
                        target.write(member.prefix())
                        pieces = edits[name]()
                    for piece in pieces:
                        target.write(piece)
        shutil.copymode(local(self.path), out)

    def in_place_ranges(self, names: list[str]) -> list[tuple[Path, int, int]]:
        """As in the base; refused for compressed members."""
        self._refuse_compressed(names)
        return super().in_place_ranges(names)

    def apply(self, edits: Edits, target: Callable[[Path], Path]) -> None:
        """As in the base; refused for compressed members."""
        self._refuse_compressed(list(edits))
        super().apply(edits, target)

    def _refuse_compressed(self, names: list[str]) -> None:
        for name in names:
            if self._members[name].compressed:
                raise UsageError(f"{self.path}: {name[:80]!r} is compressed; use out=...")


def _zip_info(record: zipped.ZipRecord) -> zipfile.ZipInfo:
    """Describe a member for writing it again: name, date and compression."""
    date, time = record.time
    stamp = (
        1980 + (date >> 9),
        date >> 5 & 15,
        date & 31,
        time >> 11,
        time >> 5 & 63,
        time % 32 * 2,
    )
    info = zipfile.ZipInfo(record.name, stamp)
    info.compress_type = record.method
    info.external_attr = 0o600 << 16
    info.file_size = record.size
    return info
