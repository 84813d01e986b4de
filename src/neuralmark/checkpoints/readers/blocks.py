"""Matrices whose values are computed as they are read, in blocks of rows: quantised, merged.

Memory is a few blocks and one window, whatever the size of the matrix.
"""

import math
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints.contract import Checkpoint
from neuralmark.checkpoints.readers.dtypes import FLOATS, Raw, decode
from neuralmark.errors import MalformedError
from neuralmark.storage.places import Place

Values = npt.NDArray[np.float32]
Numbers = npt.NDArray[Any]

WINDOW_BYTES = 32 << 20
"""Of a matrix that is stored turned, this much is held while rows are made of its columns."""
KEPT_BYTES = 64 << 20
"""Windows and small tensors that are kept for the next who asks, in all."""
STRETCH_BYTES = 4 << 20
LONG_ROW = 1 << 18
"""Longer rows are decoded in parts."""
BLOCK_ELEMENTS = 1 << 19
"""A run of whole rows is computed in blocks of about this many elements."""

_WHOLE: dict[str, np.dtype[Any]] = {
    **{"I8": np.dtype("i1"), "U8": np.dtype("u1"), "BOOL": np.dtype("u1")},
    **{"I16": np.dtype("<i2"), "U16": np.dtype("<u2"), "I32": np.dtype("<i4")},
    **{"U32": np.dtype("<u4"), "I64": np.dtype("<i8"), "U64": np.dtype("<u8")},
}


class Kept:
    """What was read last, up to a number of bytes; one for all tensors of a checkpoint."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._lock = threading.Lock()
        self._held: OrderedDict[object, Numbers] = OrderedDict()

    def get(self, key: object, make: Callable[[], Numbers]) -> Numbers:
        """What is held under a key, or what `make` gives."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        made = make()
        with self._lock:
            self._held[key] = made
            while len(self._held) > 1 and self._bytes() > KEPT_BYTES:
                self._held.popitem(last=False)
        return made

    def _bytes(self) -> int:
        return sum(each.nbytes for each in self._held.values())


@dataclass(frozen=True)
class Part:
    """A stored tensor that others are computed from."""

    checkpoint: Checkpoint
    name: str
    kept: Kept

    @property
    def dtype(self) -> str:
        """As it is stored."""
        return self.checkpoint.info(self.name).dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """As it is stored."""
        return self.checkpoint.info(self.name).shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.checkpoint.info(self.name).size

    @property
    def file(self) -> Place:
        """The file that holds it."""
        return self.checkpoint.span(self.name).file

    @property
    def readable(self) -> bool:
        """Whether any run of it can be read, as numbers."""
        info = self.checkpoint.info(self.name)
        known = info.dtype in FLOATS or info.dtype in _WHOLE or info.dtype == "F8_E8M0"
        return known and info.obstacle is None and self.checkpoint.in_order(self.name)

    def raw(self, start: int, stop: int) -> Raw:
        """The bytes of the elements start … stop-1."""
        return self.checkpoint.read_run(self.name, start, stop)

    def run(self, start: int, stop: int) -> Numbers:
        """The elements start … stop-1, as numbers of their kind."""
        raw = self.raw(start, stop)
        if self.dtype in _WHOLE:
            return raw.view(_WHOLE[self.dtype])
        if self.dtype == "F8_E8M0":
            return raw
        with np.errstate(over="ignore", invalid="ignore"):
            return decode(raw, self.dtype).astype(np.float32, copy=False)

    def whole(self) -> Numbers:
        """All of it, kept; for small tensors."""
        return self.kept.get((self.name, "whole"), lambda: self.run(0, self.size))

    def bad(self, why: str) -> MalformedError:
        """The error for one that does not fit."""
        return MalformedError(f"{self.checkpoint.path}: {self.name[:80]!r} {why}")


@dataclass(frozen=True)
class Columns:
    """Columns of a stored matrix: a window of them is read at once and kept.

    The stored bytes are read in long stretches, never in many short ones.
    """

    part: Part
    rows: int
    width: int
    first: int = 0
    """Where the matrix begins in the stored tensor, in elements."""

    def between(self, low: int, high: int) -> Numbers:
        """The columns low … high-1, all rows."""
        step = max(1, WINDOW_BYTES // max(1, 4 * self.rows))
        pieces = []
        for window in range(low // step, -(-high // step)):
            start = window * step
            kept = self._window(start, min(start + step, self.width))
            pieces.append(kept[:, max(low - start, 0) : high - start])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)

    def _window(self, low: int, high: int) -> Numbers:
        key = (self.part.name, self.first, low)
        return self.part.kept.get(key, lambda: self._read(low, high))

    def _read(self, low: int, high: int) -> Numbers:
        many = max(1, STRETCH_BYTES // max(1, 4 * self.width))
        found: Numbers | None = None
        for top in range(0, self.rows, many):
            below = min(top + many, self.rows)
            run = self.part.run(self.first + top * self.width, self.first + below * self.width)
            piece = run.reshape(below - top, self.width)[:, low:high]
            if found is None:
                found = np.empty((self.rows, high - low), piece.dtype)
            found[top:below] = piece
        assert found is not None
        return found


class ComputedBlocks(ABC):
    """A decoder of a matrix (or a stack of them, its first axes counted as rows)."""

    def __init__(self, rows: int, length: int, nbytes: int) -> None:
        """`nbytes` is how long the run of bytes is that holds most of it."""
        self.rows, self.length, self._nbytes = rows, length, nbytes

    @abstractmethod
    def block(self, top: int, below: int, left: int, right: int) -> Values:
        """The rows top … below-1 of the columns left … right-1."""

    @property
    def unit(self) -> int:
        """A row, or a part of a very long one."""
        return min(self.length, LONG_ROW)

    @property
    def nbytes(self) -> int:
        """As it was given."""
        return self._nbytes

    def values(self, start: int, stop: int) -> Values:
        """The elements start … stop-1, in the order of their indices."""
        out, at = np.empty(stop - start, np.float32), 0
        many = max(1, BLOCK_ELEMENTS // self.length)
        with np.errstate(all="ignore"):  # what is not finite is found by who reads it
            while start < stop:
                row, left = divmod(start, self.length)
                if left or stop - start < self.length:
                    right = min(self.length, left + stop - start, left + BLOCK_ELEMENTS)
                    below = row + 1
                else:
                    right, below = self.length, row + min((stop - start) // self.length, many)
                    if self.length > BLOCK_ELEMENTS:
                        right, below = BLOCK_ELEMENTS, row + 1
                found = self.block(row, below, left, right).reshape(-1)
                out[at : at + len(found)] = found
                at, start = at + len(found), start + len(found)
        return out


def stacked(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and length of a tensor of this shape."""
    return math.prod(shape[:-1]), shape[-1]
