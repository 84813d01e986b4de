"""Files of `torch.save`: a zip archive with one pickle and a record for each storage.

The pickle is never executed. Quantised and sparse tensors are listed with an obstacle, and so
are tensors whose elements share bytes. The records that matter must be stored as they are: torch
never compresses them, and a compressed record is how a small file asks for a lot of memory. Stored
records do not overlap, so together they cannot claim more bytes than the file has.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import BinaryIO

from neuralmark.checkpoints.contract import Checkpoint
from neuralmark.checkpoints.readers import zipped
from neuralmark.checkpoints.readers.inert import MAX_BYTES, Reader
from neuralmark.checkpoints.readers.pickled import load
from neuralmark.checkpoints.readers.torch_tables import Storage, other_tables, stored_tensors
from neuralmark.errors import CheckpointError, MalformedError, UnsafeError
from neuralmark.storage.places import Place

PICKLE = "data.pkl"


def matches(path: Place, head: bytes) -> bool:
    """Look for exactly one pickle in an archive, or for its name where the directory is broken."""
    if not head.startswith(zipped.HEAD):
        return False
    try:
        return len(_pickles(zipped.directory(path))) == 1
    except CheckpointError:
        return bool(_pickles([zipped.first_name(head)]))


def _pickles(names: Iterable[str]) -> list[str]:
    """Pick the names that a pickle of torch can have."""
    return [name for name in names if name == PICKLE or name.endswith("/" + PICKLE)]


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Read the directory and the pickle (inertly), and find every tensor's bytes."""
    return _open(path, None)


def _open(path: Place, table: str | None) -> "_TorchZip":
    """Open the model's table, or another one."""
    records = _folded(path, zipped.directory(path))
    names = _pickles(records)
    if len(names) != 1:
        raise MalformedError(f"{path}: has {len(names)} pickles instead of one")
    with path.open("rb") as file:
        archive = _Archive(path, file, records, names[0].removesuffix(PICKLE))
        archive.check_byte_order()
        where = archive.place(PICKLE)
        if where.record.size > MAX_BYTES:
            raise UnsafeError(f"{path}: its pickle is longer than {MAX_BYTES:,} bytes")
        file.seek(where.offset)
        pickle = load(Reader(file, where.record.size))
        tensors = stored_tensors(path, pickle.value, archive.locate, table)
    opened = _TorchZip(path, "torch_zip", tensors, archive.storages())
    opened.tables = partial(other_tables, path, pickle.value)
    return opened


class _TorchZip(zipped.ZipCheckpoint):
    """A file of torch; its other tables are opened when they are asked for."""

    tables: Callable[[], list[str]]

    def others(self) -> list[tuple[str, Checkpoint]]:
        """Averages and other tables beside the model's."""
        return [(name, _open(self.path, name)) for name in self.tables()]


def _folded(path: Place, records: dict[str, zipped.ZipRecord]) -> dict[str, zipped.ZipRecord]:
    """The records as torch looks them up: without regard to case; refuses two that are then equal.

    torch looks only under the folder of the first record, so all must be in one.
    """
    found: dict[str, zipped.ZipRecord] = {}
    for name, record in records.items():
        folded = name.casefold()
        if folded in found:
            raise MalformedError(
                f"{path}: torch does not tell the records {found[folded].name[:80]!r} and"
                f" {name[:80]!r} apart"
            )
        found[folded] = record
    if len({name.partition("/")[0] for name in found}) > 1:
        raise MalformedError(f"{path}: its records are in several folders; torch reads one of them")
    return found


class _Archive:
    """The records under the archive's prefix, each local header read once."""

    def __init__(
        self, path: Place, file: BinaryIO, records: dict[str, zipped.ZipRecord], prefix: str
    ) -> None:
        self._path = path
        self._file = file
        self._records = records
        self._prefix = prefix
        self._places: dict[str, zipped.ZipPlace] = {}

    def place(self, name: str) -> zipped.ZipPlace:
        """Find a record that must be there, uncompressed."""
        if name not in self._places:
            record = self._records.get((self._prefix + name).casefold())
            if record is None:
                raise MalformedError(f"{self._path}: the record {name[:80]!r} is missing")
            if record.method != zipped.STORED:
                raise UnsafeError(f"{self._path}: the record {name[:80]!r} is compressed")
            self._places[name] = zipped.place(self._path, self._file, record)
        return self._places[name]

    def check_byte_order(self) -> None:
        """Refuse big-endian numbers."""
        if self._prefix + "byteorder" not in self._records:
            return
        where = self.place("byteorder")
        self._file.seek(where.offset)
        if where.record.size > 16 or self._file.read(where.record.size) != b"little":
            raise CheckpointError(
                f"{self._path}: its numbers are big-endian; save it on a little-endian machine"
            )

    def locate(self, storage: Storage) -> tuple[int, int]:
        """Give the offset and the length in bytes of a storage."""
        where = self.place(f"data/{storage.key}")
        if storage.count * (storage.itemsize or 1) != where.record.size or storage.view:
            raise MalformedError(
                f"{self._path}: lies about the length of the storage {storage.key[:80]!r}"
            )
        return where.offset, where.record.size

    def storages(self) -> list[zipped.ZipPlace]:
        """List the records of storages that tensors use."""
        return [where for name, where in self._places.items() if name.startswith("data/")]
