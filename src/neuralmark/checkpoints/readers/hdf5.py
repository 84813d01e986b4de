"""HDF5 files through h5py, without leaving the file: the data sets in it, and their values.

What leads out of the file (external links and storage, soft links, virtual data sets) is refused.
Data sets that lie in one run of bytes are read like any tensor; those in chunks, compressed ones
too, by h5py, in pieces.
"""

import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints.contract import MAX_TENSORS
from neuralmark.checkpoints.readers.dtypes import decode
from neuralmark.checkpoints.readers.hdf5_names import name_of
from neuralmark.errors import MalformedError, MissingExtraError, NeuralMarkError, UnsafeError
from neuralmark.storage.places import Place, bytes_at, read_at

Found = TypeVar("Found")

HEAD = b"\x89HDF\r\n\x1a\n"
INSTALL = "pip install 'neuralmark[keras]'"
BUFFER = 1 << 16
"""Bytes that are fetched at once while the file's structure is read."""
CACHE = 16 << 20
"""Bytes of unpacked chunks that are kept while a piece is read."""
MAX_CHUNK = 64 << 20
MAX_RATIO = 1100
"""Deflate cannot pack better than about 1032 to 1."""
MAX_DEPTH = 64
MAX_NAME = 1 << 10
_FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
_FAILURES = (
    *(OSError, KeyError, ValueError, TypeError, RuntimeError, SystemError, AttributeError),
    *(IndexError, OverflowError, NotImplementedError, MemoryError),
)
"""What h5py raises for files that are damaged."""


@dataclass(frozen=True)
class HdfRange:
    """The bytes of an HDF5 file: a whole file, or a part of one."""

    place: Place
    start: int
    size: int


@dataclass(frozen=True)
class HdfTensor:
    """One data set: its type as numpy writes it, and where its bytes are, if in one run."""

    path: tuple[str, ...]
    descr: str
    shape: tuple[int, ...]
    offset: int | None
    """From the beginning of the file that the HDF5 file is in."""
    packing: str = ""
    """How it is stored, where that is not in one run."""
    unit: int = 1
    obstacle: str | None = None


@dataclass
class HdfTree:
    """All data sets of a file, and the names that groups give themselves."""

    tensors: list[HdfTensor] = field(default_factory=list)
    names: dict[tuple[str, ...], str] = field(default_factory=dict)
    """By the path of a group: its attribute `name`."""
    listed: set[tuple[str, ...]] = field(default_factory=set)
    """Groups that list their layers, as files of Keras 2 do."""


def h5py() -> ModuleType:
    """The package."""
    try:
        import h5py as found
    except ImportError:
        raise MissingExtraError(f"files of Keras need the h5py package: {INSTALL}") from None
    module: ModuleType = found
    return module


class HdfWindow(io.RawIOBase):
    """A part of a file, near or far, as a file of its own."""

    def __init__(self, part: HdfRange, file: BinaryIO) -> None:
        """`file` is the place, opened."""
        super().__init__()
        self._part, self._file, self._at = part, file, 0
        self.failure: NeuralMarkError | OSError | None = None
        """What went wrong while h5py was reading.

        It is raised when h5py is done: it would not survive inside of h5py.
        """

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Read on elsewhere."""
        self._at = offset + (0, self._at, self._part.size)[whence]
        return self._at

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, as far as the part goes; with zeros where nothing can be read."""
        view = memoryview(buffer).cast("B")
        view = view[: max(0, min(len(view), self._part.size - self._at))]
        got = 0
        try:
            if self.failure is None:
                got = read_at(self._file, view, self._part.start + self._at)
                if got < len(view):
                    self.failure = MalformedError(f"{self._part.place}: was cut while it was read")
        except (NeuralMarkError, OSError) as error:
            self.failure = error.with_traceback(None)  # it would hold what called it, too
        view[got:] = bytes(len(view) - got)
        self._at += len(view)
        return len(view)


