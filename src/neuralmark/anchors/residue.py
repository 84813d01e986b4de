"""What a suspect differs by from the anchor, divided into what is trusted and what is not (pure).

Zeros of a pruned tensor, single differences far out, and directions in which there is much more
than in others (`spectrum`) are set aside. Every step is taken only where it lowers the noise for
one unit of a mark that is spread evenly, and none of them sees the key.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from neuralmark.anchors.moves import Mask
from neuralmark.anchors.spectrum import least_noise_of_rows, plan
from neuralmark.structures.structure import Array

WORTH = 0.9
"""A step is taken where it lowers the noise, for one unit of the mark, to no more than this."""
SHARP = 0.5
"""The same for outliers before directions are known: these may look like outliers, too."""
FAR = 6.0
"""A single difference beyond this many robust deviations is not trusted."""
LARGE = 1 << 22
"""Of more weights than this, outliers and directions are not looked for in turns."""

_ROUNDS = 4
_SAMPLE = 1 << 20
_FEW_ZEROS = 1e-3
_ROBUST = 1.4826
_LARGEST = 1e6
"""Float32 holds nothing of a mark in a weight that is this many times too large."""
_EDGE = 0.2


@dataclass(frozen=True)
class Aside:
    """What a filter did."""

    what: str
    """Directions, rows or columns."""
    kept: float
    """The share of them that still counts."""
    count: int = 0
    """How many of the directions were shrunk to little: the rank."""
    total: int = 0


@dataclass(frozen=True, eq=False)
class Residue:
    """One way to divide a difference."""

    left: Array = field(repr=False)
    """What is trusted of it."""
    away: Mask = field(repr=False)
    """Single weights that are not trusted."""
    even: float = 1.0
    """Share of the weights whose small changes are passed on."""
    passed: float = 1.0
    """Share of a small, evenly spread change that the filters leave."""
    spread: float = 1.0
    """What the filters make of the energy of white noise, as a factor."""
    aside: tuple[Aside, ...] = ()
    """For each filter."""
    halves: Array | None = field(default=None, repr=False)
    """What rows and columns were multiplied with last; before, all are alike."""

    @property
    def gain(self) -> float:
        """How much of a mark is left, as a factor."""
        return self.even * self.passed

    def alike(self) -> tuple[Array, float]:
        """What is trusted with all rows and columns counting alike, and its gain."""
        if self.halves is None:
            return self.left, self.gain
        shares = np.square(self.halves)
        return np.asarray(self.left / shares), self.gain / float(shares.mean(dtype=np.float64))

    def noise(self, rounding: float) -> float:
        """Mean square of what is trusted, with the anchor's rounding in it."""
        return mean_square(self.left) + rounding * self.spread * self.even

    def cost(self, rounding: float) -> float:
        """Noise for one unit of the mark."""
        return self.noise(rounding) / self.gain**2 if self.gain > 0 else np.inf


def untouched(difference: Array) -> Residue:
    """All of it trusted."""
    return Residue(difference, np.zeros(difference.shape, np.bool_))


def divided(difference: Array, zeros: Mask, size: float, rounding: float) -> Residue:
    """The best of several ways to divide it.

    `zeros` are the suspect's, `size` is the root mean square of the anchor, `rounding` the mean
    square of its rounding.
    """
    plain = untouched(difference)
    wild = np.abs(difference) > _LARGEST * size
    starts = [_without(plain, wild)]
    if zeros.mean() >= _FEW_ZEROS:
        starts.append(_without(plain, wild | zeros))
    if difference.size > LARGE:
        starts = [min(starts, key=lambda residue: residue.cost(rounding))]
    found = [_refined(start, rounding) for start in starts]
    best = min(found, key=lambda residue: residue.cost(rounding))
    return best if best.cost(rounding) <= WORTH * plain.cost(rounding) else plain


def _refined(start: Residue, rounding: float) -> Residue:
    """Single weights and directions set aside in turns, as long as it helps."""
    best = _without_outliers(start, rounding, SHARP)
    work = best.left
    for _ in range(_ROUNDS if work.size <= LARGE else 1):
        filtered = _without_directions(work, best.away, rounding)
        if filtered is None:
            break
        residue = _without_outliers(_without(filtered, best.away), rounding, WORTH)
        if residue.cost(rounding) > WORTH * best.cost(rounding):
            break
        best = residue
        if not best.away.any():
            break
        # What the directions say of a weight that is not trusted stands in for it.
        work = np.where(best.away, work - filtered.alike()[0], work)
    return best


def _without(residue: Residue, away: Mask) -> Residue:
    """With these weights set aside."""
    if not away.any():
        return residue
    left = np.where(away, np.float32(0), residue.left)
    return replace(residue, left=left, away=away, even=float(1 - away.mean()))


