"""A suspect's weights, read as little as possible: whole tensors, or some of their rows."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np

from neuralmark.checkpoints.contract import Checkpoint
from neuralmark.checkpoints.readers.dtypes import FLOATS, decode
from neuralmark.core.names import canonical_name
from neuralmark.structures.structure import Array, Indices, Structure

Shape = tuple[int, ...]
Index = tuple[Indices | None, ...]
"""For each axis the places that are taken, or None: all of them."""

KEPT_BYTES = 64 << 20
"""Tensors that cannot be read in part are kept, up to this much, for the next who asks."""

PROBED = " (probed)"
"""Behind the name of a tensor that a live suspect does not store: read from what it computes."""

_GAP = 1 << 14
"""Elements between two rows that are read over rather than jumped over."""


class SuspectWeights(Protocol):
    """Floating-point tensors by stored name."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape of each tensor, by stored name, in the order of the file."""

    def __getitem__(self, name: str) -> Array:
        """A whole tensor as float32."""

    def read_rows(self, name: str, rows: Indices, axes: int = 1) -> Array:
        """Some rows of a tensor; `axes` leading axes are counted as one."""

    def traced(self) -> Structure | None:
        """The map of a live module, by stored names; None for files, or where there is none."""


class TableWeights(Mapping[str, Array]):
    """A table of arrays: a live module's weights, or any in memory."""

    def __init__(
        self, arrays: Mapping[str, Array], trace: Callable[[], Structure | None] | None = None
    ) -> None:
        """The arrays are kept, not copied; those without elements are left out."""
        self._trace = trace
        self._arrays = {name: value for name, value in arrays.items() if value.size and value.ndim}
        self.shapes: Mapping[str, Shape] = {n: v.shape for n, v in self._arrays.items()}

    def __getitem__(self, name: str) -> Array:
        """A whole tensor."""
        return np.asarray(self._arrays[name], np.float32)

    def __iter__(self) -> Iterator[str]:
        """Stored names."""
        return iter(self._arrays)

    def __len__(self) -> int:
        """How many tensors there are."""
        return len(self._arrays)

    def read_rows(self, name: str, rows: Indices, axes: int = 1) -> Array:
        """Some rows of a tensor; `axes` leading axes are counted as one."""
        whole = self[name]
        return np.asarray(whole.reshape(-1, *whole.shape[axes:])[rows])

    def traced(self) -> Structure | None:
        """The map of the module whose weights these are, if there is one."""
        return None if self._trace is None else self._trace()


class CheckpointWeights(Mapping[str, Array]):
    """The floating-point tensors of a file; those that cannot be read as they are, are left out."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Only headers are looked at."""
        self._checkpoint = checkpoint
        infos = {name: checkpoint.info(name) for name in checkpoint.names()}
        self._dtypes = {
            name: info.dtype
            for name, info in infos.items()
            if info.dtype in FLOATS and info.obstacle is None and info.size and info.shape
        }
        self.shapes: Mapping[str, Shape] = {name: infos[name].shape for name in self._dtypes}
        self._kept: OrderedDict[str, Array] = OrderedDict()

    def __getitem__(self, name: str) -> Array:
        """A whole tensor as float32."""
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name]
        whole = np.empty(int(np.prod(self.shapes[name], dtype=np.int64)), np.float32)
        at = 0
        for piece in self._checkpoint.read(name):
            values = decode(piece, self._dtypes[name])
            whole[at : at + len(values)] = _single(values)
            at += len(values)
        values = whole.reshape(self.shapes[name])
        self._keep(name, values)
        return values

    def __iter__(self) -> Iterator[str]:
        """Stored names, in the order of the file."""
        return iter(self.shapes)

    def __len__(self) -> int:
        """How many tensors there are."""
        return len(self.shapes)

    def read_rows(self, name: str, rows: Indices, axes: int = 1) -> Array:
        """Some rows of a tensor; `axes` leading axes are counted as one."""
        shape = self.shapes[name][axes:]
        if name in self._kept or not self._checkpoint.in_order(name):
            return np.asarray(self[name].reshape(-1, *shape)[rows])
        length = int(np.prod(shape, dtype=np.int64))
        rising = len(rows) < 2 or bool((np.diff(rows) > 0).all())
        order, back = (rows, None) if rising else np.unique(rows, return_inverse=True)
        parts = []
        for run in np.split(order, np.flatnonzero(np.diff(order) * length > _GAP + length) + 1):
            first, last = int(run[0]), int(run[-1]) + 1
            raw = self._checkpoint.read_run(name, first * length, last * length)
            values = _single(decode(raw, self._dtypes[name])).reshape(last - first, *shape)
            parts.append(values if len(run) == last - first else values[run - first])
        found = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return found if back is None else np.asarray(found[back])

    def traced(self) -> Structure | None:
        """None: a file has no code."""
        return None

    def _keep(self, name: str, values: Array) -> None:
        """Hold it while there is room: the oldest go first."""
        self._kept[name] = values
        while sum(each.nbytes for each in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)


def own_name(stored: str) -> str:
    """The canonical name of a tensor, be it stored or probed.

    >>> own_name("module.conv1.weight (probed)")
    'conv1.weight'
    """
    return canonical_name(stored.removesuffix(PROBED))


def take(suspect: SuspectWeights, name: str, index: Index) -> Array:
    """A part of a stored tensor: some places along each of its axes."""
    first = index[0]
    if first is None:
        return _selected(suspect[name], index)
    if len(first) == 1 and len(index) > 2 and index[1] is not None:  # one of many layers in one
        rows = int(first[0]) * suspect.shapes[name][1] + index[1]
        part = suspect.read_rows(name, rows, axes=2)
        return _selected(part, (None, *index[2:]))[np.newaxis]
    return _selected(suspect.read_rows(name, first), (None, *index[1:]))


def _selected(values: Array, index: Index) -> Array:
    for axis, places in enumerate(index):
        if places is not None:
            values = np.take(values, places, axis=axis)
    return values


def _single(values: "np.ndarray[tuple[int], np.dtype[np.floating]]") -> Array:
    """As float32; what does not fit in becomes infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)