def using(part: HdfRange, work: Callable[[Any], Found]) -> Found:
    """What is made of the file as h5py sees it; what h5py raises becomes a named error.

    Errors are raised anew, outside of the `except`: one that kept a part of what h5py had opened
    (its context, its traceback) until Python ends would let HDF5 crash there.
    """
    module = h5py()
    with part.place.open("rb", buffering=0) as file:
        window = HdfWindow(part, file)
        failure: BaseException | None = None
        try:
            with module.File(io.BufferedReader(window, BUFFER), "r", rdcc_nbytes=CACHE) as found:
                made = work(found)
        except NeuralMarkError as error:
            failure = error.with_traceback(None)
        except _FAILURES as error:
            words = " ".join(str(error).split())[:200] or type(error).__name__
            failure = MalformedError(f"{part.place}: is not a sound HDF5 file ({words})")
    failure = window.failure or failure
    if failure is not None:
        raise failure
    return made


def read_hdf(part: HdfRange, skipped: set[str]) -> HdfTree:
    """Find all data sets; groups of these names at the top are not looked into."""
    walker = _HdfWalker(part, h5py(), skipped)
    using(part, lambda file: walker.group(file, (), 0))
    return walker.tree


class _HdfWalker:
    """Goes through the groups, along hard links only, into each group once."""

    def __init__(self, part: HdfRange, module: ModuleType, skipped: set[str]) -> None:
        self._part, self._module, self._skipped = part, module, skipped
        self._seen: set[int] = set()
        self._count = 0
        self.tree = HdfTree()

    def group(self, group: Any, path: tuple[str, ...], depth: int) -> None:
        """Note the data sets of a group and of all groups in it."""
        address = self._module.h5o.get_info(group.id).addr
        if address in self._seen or depth > MAX_DEPTH:
            raise MalformedError(f"{self._part.place}: its groups hold each other")
        self._seen.add(address)
        self._attributes(group, path)
        for name in group:
            if not path and name in self._skipped:
                continue
            self._count += 1
            if self._count > MAX_TENSORS or len(name) > MAX_NAME:
                raise MalformedError(f"{self._part.place}: has too many members, or too long names")
            link = group.get(name, getlink=True)
            if not isinstance(link, self._module.HardLink):
                raise UnsafeError(
                    f"{self._part.place}: {'/'.join((*path, name))[:120]!r} is a link to somewhere"
                    " else, which is not followed"
                )
            child = group[name]
            if isinstance(child, self._module.Group):
                self.group(child, (*path, name), depth + 1)
            elif isinstance(child, self._module.Dataset):
                self.tree.tensors.append(self._tensor(child, (*path, name)))

    def _attributes(self, group: Any, path: tuple[str, ...]) -> None:
        attributes = group.attrs
        if "layer_names" in attributes or "layer_names0" in attributes:
            self.tree.listed.add(path)
        if path and path[-1] == "vars" and "name" in attributes:
            name = name_of(self._read, self._module.h5o.get_info(group.id).addr)
            if name is not None and name.isprintable():
                self.tree.names[path[:-1]] = name

    def _read(self, length: int, at: int) -> bytes:
        """Bytes of the file, as far as it goes."""
        length = max(0, min(length, self._part.size - at))
        with self._part.place.open("rb", buffering=0) as file:
            return bytes_at(file, length, self._part.start + at)

    def _tensor(self, found: Any, path: tuple[str, ...]) -> HdfTensor:
        name = "/".join(path)[:120]
        plan = found.id.get_create_plist()
        if found.is_virtual or plan.get_external_count():
            raise UnsafeError(f"{self._part.place}: {name!r} lies in other files")
        descr, shape = found.dtype.str, found.shape
        if shape is None:
            return HdfTensor(path, descr, (), None, obstacle="it has no values")
        if found.dtype.kind not in "fiubV" or found.dtype.hasobject or found.dtype.fields:
            return HdfTensor(path, descr, shape, None, obstacle="it does not hold numbers")
        nbytes, stored = math.prod(shape) * found.dtype.itemsize, found.id.get_storage_size()
        offset = found.id.get_offset()
        if found.chunks is not None:
            return self._chunked(found, HdfTensor(path, descr, shape, None), plan)
        if offset is None and plan.get_layout() == self._module.h5d.COMPACT and stored >= nbytes:
            return HdfTensor(path, descr, shape, None, "compact")
        if nbytes and (offset is None or stored < nbytes or offset + nbytes > self._part.size):
            raise MalformedError(f"{self._part.place}: {name!r} does not have all of its bytes")
        return HdfTensor(path, descr, shape, self._part.start + (offset or 0))

    def _chunked(self, found: Any, plain: HdfTensor, plan: Any) -> HdfTensor:
        """A data set in chunks; what it claims must be what its chunks can hold."""
        name = "/".join(plain.path)[:120]
        filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
        odd = [number for number in filters if number not in _FILTERS]
        if odd:
            why = f"it is packed with filter {odd[0]}, which is not used"
            return HdfTensor(plain.path, plain.descr, plain.shape, None, obstacle=why)
        size = math.prod(plain.shape) * found.dtype.itemsize
        chunk = math.prod(found.chunks) * found.dtype.itemsize
        if chunk > MAX_CHUNK or size > MAX_RATIO * found.id.get_storage_size():
            raise UnsafeError(f"{self._part.place}: {name!r} claims more than it can unpack to")
        row = math.prod(plain.shape[1:])
        unit = found.chunks[0] * row
        words = "+".join(_FILTERS[number] for number in filters)
        return HdfTensor(
            plain.path,
            plain.descr,
            plain.shape,
            None,
            f"chunks {words}".strip(),
            unit if 0 < unit <= MAX_CHUNK // 16 else 1,
        )