def _without_outliers(residue: Residue, rounding: float, worth: float) -> Residue:
    """With single weights set aside that lie far out, where that helps."""
    sizes = np.abs(residue.left if residue.halves is None else residue.left / residue.halves)
    deviation = _deviation(sizes, residue.away)
    limit = np.float32(FAR * deviation)
    odd = sizes > limit
    if deviation <= 0 or not odd.any():
        return residue
    # A threshold cuts off changes of the weights near it as well.
    near = float(((sizes > (1 - _EDGE) * limit) & ~odd).mean()) / _EDGE
    less = _without(residue, residue.away | odd)
    less = replace(less, even=less.even - near)
    return less if less.cost(rounding) <= worth * residue.cost(rounding) else residue


def _without_directions(work: Array, away: Mask, rounding: float) -> Residue | None:
    """With directions, rows and columns shrunk in which there is most; None where none stands out.

    Rows and columns are shrunk half before and half after the directions: between, all are alike.
    """
    if work.ndim < 2:
        return None
    best = _shrunk(Residue(work, away), rounding)
    lines = _lines(work, rounding)
    if lines is not None:
        halves, before = lines
        between = replace(before, left=work * halves, away=away, spread=before.passed)
        after = _shrunk(between, rounding)
        spread = after.spread * before.spread / before.passed
        after = replace(after, left=after.left * halves, halves=halves, spread=spread)
        best = after if after.cost(rounding) <= WORTH * best.cost(rounding) else best
    return best if best.aside else None


def _lines(work: Array, rounding: float) -> tuple[Array, Residue] | None:
    """Roots of the shares that rows and columns keep, and what that does; None where all do."""
    halves = np.ones((1,) * work.ndim)
    residue = Residue(work, np.zeros((1,) * work.ndim, np.bool_))
    for axis, what in enumerate(("rows", "columns")):
        others = tuple(i for i in range(work.ndim) if i != axis)
        weights = np.square(halves)
        energies = np.mean(np.square(work * weights.astype(np.float32)), axis=others, dtype=float)
        floor, width = rounding * residue.spread, work.size // work.shape[axis]
        left, choice = least_noise_of_rows(energies, width, floor)
        if choice.cost > WORTH:
            continue
        shape = [-1 if i == axis else 1 for i in range(work.ndim)]
        halves = halves * np.sqrt(left).reshape(shape)
        residue = replace(
            residue,
            passed=residue.passed * choice.gain,
            spread=residue.spread * choice.spread,
            aside=(*residue.aside, Aside(what, choice.kept)),
        )
    return (halves.astype(np.float32), residue) if residue.aside else None


def _shrunk(residue: Residue, rounding: float) -> Residue:
    """With directions shrunk, the best view first; of kernels there are three."""
    shape = residue.left.shape
    views = list(_VIEWS if len(shape) > 2 else _VIEWS[:1])
    while views:
        plans = [plan(view.of(residue.left), rounding * residue.spread) for view in views]
        best = min(range(len(plans)), key=lambda i: plans[i].cost)
        chosen, view = plans[best], views.pop(best)
        if chosen.cost > WORTH:
            break
        matrix = view.of(residue.left)
        residue = replace(
            residue,
            left=view.back(chosen.of(matrix), shape),
            passed=residue.passed * chosen.gain,
            spread=residue.spread * chosen.spread,
            aside=(
                *residue.aside,
                Aside(view.what, chosen.kept, chosen.rank, min(matrix.shape)),
            ),
        )
    return residue


@dataclass(frozen=True)
class _View:
    """A tensor as a matrix: outputs, inputs, or the kernel (2) against the rest."""

    order: int
    what: str

    def of(self, values: Array) -> Array:
        if self.order == 2:
            return values.reshape(values.shape[0] * values.shape[1], -1)
        turned = values.swapaxes(0, 1) if self.order else values
        return turned.reshape(len(turned), -1)

    def back(self, matrix: Array, shape: tuple[int, ...]) -> Array:
        if self.order != 1:
            return matrix.reshape(shape)
        return matrix.reshape(shape[1], shape[0], *shape[2:]).swapaxes(0, 1)


_VIEWS = (
    _View(0, "directions"),
    _View(1, "directions of the inputs"),
    _View(2, "directions of the kernel"),
)


def _deviation(sizes: Array, away: Mask) -> float:
    """Robust deviation of the weights that are not set aside, from a sample at fixed places."""
    step = -(-sizes.size // _SAMPLE)
    sample = sizes.reshape(-1)[::step][~away.reshape(-1)[::step]]
    return _ROBUST * float(np.median(sample)) if sample.size else 0.0


def mean_square(values: Array) -> float:
    """Mean square, summed in float64 row by row."""
    if not values.size:
        return 0.0
    rows = values.reshape(len(values), -1)
    return float(np.einsum("ij,ij->i", rows, rows, dtype=np.float64).sum() / values.size)
