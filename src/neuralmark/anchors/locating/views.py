"""Views: parts of a suspect, put together so that they can be read as a tensor of the anchor.

A view is data only: a tree of stored tensors and of what is done to them. It can be read whole, or
in part (some places along each axis), so that likeness is told from samples. What is done keeps
every value where it can be found again: axes turned, shapes changed, places taken, parts joined;
and what wrappers leave to the forward pass is done here: masks, weight norms, adapters, products.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.locating.shapes import groups_of
from neuralmark.anchors.locating.suspect import PROBED, Index, Shape, SuspectWeights, take
from neuralmark.structures.structure import Array, Indices

Shapes = Mapping[str, Shape]

_TILE = 512, 16


class View(ABC):
    """A tensor made of a suspect's."""

    @abstractmethod
    def shape(self, shapes: Shapes) -> Shape:
        """Its shape, given the shapes of what is stored."""

    @abstractmethod
    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """A part of it: some places along each axis."""

    @abstractmethod
    def parts(self) -> tuple["View", ...]:
        """What it is made of."""

    @abstractmethod
    def describe(self) -> str:
        """What it is made of, in words."""

    @property
    def change(self) -> str:
        """What was done to the tensor, as seen from its owner; empty: nothing."""
        return ""

    @property
    def changes(self) -> tuple[str, ...]:
        """All that was done, each once, the outermost first."""
        told = [self.change, *(each for part in self.parts() for each in part.changes)]
        return tuple(dict.fromkeys(change for change in told if change))

    def read(self, suspect: SuspectWeights) -> Array:
        """The whole of it."""
        whole: Index = (None,) * len(self.shape(suspect.shapes))
        return _contiguous(np.asarray(self.take(suspect, whole), np.float32))

    def stored(self) -> Iterator[str]:
        """Names of the stored tensors that it reads."""
        for part in self.parts():
            yield from part.stored()


def _contiguous(values: Array) -> Array:
    """In the order of its axes; matrices tile by tile, which is quicker where they were turned."""
    if values.ndim != 2 or values.flags.c_contiguous:
        return np.ascontiguousarray(values)
    made = np.empty(values.shape, values.dtype)
    rows, columns = _TILE
    for row in range(0, len(values), rows):
        for column in range(0, values.shape[1], columns):
            tile = slice(row, row + rows), slice(column, column + columns)
            made[tile] = values[tile]
    return made


@dataclass(frozen=True)
class Stored(View):
    """A stored tensor as it is."""

    name: str

    def shape(self, shapes: Shapes) -> Shape:
        """As stored."""
        return shapes[self.name]

    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """Read from the suspect."""
        return take(suspect, self.name, index)

    def parts(self) -> tuple[View, ...]:
        """None: it is a leaf."""
        return ()

    def describe(self) -> str:
        """Its name."""
        return self.name if self.name.isprintable() else repr(self.name)

    def stored(self) -> Iterator[str]:
        """Its name."""
        yield self.name

    @property
    def change(self) -> str:
        """None, where it is stored."""
        return "read by probing" if self.name.endswith(PROBED) else ""


@dataclass(frozen=True)
class SingleView(View):
    """A view of one other view."""

    of: View

    def parts(self) -> tuple[View, ...]:
        """The one."""
        return (self.of,)


@dataclass(frozen=True)
class Turned(SingleView):
    """Axes in another order: axis k is the axis axes[k] of the other."""

    axes: tuple[int, ...]

    def shape(self, shapes: Shapes) -> Shape:
        """The lengths in that order."""
        lengths = self.of.shape(shapes)
        return tuple(lengths[axis] for axis in self.axes)

    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """Each axis takes its places along."""
        places = dict(zip(self.axes, index, strict=True))
        part = self.of.take(suspect, tuple(places[axis] for axis in range(len(index))))
        return part.transpose(self.axes)

    def describe(self) -> str:
        """The other, turned."""
        if self.axes == (1, 0):
            return f"{self.of.describe()}, transposed"
        return f"{self.of.describe()}, axes {self.axes}"

    @property
    def change(self) -> str:
        """Transposed; kernels have other layouts."""
        return "transposed" if self.axes == (1, 0) else "axes reordered"


@dataclass(frozen=True)
class Shaped(SingleView):
    """The same values in the same order, under another shape."""

    to: Shape

    def shape(self, shapes: Shapes) -> Shape:
        """As told."""
        return self.to

    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """Axes that became several are taken in part; of several that became one, the whole."""
        lengths = self.of.shape(suspect.shapes)
        inner: list[Indices | None] = []
        after: list[Indices | None] = []
        made: list[int] = []
        for old, new in groups_of(lengths, self.to):
            asked = [index[axis] for axis in new]
            long = [axis for axis in old if lengths[axis] != 1]
            if len(long) == 1 and any(places is not None for places in asked):
                flat = _combined(asked, [self.to[axis] for axis in new])
                inner += [flat if axis in long else None for axis in old]
                after += [None] * len(new)
                made += [_count(p, self.to[a]) for p, a in zip(asked, new, strict=True)]
            else:
                inner += [None] * len(old)
                after += asked
                made += [self.to[axis] for axis in new]
        values = self.of.take(suspect, tuple(inner)).reshape(made)
        for axis, places in enumerate(after):
            if places is not None:
                values = np.take(values, places, axis=axis)
        return values

    def describe(self) -> str:
        """The other, with the new shape."""
        return f"{self.of.describe()} as {'·'.join(map(str, self.to))}"

    @property
    def change(self) -> str:
        """Another shape."""
        return "reshaped"


