"""Files of `torch.save`: a zip archive with one pickle and a record for each storage.

The pickle is never executed. Quantised and sparse tensors are listed with an obstacle, and so
are tensors whose elements share bytes.
"""

from collections.abc import Callable
from functools import partial

from neuralmark.checkpoints.contract import Checkpoint
from neuralmark.checkpoints.readers import zipped
from neuralmark.checkpoints.readers.torch_archive import TorchArchive, pickles
from neuralmark.checkpoints.readers.torch_tables import other_tables, stored_tensors
from neuralmark.errors import CheckpointError
from neuralmark.storage.places import Place


def matches(path: Place, head: bytes) -> bool:
    """Look for exactly one pickle in an archive, or for its name where the directory is broken."""
    if not head.startswith(zipped.HEAD):
        return False
    try:
        return len(pickles(zipped.directory(path))) == 1
    except CheckpointError:
        return bool(pickles([zipped.first_name(head)]))


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Read the directory and the pickle (inertly), and find every tensor's bytes."""
    return _open(path, None)


def _open(path: Place, table: str | None) -> "_TorchZip":
    """Open the model's table, or another one."""
    archive = TorchArchive(path)
    value = archive.pickle()
    tensors = stored_tensors(path, value, archive.locate, table)
    opened = _TorchZip(path, "torch_zip", tensors, archive.storages())
    opened.tables = partial(other_tables, path, value)
    return opened


class _TorchZip(zipped.ZipCheckpoint):
    """A file of torch; its other tables are opened when they are asked for."""

    tables: Callable[[], list[str]]

    def others(self) -> list[tuple[str, Checkpoint]]:
        """Averages and other tables beside the model's."""
        return [(name, _open(self.path, name)) for name in self.tables()]
