"""The batch files of CIFAR. They are pickles, and no pickle is executed here.

The checkpoints' inert reader walks the opcodes; what it gives are records. A batch is a dictionary
of labels and of one array of pixels, which is recognised in the three forms that Python 2, Python 3
and newer numpy write, and taken from its bytes. Anything else in the file stays a record.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from neuralmark.checkpoints.readers.inert import Call, Global, Reader
from neuralmark.checkpoints.readers.pickled import load
from neuralmark.errors import DamagedDataSetError, MalformedError, UnsafeError
from neuralmark.zoo.sources import DataPart, Labels, Pixels

SHAPE = (3, 32, 32)
MOST_BYTES = 512 << 20
"""CIFAR-100's training file, the longest, has 155 MB."""

_ROOTS = ("numpy.core.", "numpy._core.")


class _Whole(Reader):
    """A reader for a file whose size was checked: checkpoints keep pickles shorter than this."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__(file, size)
        self._left, self._capped = size, False


def read_batch(path: Path, label: str, classes: int) -> tuple[Pixels, Labels]:
    """Pixels (N, 3, 32, 32) and labels of a batch file."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise UnsafeError(f"{path}: {size:,} bytes; no file of CIFAR is so long")
        with path.open("rb") as file:
            value = load(_Whole(file, size)).value
    except OSError as error:
        raise DamagedDataSetError(f"{path}: cannot be read ({error.strerror})") from None
    except MalformedError as error:
        raise DamagedDataSetError(f"{path}: no batch of CIFAR ({error})") from None
    if not isinstance(value, dict):
        raise DamagedDataSetError(f"{path}: no batch of CIFAR: it holds no dictionary")
    table = {key.decode("latin-1") if isinstance(key, bytes) else key: value[key] for key in value}
    pixels = _array(table.get("data"))
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != math.prod(SHAPE):
        raise DamagedDataSetError(
            f"{path}: not a batch of CIFAR: its 'data' is not a table of 3,072 bytes"
        )
    labels = table.get(label)
    if not _are_labels(labels, len(pixels), classes):
        raise DamagedDataSetError(
            f"{path}: its {label!r} are not {len(pixels):,} numbers from 0 to {classes - 1}"
        )
    return pixels.reshape(-1, *SHAPE), np.array(labels, np.int64)


def read_part(
    paths: Sequence[Path], label: str, classes: int, complete: int, limit: int | None
) -> DataPart:
    """Batches one after the other, until there are enough images."""
    images, labels, have = [], [], 0
    for path in paths:
        if limit is not None and have >= limit:
            break
        pixels, numbers = read_batch(path, label, classes)
        images.append(pixels)
        labels.append(numbers)
        have += len(numbers)
    found = have if len(images) == len(paths) else complete
    return DataPart(np.concatenate(images)[:limit], np.concatenate(labels)[:limit], found, complete)


def _are_labels(labels: Any, count: int, classes: int) -> bool:
    return (
        isinstance(labels, list)
        and len(labels) == count
        and all(type(each) is int and 0 <= each < classes for each in labels)
    )


def _array(value: Any) -> Pixels | None:
    """The array that a record describes, if it is one of plain bytes."""
    if not isinstance(value, Call) or not isinstance(value.function, Global):
        return None
    name = _plain(value.function)
    if name == "multiarray._reconstruct":
        return _reconstructed(value.state)
    if name == "numeric._frombuffer":
        return _buffered(value.args)
    return None


def _plain(name: Global) -> str:
    for root in _ROOTS:
        if name.module.startswith(root):
            return f"{name.module.removeprefix(root)}.{name.name}"
    return ""


def _reconstructed(state: Any) -> Pixels | None:
    """The state is (version, shape, dtype, Fortran order, bytes)."""
    if not isinstance(state, tuple) or len(state) != 5:
        return None
    _, shape, dtype, fortran, raw = state
    return None if fortran is not False else _shaped(raw, dtype, shape)


def _buffered(args: tuple[Any, ...]) -> Pixels | None:
    """The arguments are (bytes, dtype, shape, order)."""
    if len(args) != 4 or args[3] != "C":
        return None
    return _shaped(args[0], args[1], args[2])


def _shaped(raw: Any, dtype: Any, shape: Any) -> Pixels | None:
    data = _bytes(raw)
    if data is None or not _is_uint8(dtype) or not isinstance(shape, tuple):
        return None
    if not all(type(side) is int and 0 <= side <= len(data) for side in shape):
        return None
    if math.prod(shape) != len(data):
        return None
    return np.frombuffer(data, np.uint8).reshape(shape)


def _is_uint8(dtype: Any) -> bool:
    return (
        isinstance(dtype, Call)
        and isinstance(dtype.function, Global)
        and dtype.function.is_named("numpy", "dtype")
        and dtype.args[:1] in (("u1",), (b"u1",))
    )


def _bytes(raw: Any) -> bytes | None:
    """Bytes as Python 3 writes them, as Python 2 does (a character per byte), or encoded."""
    if isinstance(raw, Call):
        encoded = isinstance(raw.function, Global) and raw.function.is_named("_codecs", "encode")
        if not encoded or len(raw.args) != 2 or raw.args[1] not in ("latin1", "latin-1"):
            return None
        raw = raw.args[0]
    if isinstance(raw, bytes):
        return raw
    try:
        return raw.encode("latin-1") if isinstance(raw, str) else None
    except UnicodeEncodeError:
        return None
