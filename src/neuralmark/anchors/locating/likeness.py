"""How alike two tensors are: cosines of rows and of columns, each with a factor of its own (pure).

A row (or a column) may have been multiplied by any factor: a folded norm, a scale. So rows are
compared one by one, and weighed by what they hold in the anchor. Squared cosines of unrelated rows
are 1/length on average; that is taken off, so that unrelated tensors of any shape are near 0.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuralmark.anchors.locating.suspect import Index, Shape
from neuralmark.anchors.moves import GRID
from neuralmark.structures.structure import Array, Indices

Scores = npt.NDArray[np.float64]

SIDE = 64
"""Samples take so many places along each of the first two axes."""
POSITIONS = 16
"""And so many positions of a kernel."""
ALONG = 4096
"""And so many places of a vector."""
CONVINCING = 0.5
"""Tensors at least this alike are taken for one and the same. Unrelated ones of real networks stay
far below (`benchmarks.anchor_locate`: at most 0.3, ResNet-20 against 56)."""
STRAY = 0.01
"""The share that may lie in rows or columns that are unlike while the others are alike."""
LONG = 256
"""Places along each of the first two axes up to which tensors are compared as a whole."""
_BLOCK = 1 << 24
_PART = 1 << 16
_Triple = tuple[Scores, Scores, Scores]


def even(length: int, count: int) -> Indices:
    """At most so many places, evenly spaced."""
    if length <= count:
        return np.arange(length)
    return (np.arange(count) * length) // count


def scattered(length: int, count: int, secret: bytes) -> Indices:
    """One place in each of at most so many stretches; which, only the secret tells."""
    if length <= count:
        return np.arange(length)
    ends = (np.arange(count + 1) * length) // count
    drawn = hashlib.shake_256(secret + length.to_bytes(8, "little")).digest(8 * count)
    steps = np.frombuffer(drawn, "<u8") % np.diff(ends).astype(np.uint64)
    return np.asarray(ends[:-1] + steps.astype(np.intp))


def sample_of(shape: Shape, side: int, secret: bytes) -> Index:
    """The sample of a tensor of this shape. Nobody who lacks the anchor knows it."""
    if len(shape) < 2:
        return tuple(scattered(n, ALONG, secret) for n in shape)
    kernel = shape[2:]
    each = POSITIONS if len(kernel) == 1 else max(2, round(POSITIONS ** (1 / max(1, len(kernel)))))
    first = tuple(scattered(n, side, secret + bytes([k])) for k, n in enumerate(shape[:2]))
    return first + tuple(even(n, each) for n in kernel)


def large_sample(shape: Shape, secret: bytes) -> Index:
    """All of a tensor, but of long axes a part."""
    return tuple(
        scattered(n, LONG, secret + bytes([k])) if n > LONG and k < 2 else None
        for k, n in enumerate(shape)
    )


def taken(values: Array, index: Index) -> Array:
    """The sample of an array."""
    for axis, places in enumerate(index):
        if places is not None:
            values = np.take(values, places, axis=axis)
    return values


def finite(values: Array) -> Array:
    """With zeros in the place of what is no number; the same array where there is none."""
    if np.isfinite(values).all():
        return values
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def prepared(values: Array) -> Array:
    """As outputs x inputs x positions; a vector as one centred row."""
    values = finite(values)
    if values.ndim == 1:
        centred = values - values.mean(dtype=np.float64)
        spread = np.abs(centred).max(initial=0.0)
        if spread <= 1e-6 * np.abs(values).max(initial=0.0):  # a constant tells nothing
            centred = np.zeros_like(centred)
        return np.asarray(centred[None, :, None], np.float32)
    return values.reshape(*values.shape[:2], -1)


@dataclass(frozen=True, eq=False)
class Likeness:
    """What was seen of a tensor beside the anchor's."""

    cosine: float
    """After each row, or each column, was given a factor; 0 to 1."""
    stray: float
    """The share of the anchor's weights in rows or columns that are unlike the others."""
    size: int
    """How many weights were compared."""

    @property
    def direct(self) -> bool:
        """Whether nothing is left to align."""
        return self.cosine >= convincing(self.size) and self.stray <= STRAY


def convincing(size: int) -> float:
    """What unrelated tensors of so many weights do not reach; small ones may, by chance."""
    return min(0.95, max(CONVINCING, 6 / float(np.sqrt(max(1, size)))))


