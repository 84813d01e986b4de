"""Tensors that were saved in parts, by the processes that trained them: read as one.

A part is a box inside the tensor: where it begins and how long it is along each dimension. Parts
must cover the tensor exactly, so that what is read is never more than what is stored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints.contract import Checkpoint, StoredTensor, TensorInfo
from neuralmark.checkpoints.readers import strided
from neuralmark.checkpoints.readers.dtypes import FLOATS, ITEMSIZE, decode
from neuralmark.errors import MalformedError
from neuralmark.storage.places import Place

Shape = tuple[int, ...]
Values = npt.NDArray[np.float32]


def product(lengths: Sequence[int]) -> int:
    """How many elements a shape has."""
    count = 1
    for length in lengths:
        count *= length
    return count


class Source:
    """The stored elements of a part, as numbers; found when they are first asked for."""

    def __init__(self, find: Callable[[], StoredTensor]) -> None:
        """`find` says where the part lies."""
        self._find = find

    @classmethod
    def of(cls, stored: StoredTensor) -> "Source":
        """What is known already."""
        return cls(lambda: stored)

    @cached_property
    def stored(self) -> StoredTensor:
        """Where the part lies."""
        return self._find()

    @cached_property
    @np.errstate(all="ignore")
    def _turned(self) -> Values:
        """All elements of a part that does not lie in order."""
        layout = self.stored.layout
        assert layout is not None
        dtype = self.stored.info.dtype
        pieces = strided.read(self.stored.file, self.stored.offset, ITEMSIZE[dtype], *layout)
        return np.concatenate([decode(piece, dtype) for piece in pieces]).astype(np.float32)

    @np.errstate(all="ignore")
    def values(self, start: int, stop: int) -> Values:
        """The elements start … stop-1 of the part, in the order of their indices."""
        if self.stored.layout is not None:
            return self._turned[start:stop]
        return decode(self.stored.run(start, stop), self.stored.info.dtype).astype(
            np.float32, copy=False
        )


@dataclass(frozen=True)
class JoinedPart:
    """A box of a tensor: where it begins, how long it is, and what holds its elements."""

    offsets: Shape
    sizes: Shape
    source: Source
    skip: int = 0
    """Elements of the source before its first."""


class PartedCheckpoint(Checkpoint):
    """A checkpoint whose tensors lie in parts: `files` names all that hold some."""

    def __init__(
        self,
        path: Place,
        form: str,
        tensors: Mapping[str, StoredTensor],
        files: Sequence[Place],
    ) -> None:
        """`path` is what the user named: a folder."""
        super().__init__(path, form, tensors)
        self._files = list(files)

    def files(self) -> list[Place]:
        """All files, each once."""
        return list(self._files)


class JoinedParts:
    """A `Decoder` that puts parts together, row by row."""

    nbytes = 0

    def __init__(self, shape: Shape, parts: Sequence[JoinedPart]) -> None:
        """`parts` cover the tensor exactly (see `covered`)."""
        self._shape = shape
        self._parts = sorted(parts, key=lambda part: part.offsets)

    @property
    def unit(self) -> int:
        """A row."""
        return max(1, product(self._shape[1:]))

    def values(self, start: int, stop: int) -> Values:
        """Read the rows that the elements lie in, from every part that holds some of them."""
        if not self._shape:
            return self._parts[0].source.values(self._parts[0].skip, self._parts[0].skip + 1)
        unit = self.unit
        first, last = start // unit, -(-stop // unit)
        rows = np.empty((last - first, *self._shape[1:]), np.float32)
        for part in self._parts:
            low, high = part.offsets[0], part.offsets[0] + part.sizes[0]
            begin, end = max(first, low), min(last, high)
            if begin >= end or not product(part.sizes):
                continue
            width = product(part.sizes[1:])
            run = part.source.values(
                part.skip + (begin - low) * width, part.skip + (end - low) * width
            )
            boxes = zip(part.offsets[1:], part.sizes[1:], strict=True)
            place = (slice(begin - first, end - first), *(slice(o, o + s) for o, s in boxes))
            rows[place] = run.reshape(end - begin, *part.sizes[1:])
        return rows.reshape(-1)[start - first * unit : stop - first * unit]


def covered(shape: Shape, parts: Sequence[tuple[Shape, Shape]]) -> bool:
    """Whether boxes (offsets, sizes) cover a tensor, each element once."""
    if any(len(o) != len(shape) or len(s) != len(shape) for o, s in parts):
        return False
    boxes = [(o, s) for o, s in parts if product(s) or not product(shape)]
    within = all(
        a + b <= length for o, s in boxes for a, b, length in zip(o, s, shape, strict=True)
    )
    if not within or sum(product(s) for _, s in boxes) != product(shape):
        return False
    return not product(shape) or _apart(boxes, 0)


def _apart(boxes: list[tuple[Shape, Shape]], axis: int) -> bool:
    """Whether no two boxes overlap: cut along an axis into slabs, each looked at along the next.

    Boxes that have an element in common have a whole slab in common along every axis.
    """
    if len(boxes) < 2:
        return True
    if axis == len(boxes[0][0]):
        return False
    ordered = sorted(boxes, key=lambda box: box[0][axis])
    if all(one[0][axis] + one[1][axis] <= two[0][axis] for one, two in pairwise(ordered)):
        return True
    slabs: dict[tuple[int, int], list[tuple[Shape, Shape]]] = {}
    for box in ordered:
        slabs.setdefault((box[0][axis], box[1][axis]), []).append(box)
    if any(a + n > b for (a, n), (b, _) in pairwise(sorted(slabs))):
        return _apart_slowly(ordered)
    return all(_apart(each, axis + 1) for each in slabs.values())


def _apart_slowly(boxes: list[tuple[Shape, Shape]]) -> bool:
    """Compare every two boxes; only for a few, as no writer cuts a tensor without order."""
    if len(boxes) > 512:
        return False
    return not any(
        all(
            a < c + d and c < a + b
            for a, b, c, d in zip(one[0], one[1], two[0], two[1], strict=True)
        )
        for i, one in enumerate(boxes)
        for two in boxes[:i]
    )


def alone(stored: StoredTensor, why: str) -> StoredTensor:
    """A tensor that is whole, but in a file that is not to be changed by itself."""
    info = stored.info
    if info.obstacle:
        return stored
    part = JoinedPart((0,) * len(info.shape), info.shape, Source.of(stored))
    at = (stored.file, stored.offset)
    return joined(info.name, info.shape, [part], dtype=info.dtype, at=at, why=why)


def joined(
    name: str,
    shape: Shape,
    parts: Sequence[JoinedPart],
    *,
    dtype: str,
    at: tuple[Place, int],
    why: str,
) -> StoredTensor:
    """A tensor that is read from its parts.

    `at` tells it from others (its first part, say); `why` says what to do to mark it.
    """
    if dtype not in FLOATS:
        info = TensorInfo(name, dtype, shape, f"its values are {dtype}, which hold no weights")
        return StoredTensor(info, *at)
    boxes = [(part.offsets, part.sizes) for part in parts]
    if not covered(shape, boxes):
        raise MalformedError(
            f"{at[0]}: the parts of {name[:80]!r} do not cover it: some are missing or too many"
        )
    info = TensorInfo(name, "F32", shape, stored=None if dtype == "F32" else dtype, fixed=why)
    return StoredTensor(info, *at, decoder=JoinedParts(shape, parts))