def _count(places: Indices | None, length: int) -> int:
    return length if places is None else len(places)


def _combined(asked: list[Indices | None], lengths: list[int]) -> Indices:
    """Places along one axis, of which the others are the parts."""
    flat = np.zeros(1, np.intp)
    for places, length in zip(asked, lengths, strict=True):
        each = np.arange(length) if places is None else places
        flat = (flat[:, None] * length + each).reshape(-1)
    return flat


@dataclass(frozen=True)
class GatheredView(SingleView):
    """Some places along one axis, in some order."""

    @property
    @abstractmethod
    def along(self) -> int:
        """The axis."""

    @abstractmethod
    def places(self, length: int) -> Indices:
        """Where they lie, given the length of the axis."""

    def shape(self, shapes: Shapes) -> Shape:
        """As many as are taken."""
        lengths = list(self.of.shape(shapes))
        lengths[self.along] = len(self.places(lengths[self.along]))
        return tuple(lengths)

    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """Places of places."""
        inner = list(index)
        places = self.places(self.of.shape(suspect.shapes)[self.along])
        asked = index[self.along]
        inner[self.along] = places if asked is None else places[asked]
        return self.of.take(suspect, tuple(inner))


@dataclass(frozen=True)
class Taken(GatheredView):
    """`count` runs of `run` places each, `step` apart, from `offset` on."""

    axis: int
    offset: int
    run: int
    step: int = 0
    count: int = 1

    @property
    def along(self) -> int:
        """The axis."""
        return self.axis

    def places(self, length: int) -> Indices:
        """The runs one after the other."""
        starts = self.offset + np.arange(self.count) * self.step
        return (starts[:, None] + np.arange(self.run)).reshape(-1)

    def describe(self) -> str:
        """The first and the last place, and the rhythm where there is one."""
        what = "rows" if self.axis == 0 else "columns" if self.axis == 1 else f"axis {self.axis}"
        last = self.offset + (self.count - 1) * self.step + self.run
        rhythm = f" ({self.run} of every {self.step})" if self.count > 1 else ""
        return f"{self.of.describe()}, {what} {self.offset}–{last - 1}{rhythm}"

    @property
    def change(self) -> str:
        """Part of a larger tensor."""
        return "slice of fused tensor"


@dataclass(frozen=True)
class Unrotated(GatheredView):
    """Rows of each rotary head in the other of the two usual orders."""

    head: int
    paired: bool
    """Whether they are stored in pairs (0, 1, 2, …) and wanted in halves; else the reverse."""

    @property
    def along(self) -> int:
        """Rows."""
        return 0

    def places(self, length: int) -> Indices:
        """Head by head."""
        half = self.head // 2
        shape = (half, 2) if self.paired else (2, half)
        one = np.arange(self.head).reshape(shape).T.reshape(-1)
        return (np.arange(0, length, self.head)[:, None] + one).reshape(-1)

    def describe(self) -> str:
        """The order that is stored."""
        order = "pairs" if self.paired else "halves"
        return f"{self.of.describe()}, heads of {self.head} rows from {order}"

    @property
    def change(self) -> str:
        """Made by whoever converts between the two orders."""
        return "rotary order changed"


@dataclass(frozen=True)
class Spaced(GatheredView):
    """The rows of an embedding that the anchor keeps: evenly spaced over a vocabulary."""

    vocabulary: int
    kept: int

    @property
    def along(self) -> int:
        """Tokens."""
        return 0

    def places(self, length: int) -> Indices:
        """The same as the anchor's."""
        return np.arange(self.kept) * self.vocabulary // self.kept

    def describe(self) -> str:
        """How many there are."""
        return f"{self.of.describe()}, {self.kept} rows"


@dataclass(frozen=True)
class Trimmed(SingleView):
    """A run of places along each axis: what is inside, without the zeros around it."""

    starts: tuple[int, ...]
    to: Shape

    def shape(self, shapes: Shapes) -> Shape:
        """As told."""
        return self.to

    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """Places of places; of axes that are as they were, what is asked for."""
        inner: list[Indices | None] = []
        lengths = self.of.shape(suspect.shapes)
        for places, start, length, have in zip(index, self.starts, self.to, lengths, strict=True):
            if length == have:
                inner.append(places)
            else:
                inner.append(start + (np.arange(length) if places is None else places))
        return self.of.take(suspect, tuple(inner))

    def describe(self) -> str:
        """The shape that is left."""
        return f"{self.of.describe()}, its inner {'·'.join(map(str, self.to))}"

    @property
    def change(self) -> str:
        """Zeros lie around the kernel."""
        return "kernel padded"