def likeness(one: Array, anchor: Array) -> Likeness:
    """Of two tensors of one shape."""
    mine, other = prepared(one), prepared(anchor)
    ones = np.ones(mine.shape[0]), np.ones(mine.shape[1])
    rows, columns = (_Sums(*each) for each in _sums(mine, other, ones))
    by_rows = rows.cosine(mine[0].size)
    if mine.shape[0] == 1:
        return Likeness(rounded(by_rows), 0.0, mine.size)
    by_columns = columns.cosine(mine[:, 0].size)
    cosine = max(by_rows, by_columns)
    stray = 1.0
    if cosine >= CONVINCING:
        factors = (rows.factors, ones[1]) if by_rows >= by_columns else (ones[0], columns.factors)
        stray = max(_Sums(*each).stray for each in _sums(mine, other, factors))
    return Likeness(rounded(cosine), rounded(stray), mine.size)


def rounded(value: float) -> float:
    """On the grid, so that another machine decides the same."""
    return float(np.rint(value / GRID) * GRID)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Of the places along an axis: inner products, and the squares of both tensors."""

    dots: Scores
    mine: Scores
    other: Scores

    @property
    def factors(self) -> Scores:
        """What each place is best multiplied by."""
        return _ratio(self.dots, self.mine)

    @property
    def squares(self) -> Scores:
        """Squared cosines."""
        return _ratio(self.dots * self.dots, self.mine * self.other)

    def cosine(self, length: int) -> float:
        """With a factor for each place, each of so many values."""
        total = float(self.other.sum())
        return unbiased(float((self.squares * self.other).sum()) / total, length) if total else 0.0

    @property
    def stray(self) -> float:
        """The share of the anchor in places that are unlike while the others are alike."""
        held, squares = self.mine > 0, self.squares
        typical = float(np.median(squares[held])) if held.any() else 0.0
        total = float(self.other.sum())
        return float(self.other[held & (squares < typical / 4)].sum()) / total if total else 0.0


def _sums(one: Array, anchor: Array, factors: tuple[Scores, Scores]) -> tuple[_Triple, _Triple]:
    """For rows and for columns, with factors put on: block by block, in float64."""
    rows, columns = np.zeros((3, one.shape[0])), np.zeros((3, one.shape[1]))
    step = max(1, _PART // max(1, one[0].size))
    for start in range(0, len(one), step):
        part = slice(start, start + step)
        mine, other = one[part].astype(np.float64), anchor[part].astype(np.float64)
        mine *= factors[0][part, None, None]
        mine *= factors[1][None, :, None]
        for number, (a, b) in enumerate(((mine, other), (mine, mine), (other, other))):
            rows[number, part] = np.einsum("ijk,ijk->i", a, b)
            columns[number] += np.einsum("ijk,ijk->j", a, b)
    return (rows[0], rows[1], rows[2]), (columns[0], columns[1], columns[2])


def unbiased(square: float, length: int) -> float:
    """The cosine that is left when what unrelated rows of this length have is taken off."""
    if length < 2:
        return 0.0
    return float(np.sqrt(max(0.0, (square - 1 / length) / (1 - 1 / length))))


def _ratio(above: Scores, below: Scores) -> Scores:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(below > 0, above / below, 0.0)


def matrix(ones: Sequence[Array], anchors: Sequence[Array]) -> Scores:
    """The likeness of every sample to every anchor's: anchors x samples, on the grid."""
    mine, other = np.stack([*map(prepared, ones)]), np.stack([*map(prepared, anchors)])
    found = _pairs(mine, other)
    if mine.shape[1] > 1:
        found = np.maximum(found, _pairs(mine.swapaxes(1, 2), other.swapaxes(1, 2)))
    return np.asarray(np.rint(found / GRID) * GRID)


def _pairs(ones: Array, anchors: Array) -> Scores:
    """As `_along`, for all pairs."""
    count, rows = ones.shape[:2]
    mine = _unit(ones.reshape(count, rows, -1).swapaxes(0, 1))
    flat = anchors.reshape(len(anchors), rows, -1).swapaxes(0, 1)
    weights = np.square(flat, dtype=np.float64).sum(axis=2)
    totals = weights.sum(axis=0)
    other = _unit(flat)
    squares = np.zeros((len(anchors), count))
    step = max(1, _BLOCK // max(1, rows * len(anchors)))
    for start in range(0, count, step):
        part = slice(start, start + step)
        cosines = other @ mine[:, part].swapaxes(1, 2)
        squares[:, part] = np.einsum("rak,ra->ak", np.square(cosines), weights, dtype=np.float64)
    squares = _ratio(squares, np.broadcast_to(totals[:, None], squares.shape))
    length = mine.shape[2]
    if length < 2:
        return np.zeros_like(squares)
    return np.asarray(np.sqrt(np.maximum(0.0, (squares - 1 / length) / (1 - 1 / length))))


def _unit(rows: Array) -> Array:
    lengths = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=-1, keepdims=True))
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)
