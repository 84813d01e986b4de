"""The contract of a checkpoint format: names(), info(), read(), write().

A format module (one file beside this one; its name is the format's name) has two functions:

    matches(path, head) -> bool          does this file look like mine? (magic bytes, not suffix)
    open(path) -> Checkpoint             parse the headers; named errors, bounded memory

One whose models are folders has `PARTS`, too: how the files are named that show it to a search
(`whole_folder`), and `DEEP = True` where folders in it are parts of the model.

`path` is a `Place`: a path, or something far of which only what is asked for is fetched.

Almost every format keeps a tensor as one run of bytes in a file. Such a format only fills in a
table of `StoredTensor`s and inherits reading, writing and in-place change from here. A tensor
whose values must be computed (quantised, merged) has a `Decoder`: it can be read, not written.
"""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints.readers import strided
from neuralmark.checkpoints.readers.dtypes import ITEMSIZE, Raw
from neuralmark.checkpoints.readers.strided import Strides
from neuralmark.errors import MalformedError, UnsuitableTensorError
from neuralmark.storage import files
from neuralmark.storage.places import FarPlace, Place, expect, local, read_at

CHUNK_BYTES = 2 << 20
"""Tensors are read and written in pieces of this many bytes."""

MAX_TENSORS = 1_000_000
"""More tensors than this in one checkpoint are refused."""

Edits = Mapping[str, Callable[[], Iterator[bytes]]]
"""For each edited tensor, by stored name: a function that yields its new bytes in order."""


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    obstacle: str | None = None
    """Why the mark cannot be read from or written to it as it is stored, or None."""
    stored: str | None = None
    """As what it is stored, where that is not its dtype: the name of a quantisation."""
    fixed: str | None = None
    """Why it can be read but not marked, and what to do instead; None where it can be."""

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for length in self.shape:
            size *= length
        return size

    @property
    def nbytes(self) -> int:
        """Number of bytes of its elements."""
        return self.size * ITEMSIZE.get(self.dtype, 0)