@dataclass(frozen=True)
class HdfDecoder:
    """Values of a data set that h5py must unpack."""

    part: HdfRange
    tensor: HdfTensor
    dtype: str
    nbytes: int = 0

    @property
    def unit(self) -> int:
        """The rows of a chunk."""
        return self.tensor.unit

    def values(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The elements start … stop-1, in the order of their indices."""
        if start == stop:
            return np.empty(0, np.float32)
        return using(self.part, lambda file: self._read(file, start, stop))

    def _read(self, file: Any, start: int, stop: int) -> npt.NDArray[np.float32]:
        found = file["/".join(self.tensor.path)]
        if found.shape != self.tensor.shape or found.dtype.str != self.tensor.descr:
            raise MalformedError(f"{self.part.place}: was changed while it was read")
        parts = [self._piece(found[index]) for index in runs(found.shape, start, stop)]
        return np.concatenate(parts)

    def _piece(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        with np.errstate(all="ignore"):
            return np.asarray(decode(raw, self.dtype), np.float32)


def runs(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[int | slice, ...]]:
    """Indices that give the elements start … stop-1 in order: blocks of whole rows and parts.

    >>> list(runs((3, 4), 2, 9))
    [(0, slice(2, 4, None)), (slice(1, 2, None), Ellipsis), (2, slice(0, 1, None))]
    """
    if not shape:
        yield ()
        return
    row = math.prod(shape[1:])
    if len(shape) == 1:
        yield (slice(start, stop),)
        return
    first, last = -(-start // row), stop // row
    if first > last:
        yield from _within(shape, start // row, start, stop, row)
        return
    if start < first * row:
        yield from _within(shape, first - 1, start, first * row, row)
    if first < last:
        yield (slice(first, last), ...)  # type: ignore[misc]
    if last * row < stop:
        yield from _within(shape, last, last * row, stop, row)


def _within(
    shape: tuple[int, ...], index: int, start: int, stop: int, row: int
) -> Iterator[tuple[int | slice, ...]]:
    """A part of one row."""
    for rest in runs(shape[1:], start - index * row, stop - index * row):
        yield (index, *rest)
