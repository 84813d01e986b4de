"""The zip archives that torch writes: a pickle, and a record for each storage it refers to.

The records that matter must be stored as they are: torch never compresses them, and a compressed
record is how a small file asks for a lot of memory. Stored records do not overlap, so together
they cannot claim more bytes than the file has.
"""

from collections.abc import Iterable
from typing import Any, BinaryIO

from neuralmark.checkpoints.contract import StoredTensor
from neuralmark.checkpoints.readers import zipped
from neuralmark.checkpoints.readers.inert import MAX_BYTES, Call, Reader
from neuralmark.checkpoints.readers.pickled import load
from neuralmark.checkpoints.readers.torch_tables import Storage, rebuilt
from neuralmark.errors import CheckpointError, MalformedError, UnsafeError
from neuralmark.storage.places import Place

PICKLE = "data.pkl"


def pickles(names: Iterable[str]) -> list[str]:
    """Pick the names that a pickle of torch can have."""
    return [name for name in names if name == PICKLE or name.endswith("/" + PICKLE)]


class TorchArchive:
    """The records under the archive's prefix, each local header read once."""

    def __init__(self, path: Place) -> None:
        """Read the directory; it must hold exactly one `data.pkl`."""
        self._path = path
        self._records = folded(path, zipped.directory(path))
        zipped.announce(path, self._records.values())
        names = pickles(self._records)
        if len(names) != 1:
            raise MalformedError(f"{path}: has {len(names)} pickles instead of one")
        self._prefix = names[0].removesuffix(PICKLE)
        self._places: dict[str, zipped.ZipPlace] = {}
        self._used: set[str] = set()
        with path.open("rb") as file:
            self._check_byte_order(file)

    def has(self, name: str) -> bool:
        """Whether there is such a record."""
        return (self._prefix + name).casefold() in self._records

    def pickle(self, name: str = PICKLE) -> Any:
        """What a pickle of the archive describes; nothing of it is run."""
        with self._path.open("rb") as file:
            where = self._place(name, file)
            if where.record.size > MAX_BYTES:
                raise UnsafeError(f"{self._path}: its pickle is longer than {MAX_BYTES:,} bytes")
            file.seek(where.offset)
            return load(Reader(file, where.record.size)).value

    def locate(self, storage: Storage, folder: str = "data/") -> tuple[int, int]:
        """Give the offset and the length in bytes of a storage."""
        name = folder + storage.key
        with self._path.open("rb", buffering=0) as file:
            where = self._place(name, file)
        self._used.add(name)
        if storage.count * (storage.itemsize or 1) != where.record.size or storage.view:
            raise MalformedError(
                f"{self._path}: lies about the length of the storage {storage.key[:80]!r}"
            )
        return where.offset, where.record.size

    def stored(self, name: str, call: Call) -> StoredTensor:
        """Where the tensor lies that a call in the pickle rebuilds."""
        return rebuilt(self._path, name, call, self.locate)

    def storages(self) -> list[zipped.ZipPlace]:
        """List the records of storages that tensors use."""
        return [self._places[name] for name in self._used]

    def _place(self, name: str, file: BinaryIO) -> zipped.ZipPlace:
        """Find a record that must be there, uncompressed."""
        if name not in self._places:
            record = self._records.get((self._prefix + name).casefold())
            if record is None:
                raise MalformedError(f"{self._path}: the record {name[:80]!r} is missing")
            if record.method != zipped.STORED:
                raise UnsafeError(f"{self._path}: the record {name[:80]!r} is compressed")
            self._places[name] = zipped.place(self._path, file, record)
        return self._places[name]

    def _check_byte_order(self, file: BinaryIO) -> None:
        """Refuse big-endian numbers."""
        if self._prefix + "byteorder" not in self._records:
            return
        where = self._place("byteorder", file)
        file.seek(where.offset)
        if where.record.size > 16 or file.read(where.record.size) != b"little":
            raise CheckpointError(
                f"{self._path}: its numbers are big-endian; save it on a little-endian machine"
            )


def folded(path: Place, records: dict[str, zipped.ZipRecord]) -> dict[str, zipped.ZipRecord]:
    """The records as torch looks them up: without regard to case; refuses two that are then equal.

    torch looks only under the folder of the first record, so all must be in one.
    """
    found: dict[str, zipped.ZipRecord] = {}
    for name, record in records.items():
        key = name.casefold()
        if key in found:
            raise MalformedError(
                f"{path}: torch does not tell the records {found[key].name[:80]!r} and"
                f" {name[:80]!r} apart"
            )
        found[key] = record
    if len({name.partition("/")[0] for name in found}) > 1:
        raise MalformedError(f"{path}: its records are in several folders; torch reads one of them")
    return found