class Decoder(Protocol):
    """Computes the values of a tensor from what is stored: dequantised, merged, put in order."""

    @property
    def unit(self) -> int:
        """How many elements are decoded together: runs are cheapest from multiple to multiple."""

    @property
    def nbytes(self) -> int:
        """How many bytes hold the tensor, from its offset on; 0 where they do not lie together."""

    def values(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The elements start … stop-1, in the order of their indices."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor and the run of bytes that holds it."""

    info: TensorInfo
    file: Place
    offset: int
    strides: Strides | None = None
    """Where the elements do not lie in the order of their indices: how far apart they lie."""
    folded: tuple[int, ...] | None = None
    """The shape that the strides are of, where that is not the tensor's own (heads apart)."""
    decoder: Decoder | None = None
    """What computes the values; the dtype is then F32, and the bytes are not the values'."""
    also: tuple[Place, ...] = ()
    """Other files that the decoder reads."""

    @property
    def layout(self) -> tuple[tuple[int, ...], Strides] | None:
        """Shape and strides of elements that do not lie in order; None of those that do."""
        if self.strides is None:
            return None
        return self.info.shape if self.folded is None else self.folded, self.strides

    @property
    def nbytes(self) -> int:
        """Length of the run of bytes that holds it."""
        if self.decoder is not None:
            return self.decoder.nbytes
        if self.layout is None:
            return self.info.nbytes
        return strided.extent(*self.layout) * ITEMSIZE[self.info.dtype]

    def run(self, start: int, stop: int) -> Raw:
        """The stored bytes of the elements start … stop-1, of a tensor that lies in order."""
        if self.decoder is not None:
            return np.ascontiguousarray(self.decoder.values(start, stop), "<f4").view(np.uint8)
        itemsize = ITEMSIZE[self.info.dtype]
        run = np.empty((stop - start) * itemsize, np.uint8)
        with self.file.open("rb", buffering=0) as file:
            if read_at(file, run.data, self.offset + start * itemsize) < len(run):
                raise self.cut_off()
        return run

    def cut_off(self) -> MalformedError:
        """The error for a file that ends too early."""
        return MalformedError(f"{self.file}: ends inside {self.info.name[:80]!r}")


@dataclass(frozen=True)
class Patch:
    """Bytes to put at an offset of a file."""

    file: Path
    offset: int
    data: bytes


@dataclass(frozen=True)
class Copying:
    """A copy that is being made: it ends by putting new bytes into some of its tensors."""

    finish: Callable[[Edits], None]


@contextmanager
def in_background(work: Callable[[threading.Event], object]) -> Iterator[Callable[[], None]]:
    """Work in a thread until it is waited for; whoever leaves earlier stops it."""
    failures: list[BaseException] = []
    stop = threading.Event()

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:  # handed to who waits
            failures.append(error)

    thread = threading.Thread(target=run)

    def wait() -> None:
        thread.join()
        if failures:
            raise failures[0]

    thread.start()
    try:
        yield wait
    finally:
        stop.set()
        thread.join()


class Checkpoint:
    """An opened checkpoint whose tensors are runs of bytes in one or more files."""

    def __init__(self, path: Place, form: str, tensors: Mapping[str, StoredTensor]) -> None:
        """`path` is what the user named: a file or a folder."""
        self.path = path
        self.format = form
        self.metadata: Mapping[str, str] = {}
        """What the header says besides the tensors: untrusted text by name."""
        self.heads = 0
        """How many attention heads the file itself says that the model has; 0: it does not say."""
        self.wants = ""
        """What is missing for the whole model to be read, and how to give it."""
        self._tensors = tensors

    def showing(self, tensors: Mapping[str, StoredTensor]) -> Self:
        """The same checkpoint with another table of its tensors: some computed from others."""
        twin = copy.copy(self)
        twin._tensors = tensors
        return twin

    def others(self) -> "list[tuple[str, Checkpoint]]":
        """Further tables of tensors in the same file, by name (torch: state_dict_ema and such)."""
        return []

    def with_others(self) -> "Checkpoint":
        """All tables in one, the others' names under theirs: for whoever only reads."""
        tables = self.others()
        if not tables:
            return self
        tensors = dict(self._tensors)
        for table, other in tables:
            for name in other.names():
                stored = other.span(name)
                place = f"[{table}].{name}"  # no name of the model begins so
                tensors.setdefault(place, replace(stored, info=replace(stored.info, name=place)))
        return Checkpoint(self.path, self.format, tensors)

    def names(self) -> list[str]:
        """Stored names, in the order of the file."""
        return list(self._tensors)

    def info(self, name: str) -> TensorInfo:
        """Dtype and shape of a tensor."""
        return self._tensors[name].info

    def files(self) -> list[Place]:
        """The files that hold tensors, each once."""
        every = (file for t in self._tensors.values() for file in (t.file, *t.also))
        return list(dict.fromkeys(every)) or [self.path]

    def stamps(self) -> list[tuple[Any, ...]]:
        """What changes with each file, to see whether one did, or was swapped, while it was read.

        Its owner can set the time of the last change of the content, but not that of the inode.
        """
        return [_stamp(file) for file in self.files()]

    def pins(self) -> dict[str, str]:
        """To which version of each far file all reading is held, by the file's name."""
        told = {file.name: file.pinned() for file in self.files() if isinstance(file, FarPlace)}
        return {name: pin for name, pin in told.items() if pin is not None}

    def expect(self, names: Iterable[str]) -> None:
        """Say which tensors will be read, in this order: what is far is fetched ahead."""
        ranges: dict[Place, list[tuple[int, int]]] = {}
        for name in names:
            stored = self._tensors[name]
            if isinstance(stored.file, FarPlace) and stored.info.obstacle is None:
                ranges.setdefault(stored.file, []).append((stored.offset, stored.nbytes))
        for file, wanted in ranges.items():
            expect(file, wanted)

    def span(self, name: str) -> StoredTensor:
        """Where the bytes of a tensor are; for a compressed one, where its packed bytes begin."""
        return self._tensors[name]

    def tied(self) -> set[str]:
        """Tensors whose bytes are those of a tensor before them (tied weights)."""
        seen: set[tuple[Place, int]] = set()
        tied = set()
        for name, stored in self._tensors.items():
            place = (stored.file, stored.offset)
            if stored.info.nbytes and place in seen:
                tied.add(name)
            seen.add(place)
        return tied

    def overlap(self, names: Iterable[str]) -> tuple[str, str] | None:
        """Two of these tensors that share bytes (tied weights), or None."""
        spans = sorted(
            (self._tensors[name] for name in names), key=lambda s: (str(s.file), s.offset)
        )
        for one, two in pairwise(spans):
            if one.file == two.file and one.offset + one.nbytes > two.offset:
                return one.info.name, two.info.name
        return None

    def read(self, name: str) -> Iterator[Raw]:
        """The tensor's stored bytes, in pieces of whole elements, at most CHUNK_BYTES each.

        A piece is valid until the next one is asked for: the buffer is used again.
        """
        stored = self._tensors[name]
        if stored.info.obstacle is not None:
            raise UnsuitableTensorError(f"{name[:80]!r} cannot be read: {stored.info.obstacle}")
        self.expect([name])
        if stored.decoder is not None:
            return _decoded(stored)
        if stored.layout is not None:
            itemsize = ITEMSIZE[stored.info.dtype]
            return strided.read(stored.file, stored.offset, itemsize, *stored.layout)
        return _pieces(stored)

    def in_order(self, name: str) -> bool:
        """Whether any run of elements can be read without the others."""
        return self._tensors[name].strides is None

    def read_run(self, name: str, start: int, stop: int) -> Raw:
        """The stored bytes of the elements start … stop-1, of a tensor that lies in order."""
        return self._tensors[name].run(start, stop)

    @contextmanager
    def copying(self, out: Path) -> "Iterator[Copying]":
        """Copy to `out` (which must not exist) in the background, until told what to replace."""
        source = local(self.path)
        with in_background(partial(files.copy_tree, source, out)) as wait:

            def finish(edits: Edits) -> None:
                wait()
                single = source.is_file()
                self.apply(edits, lambda file: out if single else out / file.relative_to(source))

            yield Copying(finish)

    def write(self, out: Path, edits: Edits) -> None:
        """Write a copy to `out` (which must not exist) with some tensors' bytes replaced."""
        with self.copying(out) as copy:
            copy.finish(edits)

    def apply(self, edits: Edits, target: Callable[[Path], Path]) -> None:
        """Put the new bytes of the edited tensors into the files that `target` names, and sync."""
        touched: dict[Path, None] = {}
        for name, pieces in edits.items():
            stored = self._tensors[name]
            destination = target(local(stored.file))
            touched[destination] = None
            if stored.layout is not None:
                itemsize = ITEMSIZE[stored.info.dtype]
                strided.write(destination, stored.offset, itemsize, stored.layout, pieces())
                continue
            with open(destination, "r+b", buffering=0) as file:
                at = stored.offset
                for piece in pieces():
                    files.write_at(file.fileno(), piece, at)
                    at += len(piece)
        for patch in self.repairs(list(edits), target):
            with open(patch.file, "r+b", buffering=0) as file:
                files.write_at(file.fileno(), patch.data, patch.offset)
        for destination in touched:
            files.sync(destination)

    def repairs(self, names: list[str], target: Callable[[Path], Path]) -> list[Patch]:
        """Checksums to renew after the bytes of these tensors changed (zip formats have some)."""
        return []

    def in_place_ranges(self, names: list[str]) -> list[tuple[Path, int, int]]:
        """Every (file, offset, length) that changing these tensors in place will touch."""
        spans = [self._tensors[name] for name in names]
        return [(local(s.file), s.offset, s.nbytes) for s in spans]


def _stamp(file: Place) -> tuple[Any, ...]:
    if isinstance(file, FarPlace):
        return file.stamp()
    s = file.stat()
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


def _pieces(stored: StoredTensor) -> Iterator[Raw]:
    buffer = np.empty(min(CHUNK_BYTES, stored.info.nbytes), np.uint8)
    with stored.file.open("rb", buffering=0) as file:
        at, left = stored.offset, stored.info.nbytes
        while left:
            piece = buffer[: min(left, CHUNK_BYTES)]
            if read_at(file, piece.data, at) != len(piece):
                raise stored.cut_off()
            yield piece
            at, left = at + len(piece), left - len(piece)


def _decoded(stored: StoredTensor) -> Iterator[Raw]:
    """Runs of whole units, of about a chunk each."""
    assert stored.decoder is not None
    size, unit = stored.info.size, stored.decoder.unit
    step = max(1, CHUNK_BYTES // 4 // unit) * unit
    for start in range(0, size, step):
        yield stored.run(start, min(start + step, size))
