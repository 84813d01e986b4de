"""Tensors as they are read for a key: as stored, turned, or with all their rows of one size."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints import Checkpoint, TensorInfo
from neuralmark.checkpoints.readers.dtypes import Raw, decode
from neuralmark.core.carriers import Positions
from neuralmark.core.key import Float


class Rows:
    """Divides every output row of a tensor, which comes in pieces, by its root mean square.

    Whoever folds a norm into the layer before it scales its rows; levelled, they are alike again.
    """

    def __init__(self, squares: Float, length: int) -> None:
        """The sum of squares of each row, and how many weights a row has."""
        with np.errstate(divide="ignore"):
            self._factors = np.where(squares > 0, np.sqrt(length / squares), 0.0)
        self._factors[~np.isfinite(squares)] = np.nan  # such a row cannot be read
        self._length, self._at = length, 0

    @classmethod
    def of(cls, checkpoint: Checkpoint, info: TensorInfo, transposed: bool) -> "Rows | None":
        """Of a matrix or a kernel, after a pass over it; None of anything else."""
        shape = info.shape[::-1] if transposed else info.shape
        if len(shape) < 2:
            return None
        length, at = info.size // shape[0], 0
        squares = np.zeros(shape[0])
        for raw in pieces(checkpoint, info, transposed):
            values = decode(raw, info.dtype)
            rows, cuts = _cut(at, len(values), length)
            squares[rows] += np.add.reduceat(np.square(values, dtype=np.float64), cuts)
            at += len(values)
        return cls(squares, length)

    def levelled(self, values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """The next values of the tensor, divided."""
        rows, cuts = _cut(self._at, len(values), self._length)
        self._at += len(values)
        counts = np.diff(cuts, append=len(values))
        levelled: npt.NDArray[np.floating] = values * np.repeat(
            self._factors[rows].astype(values.dtype), counts
        )
        return levelled


def _cut(at: int, count: int, length: int) -> tuple[slice, Positions]:
    """Which rows the elements at … at+count-1 are of, and where each begins among them."""
    first, last = at // length, (at + count - 1) // length
    return slice(first, last + 1), np.maximum(np.arange(first, last + 1) * length - at, 0)


def stored(checkpoint: Checkpoint, info: TensorInfo, whole: bool) -> Iterator[Raw]:
    """The stored bytes: in pieces, or in one."""
    found: Iterator[Raw] = checkpoint.read(info.name)
    return iter([np.concatenate([piece.copy() for piece in found])]) if whole else found


def pieces(checkpoint: Checkpoint, info: TensorInfo, transposed: bool) -> Iterator[Raw]:
    """The bytes in the order in which they are read for a key."""
    for piece in stored(checkpoint, info, transposed):
        yield turned(piece, info) if transposed else piece


def turned(whole: Raw, info: TensorInfo) -> Raw:
    """The bytes of the transposed matrix."""
    elements = whole.reshape(*info.shape, len(whole) // info.size)
    return np.ascontiguousarray(elements.transpose(1, 0, 2)).reshape(-1)
