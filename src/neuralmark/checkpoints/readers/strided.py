"""Tensors whose elements do not lie in the order of their indices, such as channels_last ones.

torch stores how far apart they lie. Such a tensor is read whole, and written back as it lay.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints.readers.dtypes import Raw
from neuralmark.errors import MalformedError
from neuralmark.storage import files
from neuralmark.storage.places import Place, read_at

Strides = tuple[int, ...]
"""Elements from one index to the next, by dimension."""


def extent(shape: tuple[int, ...], strides: Strides) -> int:
    """Count the elements from the first to the last one that is used."""
    if 0 in shape:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(shape, strides, strict=True))


def is_contiguous(shape: tuple[int, ...], strides: Strides) -> bool:
    """Whether the elements lie in the order of their indices."""
    expected = 1
    for length, step in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and step != expected:
            return 0 in shape
        expected *= length
    return True


def is_distinct(shape: tuple[int, ...], strides: Strides) -> bool:
    """Whether every element surely has a place of its own: none is shown twice (or 400 GB of one).

    True where each dimension steps over all that the smaller steps reach.
    """
    reach = 1
    for step, length in sorted(zip(strides, shape, strict=True)):
        if length == 1:
            continue
        if step < reach:
            return False
        reach = (length - 1) * step + reach
    return True


def read(
    path: Place, offset: int, itemsize: int, shape: tuple[int, ...], strides: Strides
) -> Iterator[Raw]:
    """The bytes of the elements in the order of their indices, in one piece."""
    with path.open("rb", buffering=0) as file:
        block = _block(file, offset, extent(shape, strides) * itemsize)
    yield np.ascontiguousarray(_view(block, itemsize, shape, strides)).reshape(-1)


def write(
    path: Path,
    offset: int,
    itemsize: int,
    layout: tuple[tuple[int, ...], Strides],
    pieces: Iterable[bytes],
) -> None:
    """Put new bytes, in the order of the indices, where the elements lie."""
    shape, strides = layout
    with path.open("r+b", buffering=0) as file:
        block = _block(file, offset, extent(shape, strides) * itemsize)
        new = np.frombuffer(b"".join(bytes(piece) for piece in pieces), np.uint8)
        _view(block, itemsize, shape, strides)[...] = new.reshape(*shape, itemsize)
        files.write_at(file.fileno(), block.tobytes(), offset)


def _view(block: Raw, itemsize: int, shape: tuple[int, ...], strides: Strides) -> Raw:
    steps = (*(step * itemsize for step in strides), 1)
    view: npt.NDArray[np.uint8] = np.lib.stride_tricks.as_strided(block, (*shape, itemsize), steps)
    return view


def _block(file: BinaryIO, offset: int, length: int) -> Raw:
    block = np.empty(length, np.uint8)
    if read_at(file, block.data, offset) < length:
        raise MalformedError("a file ends inside a tensor")
    return block
