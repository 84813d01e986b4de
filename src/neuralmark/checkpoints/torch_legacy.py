"""Files of `torch.save` before version 1.6 (or with `_use_new_zipfile_serialization=False`).

Five pickles (a magic number, the protocol, the machine's number sizes, the object, the keys of
the storages), then for each storage its number of elements in 8 bytes and its elements. None of
the pickles is ever executed. Quantised and sparse tensors are listed with an obstacle.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO

from neuralmark.checkpoints.contract import Checkpoint
from neuralmark.checkpoints.readers.inert import Persistent, Reader
from neuralmark.checkpoints.readers.pickled import load
from neuralmark.checkpoints.readers.torch_tables import (
    Storage,
    other_tables,
    storage_of,
    stored_tensors,
)
from neuralmark.errors import CheckpointError, MalformedError
from neuralmark.storage.places import Place

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001


def matches(path: Place, head: bytes) -> bool:
    """Look for the pickled magic number at the beginning."""
    return head[:1] == b"\x80" and MAGIC.to_bytes(10, "little") + b"." in head[:32]


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Read the pickles inertly and walk over the storages' lengths."""
    return _open(path, None)


def _open(path: Place, table: str | None) -> "_Legacy":
    """Open the model's table, or another one."""
    size = path.stat().st_size
    with path.open("rb") as file:
        reader = Reader(file, size)
        if load(reader).value != MAGIC or load(reader).value != PROTOCOL:
            raise MalformedError(f"{path}: does not begin as a file of torch.save does")
        _check_machine(path, load(reader).value)
        pickle = load(reader)
        keys = load(reader).value
        storages = _Storages(path, pickle.persistents)
        storages.walk(file, keys, size)
    tensors = stored_tensors(path, pickle.value, storages.locate, table)
    opened = _Legacy(path, "torch_legacy", tensors)
    opened.tables = partial(other_tables, path, pickle.value)
    return opened


class _Legacy(Checkpoint):
    """An old file of torch; its other tables are opened when they are asked for."""

    tables: Callable[[], list[str]]

    def others(self) -> list[tuple[str, Checkpoint]]:
        """Averages and other tables beside the model's."""
        return [(name, _open(self.path, name)) for name in self.tables()]


def _check_machine(path: Place, info: Any) -> None:
    if not isinstance(info, dict) or not isinstance(info.get("little_endian"), bool):
        raise MalformedError(f"{path}: does not say how its numbers are stored")
    if not info["little_endian"]:
        raise CheckpointError(
            f"{path}: its numbers are big-endian; save it on a little-endian machine"
        )


class _Storages:
    """Where each storage lies: known from the object's references and the lengths in the file."""

    def __init__(self, path: Place, references: list[Persistent]) -> None:
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}
        self._described: dict[str, Storage] = {}
        for reference in references:
            storage = storage_of(path, reference)
            if storage is None:
                continue
            first = self._described.setdefault(storage.key, storage)
            if (first.itemsize, first.count) != (storage.itemsize, storage.count):
                raise MalformedError(f"{path}: a storage is described in two ways")

    def walk(self, file: BinaryIO, keys: Any, size: int) -> None:
        """Step from storage to storage; the file stands at the first."""
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise MalformedError(f"{self._path}: has no list of storages")
        at = file.tell()
        for key in keys:
            storage = self._described.get(key)
            if storage is None or storage.itemsize is None or key in self._places:
                raise MalformedError(
                    f"{self._path}: lists the storage {key[:80]!r} twice, or of unknown kind"
                )
            file.seek(at)
            count = int.from_bytes(file.read(8), "little")
            length = count * storage.itemsize
            if count != storage.count or at + 8 + length > size:
                raise MalformedError(
                    f"{self._path}: is cut off, or lies about the length of {key[:80]!r}"
                )
            self._places[key] = (at + 8, length)
            at += 8 + length

    def locate(self, storage: Storage) -> tuple[int, int]:
        """Give the offset and the length in bytes of a storage, or of the part a view shows."""
        if storage.key not in self._places or storage.itemsize is None:
            raise MalformedError(f"{self._path}: the storage {storage.key[:80]!r} is missing")
        start, length = self._places[storage.key]
        if storage.view is None:
            return start, length
        skip, wanted = (count * storage.itemsize for count in storage.view)
        if skip > length:
            raise MalformedError(f"{self._path}: a view begins behind its storage")
        return start + skip, min(wanted, length - skip)
