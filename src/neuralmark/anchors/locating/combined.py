"""Views of several stored tensors: joined, stacked, multiplied, added, masked, normed, adapted."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.locating.suspect import Index, Shape, SuspectWeights
from neuralmark.anchors.locating.views import Shapes, SingleView, Stored, View
from neuralmark.structures.structure import Array, Indices


@dataclass(frozen=True)
class StackItem(SingleView):
    """One of many tensors that are stored as one, along a first axis."""

    item: int

    def shape(self, shapes: Shapes) -> Shape:
        """Without the first axis."""
        return self.of.shape(shapes)[1:]

    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """Of this item only."""
        part = self.of.take(suspect, (np.array([self.item], np.intp), *index))
        return np.asarray(part[0])

    def describe(self) -> str:
        """Its number, from 0."""
        return f"{self.of.describe()}[{self.item}]"

    @property
    def change(self) -> str:
        """Layers, or experts, in one tensor."""
        return "one of a stack"


def pieces_of(view: View) -> Iterator[View]:
    """What a view is made of: stored tensors, and of stacks only the ones that it is."""
    if isinstance(view, StackItem | Stored):
        yield view
    else:
        for part in view.parts():
            yield from pieces_of(part)


@dataclass(frozen=True)
class Absent(View):
    """Zeros in the place of a part that the suspect does not have."""

    lengths: Shape

    def shape(self, shapes: Shapes) -> Shape:
        """As told."""
        return self.lengths

    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """Zeros."""
        lengths = [
            n if places is None else len(places)
            for n, places in zip(self.lengths, index, strict=True)
        ]
        return np.zeros(lengths, np.float32)

    def parts(self) -> tuple[View, ...]:
        """None."""
        return ()

    def describe(self) -> str:
        """What is missing."""
        return "a part that is missing"

    @property
    def change(self) -> str:
        """Not all of it is there."""
        return "a part is missing"


@dataclass(frozen=True)
class Joined(View):
    """Parts one after the other along an axis."""

    pieces: tuple[View, ...]
    axis: int

    def shape(self, shapes: Shapes) -> Shape:
        """The lengths add up."""
        each = [piece.shape(shapes) for piece in self.pieces]
        lengths = list(each[0])
        lengths[self.axis] = sum(one[self.axis] for one in each)
        return tuple(lengths)

    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """Each part gives what of it is asked for."""
        lengths = [piece.shape(suspect.shapes)[self.axis] for piece in self.pieces]
        asked = index[self.axis]
        if asked is None:
            parts = [piece.take(suspect, index) for piece in self.pieces]
            return np.concatenate(parts, axis=self.axis)
        starts = np.cumsum([0, *lengths])
        owner = np.searchsorted(starts, asked, side="right") - 1
        parts, places = [], []
        for number, piece in enumerate(self.pieces):
            mine: Indices = np.flatnonzero(owner == number)
            if len(mine):
                inner = list(index)
                inner[self.axis] = asked[mine] - starts[number]
                parts.append(piece.take(suspect, tuple(inner)))
                places.append(mine)
        order = np.argsort(np.concatenate(places))
        return np.take(np.concatenate(parts, axis=self.axis), order, axis=self.axis)

    def parts(self) -> tuple[View, ...]:
        """The pieces."""
        return self.pieces

    def describe(self) -> str:
        """The first and the last piece."""
        told = [piece.describe() for piece in self.pieces]
        if len(told) > 3:
            told = [told[0], f"{len(told) - 2} more", told[-1]]
        return " + ".join(told)

    @property
    def change(self) -> str:
        """One tensor was stored as several."""
        return f"{len(self.pieces)} pieces joined"


@dataclass(frozen=True)
class Product(View):
    """A layer that was factored into two: the second's outputs are the first's inputs."""

    left: View
    right: View

    def shape(self, shapes: Shapes) -> Shape:
        """Outputs of the left, inputs of the right, kernel of whichever has one."""
        one, two = self.left.shape(shapes), self.right.shape(shapes)
        kernel = tuple(a * b for a, b in zip(one[2:], two[2:], strict=True))
        return one[0], two[1], *kernel

    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """Some rows of the left times some columns of the right; one of them has no kernel."""
        one, two = self.left.shape(suspect.shapes), self.right.shape(suspect.shapes)
        mine = tuple(None if n == 1 else i for n, i in zip(one[2:], index[2:], strict=True))
        other = tuple(None if n == 1 else i for n, i in zip(two[2:], index[2:], strict=True))
        left = self.left.take(suspect, (index[0], None, *mine))
        right = self.right.take(suspect, (None, index[1], *other))
        return multiplied(left, right)

    def parts(self) -> tuple[View, ...]:
        """Both factors."""
        return self.left, self.right

    def describe(self) -> str:
        """Both factors."""
        return f"{self.left.describe()} × {self.right.describe()}"

    @property
    def change(self) -> str:
        """One layer became several."""
        return "factored into three" if len(self.factors) > 2 else "factored into two"

    @property
    def changes(self) -> tuple[str, ...]:
        """Of the factors, what else was done to them."""
        told = [self.change, *(each for part in self.factors for each in part.changes)]
        return tuple(dict.fromkeys(told))

    @property
    def factors(self) -> tuple[View, ...]:
        """All that are multiplied, products of products too."""
        pairs = (each.factors if isinstance(each, Product) else (each,) for each in self.parts())
        return tuple(factor for pair in pairs for factor in pair)


def multiplied(left: Array, right: Array) -> Array:
    """The kernel of two layers, one after the other, of which at most one reads neighbours."""
    if left.ndim == 2:
        return left @ right
    kernel = right.shape[2:] if left[0, 0].size == 1 else left.shape[2:]
    one = np.moveaxis(left, 1, -1).reshape(-1, left.shape[1])
    made = one @ right.reshape(len(right), -1)
    if left[0, 0].size == 1:
        return made.reshape(len(left), right.shape[1], *kernel)
    return np.moveaxis(made.reshape(len(left), *kernel, right.shape[1]), -1, 1)


@dataclass(frozen=True)
class Sum(View):
    """A layer that became several of its shape, side by side, whose outputs are added."""

    terms: tuple[View, ...]

    def shape(self, shapes: Shapes) -> Shape:
        """Of each of them."""
        return self.terms[0].shape(shapes)

    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """The same part of each, added in float64: large terms may cancel."""
        first, *others = self.terms
        made = first.take(suspect, index).astype(np.float64)
        for term in others:
            made += term.take(suspect, index)
        return made.astype(np.float32)

    def parts(self) -> tuple[View, ...]:
        """All that are added."""
        return self.terms

    def describe(self) -> str:
        """All that are added."""
        return f"the sum of {' and '.join(term.describe() for term in self.terms)}"

    @property
    def change(self) -> str:
        """One layer became several beside each other."""
        return "parallel branches added"


@dataclass(frozen=True)
class Masked(SingleView):
    """Pruned: the weights, times ones and zeros that are stored beside them."""

    mask: View

    def shape(self, shapes: Shapes) -> Shape:
        """Of the weights."""
        return self.of.shape(shapes)

    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """The same part of both."""
        return np.asarray(self.of.take(suspect, index) * self.mask.take(suspect, index))

    def parts(self) -> tuple[View, ...]:
        """Weights and mask."""
        return self.of, self.mask

    def describe(self) -> str:
        """Both names."""
        return f"{self.of.describe()} · {self.mask.describe()}"

    @property
    def change(self) -> str:
        """A mask lies beside the weights."""
        return "pruning mask applied"


@dataclass(frozen=True)
class WeightNormed(SingleView):
    """Directions and lengths of output rows, stored apart (torch's weight_norm)."""

    gain: View

    def shape(self, shapes: Shapes) -> Shape:
        """Of the directions."""
        return self.of.shape(shapes)

    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """Rows are read whole: their length counts."""
        whole = (index[0], *(None for _ in index[1:]))
        rows = self.of.take(suspect, whole)
        gain = self.gain.take(suspect, (index[0], *(None for _ in index[1:])))
        axes = tuple(range(1, rows.ndim))
        length = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=axes, keepdims=True))
        made = rows * (gain.reshape(length.shape) / np.where(length > 0, length, 1))
        for axis, places in enumerate(index[1:], 1):
            if places is not None:
                made = np.take(made, places, axis=axis)
        return np.asarray(made, np.float32)

    def parts(self) -> tuple[View, ...]:
        """Directions and lengths."""
        return self.of, self.gain

    def describe(self) -> str:
        """Both names."""
        return f"{self.of.describe()} of lengths {self.gain.describe()}"

    @property
    def change(self) -> str:
        """As torch stores it."""
        return "weight norm applied"


@dataclass(frozen=True)
class Adapted(SingleView):
    """A layer and its low-rank adapter: base + scale · up · down."""

    adapter: View
    """The product, in the layout of the base."""
    scale: float

    def shape(self, shapes: Shapes) -> Shape:
        """Of the base."""
        return self.of.shape(shapes)

    def take(self, suspect: SuspectWeights, index: Index) -> Array:
        """The same part of both, added."""
        base = self.of.take(suspect, index)
        return np.asarray(base + np.float32(self.scale) * self.adapter.take(suspect, index))

    def parts(self) -> tuple[View, ...]:
        """Base and adapter."""
        return self.of, self.adapter

    def describe(self) -> str:
        """Both, and the scale."""
        return f"{self.of.describe()} + {self.scale:g} · ({self.adapter.describe()})"

    @property
    def change(self) -> str:
        """The adapter is not merged in the file."""
        return "adapter added"

    @property
    def changes(self) -> tuple[str, ...]:
        """That the adapter is a product goes without saying."""
        return (self.change, *self.of.changes)
