"""Whether a suspect's tensor lies as its anchor does, with nothing to put in order (pure).

Samples say where to look; they do not say that all is well: whoever permutes only what a sample
leaves out would pass. So every weight of a tensor is compared before it is taken to be in place.
Large changes in a few directions, a low rank, single weights, hide the likeness of what lies in
place; it shows when they are set aside (`cleaning`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuralmark.anchors.cleaning import LITTLE, Cleaned, clean
from neuralmark.anchors.locating.likeness import likeness
from neuralmark.anchors.moves import Mask
from neuralmark.structures.structure import Array

Floats = npt.NDArray[np.float64]

NEAR = 1 / 8
"""Rows and columns that differ by less than this share of their energy are in place, unscaled."""
PLAIN = 1 / 2
"""With what was added set aside, noise for one unit of a mark, as a share of the anchor."""
FAINT = 16.0
"""The same, where no order of its channels was found, and none is likelier than its own."""
FIRM = 0.15
"""A share of the mark that is not left by chance, in the few rows that an order leaves in place."""
LEANING = 0.25
"""How much of what is left may be the anchor's own, taken off: of a stranger half of it is, of
zeros all."""
SLIGHT = 1 / 32
"""So much of the anchor may be in what is left because a factor is not exactly known."""
BY_CHANCE = 4.0
"""In deviations: so much of it may be there by chance."""
HOLLOW = 1e-12
"""With less of its energy beyond one pattern than this, a tensor is that pattern: float32 holds
nothing else in it."""
EMPTY = 0.02
"""A row or column of which no more than this share is not zero holds nothing."""
QUICK = 1 << 20
"""Tensors of more weights are put in order first, and looked at in place if that fails."""
_BLOCK = 1 << 15
_GLANCE = 64


@dataclass(frozen=True)
class Closeness:
    """How a tensor compares with its anchor, weight by weight."""

    near: bool
    """Whether every row and every column is so alike that it lies in place and has no factor."""
    little: bool
    """Whether so little was done that it is read as it is."""
    products: tuple[float, float, float]
    """Suspect with anchor, suspect with itself, anchor with itself."""


def closeness(values: Array, anchor: Array) -> Closeness:
    """Of two tensors of one shape; one pass, many times quicker than a regression."""
    cube, target = (each.reshape(len(anchor), -1, _kernel(anchor)) for each in (values, anchor))
    rows, columns = np.zeros((2, len(cube))), np.zeros((2, cube.shape[1]))
    energy, flat = 0.0, cube.shape[2] == 1
    step = max(1, _BLOCK // max(cube[0].size, 1))
    with np.errstate(over="ignore", invalid="ignore"):
        for at in range(0, len(cube), step):
            some, block = cube[at : at + step], target[at : at + step]
            for place, part in enumerate((some - block, block)):
                squares = part[..., 0] ** 2 if flat else np.einsum("ijk,ijk->ij", part, part)
                rows[place, at : at + step] = squares.sum(axis=1, dtype=np.float64)
                columns[place] += squares.sum(axis=0, dtype=np.float64)
            energy += float(np.einsum("ijk,ijk->", some, some, dtype=np.float64))
    near = all(bool((apart <= NEAR * own).all()) for apart, own in (rows, columns))
    apart, held = float(rows[0].sum()), float(rows[1].sum())
    return Closeness(near, apart <= LITTLE * held, ((energy + held - apart) / 2, energy, held))


def _kernel(anchor: Array) -> int:
    return int(np.prod(anchor.shape[2:])) if anchor.ndim > 2 else 1


def stands(values: Array, anchor: Array) -> bool:
    """Whether all of it is alike, every row and column with a factor of its own."""
    return likeness(values, anchor).direct


def hollow(values: Array, anchor: Array) -> bool:
    """Whether it is nothing but one pattern, a constant or a column times a row, unlike the anchor.

    Divided out and set aside, such a pattern leaves the anchor to be compared with itself.
    """
    return _one_pattern(values) and not _one_pattern(anchor)


def _one_pattern(values: Array) -> bool:
    """Whether it has rank one, as outputs, inputs or kernel positions against the rest."""
    if values.ndim < 2:
        return False
    views = [values.reshape(len(values), -1)]
    if values.ndim > 2:
        views.append(values.swapaxes(0, 1).reshape(values.shape[1], -1))
        views.append(values.reshape(values.shape[0] * values.shape[1], -1))
    return any(_rank_one(view[:: -(-len(view) // _GLANCE)]) and _rank_one(view) for view in views)


def _rank_one(matrix: Array) -> bool:
    """Whether all of a matrix is told by the row and the column of its largest entry."""
    row, column = np.unravel_index(int(np.abs(matrix).argmax()), matrix.shape)
    peak = matrix[row, column]
    if peak == 0:
        return True
    whole = matrix / peak
    beyond = whole - whole[:, column, None] * whole[row]
    energies = (np.einsum("ij,ij->", each, each, dtype=np.float64) for each in (beyond, whole))
    return bool(next(energies) <= HOLLOW * next(energies))


@dataclass(frozen=True)
class Trusted:
    """What is left of a tensor when what was added to it is set aside."""

    gain: float
    """How much of a mark."""
    noise: float
    """For one unit of a mark, as a share of the anchor's energy; infinite: nothing is left."""

    @property
    def firm(self) -> bool:
        """Whether so much is left that it need not be compared with another order."""
        return self.gain >= FIRM and self.noise <= PLAIN


def trusted(values: Array, anchor: Array, found: Sequence[Mask] | None = None) -> Trusted:
    """Of a tensor in the anchor's order; `found`: which of its rows and columns are there."""
    if anchor.ndim < 2 or not np.isfinite(values).all() or hollow(values, anchor):
        return Trusted(0.0, math.inf)
    return left_of(clean(values, anchor, holding(values) if found is None else found))


def left_of(cleaned: Cleaned) -> Trusted:
    """Of a tensor from which what was added was set aside."""
    trust, anchor = cleaned.trust, cleaned.fill
    size = float(np.mean(np.square(anchor, dtype=np.float64)))
    if not (trust.gain > 0 and size > 0) or _leans(cleaned, anchor, size):
        return Trusted(0.0, math.inf)
    return Trusted(trust.gain, trust.noise / trust.gain**2 / size)


def holding(values: Array) -> tuple[Mask, Mask]:
    """Rows and columns that hold something: where there is nothing, nothing lies in place.

    Empty rows differ from the anchor by the anchor itself, all of which would be set aside, and
    what is then left is like anything.
    """
    cube = values.reshape(*values.shape[:2], -1) != 0
    return cube.mean(axis=(1, 2)) > EMPTY, cube.mean(axis=(0, 2)) > EMPTY


def _leans(cleaned: Cleaned, anchor: Array, size: float) -> bool:
    """Whether what is left is to a good part the anchor itself, taken off.

    `size` is the anchor's mean square. Its own rounding is in both of them, and is not counted.
    """
    one, two, gain = cleaned.kept.reshape(-1), anchor.reshape(-1), cleaned.trust.gain
    energy = float(np.einsum("i,i->", one, one, dtype=np.float64))
    along = float(np.einsum("i,i->", one, two, dtype=np.float64))
    taken = -(along + gain * cleaned.trust.rounding * one.size)
    limits = LEANING * energy, SLIGHT * gain * size * one.size, BY_CHANCE * math.sqrt(energy * size)
    return taken > max(limits)
