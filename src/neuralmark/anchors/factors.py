"""Factors of rows and columns, by regression on the anchor (pure; ANCHORS.md section 3).

A folded batch norm, weight norm, scales of a quantisation, or an attacker who scales channels up
and down: the suspect is the anchor times a factor for every row and every column. They are
regressed and divided out. What is then still far from the anchor is drawn in: a nearly dead channel
that is blown up, or one that was made small before noise was added, would drown the others.

Thresholds were set on ResNet-20 and networks trained on digits; ResNet-56 and VGG-like chains
trained on CIFAR-10 confirmed them.
"""

import numpy as np
import numpy.typing as npt

from neuralmark.structures.structure import Array

Floats = npt.NDArray[np.float64]

LEAST_LIKENESS = 0.12
"""Channels whose cosine is below this are not taken for the same."""
RESCALED, DRAWN_IN = "rescaled", "outlying channels drawn in"
FLIPPED = "flipped"

_SWEEPS = 6
_NOTICEABLE = 0.05
"""Typical deviation of the factors (logarithm) from which they are spoken of."""
_STRAY = 0.01
"""The share of weights whose factor may be negative by chance."""
_FARTHEST = 3.0
"""Where the residual's energy is so many times the median, it is drawn in."""
_NEAR = 0.5
"""But not where the residual is smaller than this share of the anchor's size."""
_EXACT = 1 << 22
_BLOCK = 1 << 21
_DIGITS = 18
"""Binary digits of a factor: another order of summation gives the same."""
_SMALLEST, _LARGEST = 1e-15, 1e15


def rescaled(values: Array, anchor: Array) -> tuple[Array, tuple[str, ...]]:
    """A tensor in the anchor's order with the factors of its rows and columns divided out.

    Rows and columns without likeness stay as they are. A tensor of one axis stays whole: a factor
    for each of its values would only copy the anchor.
    """
    if values.ndim < 2 or not values.size:
        return values, ()
    cube, target = _finite(_cube(values)), _cube(anchor)
    rows, columns = _factors(cube, target)
    noticed = [RESCALED] if _noticeable(rows) or _noticeable(columns) else []
    turned = np.mean((rows < 0)[:, None] != (columns < 0)[None, :])
    noticed += [FLIPPED] if turned > _STRAY else []
    found = np.divide(cube, rows[:, None, None], dtype=np.float32)
    found /= columns[None, :, None].astype(np.float32)
    if _temper(found, target):
        noticed.append(DRAWN_IN)
    return found.reshape(values.shape), tuple(noticed)


def likeness(values: Array, anchor: Array) -> float:
    """The largest cosine of two tensors over all factors of rows and columns; 0 for nothing.

    Channels that are not alike shrink to nothing here, so that none of them is blown up.
    """
    if values.ndim < 2 or not values.size:
        return _cosine(values, anchor)
    cube, target = _finite(_cube(values)), _cube(anchor)
    peak = float(np.abs(cube).max())
    whole = float(_totals(target)[0].sum())
    if not (peak > 0 and whole > 0):
        return 0.0
    cube = np.asarray(cube / np.float32(peak))
    shared, own = _Table(cube, target), _Table(cube, cube)
    columns = _ratio(np.ones(cube.shape[1]), np.sqrt(own.by_column(np.ones(len(cube)))))
    explained = 0.0
    for _ in range(_SWEEPS):
        rows = _ratio(shared.by_row(columns), own.by_row(columns**2))
        towards = shared.by_column(rows)
        columns = _ratio(towards, own.by_column(rows**2))
        explained = float(columns @ towards)
    return min(float(np.sqrt(max(explained, 0.0) / whole)), 1.0)


def _ratio(one: Floats, two: Floats) -> Floats:
    return np.divide(one, two, out=np.zeros_like(one), where=two > 1e-200)


def _cosine(values: Array, anchor: Array) -> float:
    one, two = (np.asarray(v, np.float64).reshape(-1) for v in (_finite(values), anchor))
    whole = float(np.sqrt((one @ one) * (two @ two)))
    return float(one @ two) / whole if whole > 0 else 0.0


def _cube(values: Array) -> Array:
    return values.reshape(values.shape[0], values.shape[1], -1)


def _finite(cube: Array) -> Array:
    there = np.isfinite(cube)
    return cube if there.all() else np.asarray(np.where(there, cube, 0), np.float32)


class _Table:
    """Products of two tensors, summed over kernel positions: rows x columns.

    What is summed further is summed in float64, a block of rows at a time.
    """

    def __init__(self, one: Array, two: Array, *, residual: bool = False) -> None:
        """Products of the two; or of their difference with itself."""
        kind = np.float64 if one.size <= _EXACT else np.float32
        self.values: npt.NDArray[np.floating] = np.empty(one.shape[:2], kind)
        step = max(1, _BLOCK // max(one[0].size, 1))
        self.blocks = [slice(at, at + step) for at in range(0, len(one), step)]
        for rows in self.blocks:
            a = one[rows].astype(np.float64)
            b = two[rows].astype(np.float64)
            if residual:
                a = b = a - b
            self.values[rows] = np.einsum("ijk,ijk->ij", a, b)

    def by_row(self, weights: Floats) -> Floats:
        """Weighted sums along the columns."""
        parts = [self.values[rows].astype(np.float64) @ weights for rows in self.blocks]
        return np.concatenate(parts)

    def by_column(self, weights: Floats) -> Floats:
        """Weighted sums along the rows."""
        total = np.zeros(self.values.shape[1])
        for rows in self.blocks:
            total += weights[rows] @ self.values[rows].astype(np.float64)
        return total


def _factors(cube: Array, anchor: Array) -> tuple[Floats, Floats]:
    """Of rows and columns; 1 where there is no likeness."""
    goals = _totals(anchor)
    shared, own = _Table(cube, anchor), _Table(cube, cube)
    rows, columns = np.ones(cube.shape[0]), np.ones(cube.shape[1])
    for _ in range(_SWEEPS):
        rows = rows * _regressed(
            shared.by_row(1 / columns) / rows, own.by_row(columns**-2.0) / rows**2, goals[0]
        )
        columns = columns * _regressed(
            shared.by_column(1 / rows) / columns, own.by_column(rows**-2.0) / columns**2, goals[1]
        )
    return _short(rows), _short(columns)


def _totals(anchor: Array) -> tuple[Floats, Floats]:
    """Energies of rows and columns."""
    table = _Table(anchor, anchor)
    return table.by_row(np.ones(anchor.shape[1])), table.by_column(np.ones(anchor.shape[0]))


def _regressed(shared: Floats, own: Floats, wanted: Floats) -> Floats:
    """One factor for each channel, 1 where there is no likeness."""
    alike = shared**2 > LEAST_LIKENESS**2 * own * wanted
    factor = np.divide(shared, wanted, out=np.ones_like(shared), where=alike & (wanted > 0))
    sound = (np.abs(factor) > _SMALLEST) & (np.abs(factor) < _LARGEST)
    return np.where(sound, factor, 1.0)


def _short(factors: Floats) -> Floats:
    """With few binary digits."""
    digits, power = np.frexp(factors)
    return np.asarray(np.ldexp(np.rint(digits * 2.0**_DIGITS), power - _DIGITS))


def _noticeable(factors: Floats) -> bool:
    spread = np.log(np.abs(factors))
    return bool(np.median(np.abs(spread - np.median(spread))) > _NOTICEABLE)


def _temper(found: Array, anchor: Array) -> bool:
    """Draw what lies far from the anchor in to it, in place; whether there was any.

    The residual's energy is taken as a product of one number a row and one a column. Where it is
    beyond the reach, the residual shrinks in proportion: what is noisier counts for less.
    """
    energy = _Table(found, anchor, residual=True)
    rows, columns = _sizes(energy)
    size = float(np.mean(np.square(anchor, dtype=np.float64))) * anchor.shape[2]
    middle = float(np.median(rows)) * float(np.median(columns))
    reach = max(_FARTHEST * middle, _NEAR**2 * size)
    if not reach > 0 or rows.max() * columns.max() <= reach:
        return False
    for at, row in enumerate(rows):
        far = row * columns
        if (far > reach).any():
            shrink = np.minimum(1.0, reach / np.maximum(far, reach)).astype(np.float32)
            found[at] = anchor[at] + (found[at] - anchor[at]) * shrink[:, None]
    return True


def _sizes(energy: _Table) -> tuple[Floats, Floats]:
    """Of rows and columns, whose products come near the energies."""
    count = energy.values.shape
    rows, columns = np.ones(count[0]), np.ones(count[1])
    whole = energy.by_row(columns).sum() / energy.values.size
    floor = max(float(whole) * 1e-9, 1e-300)
    for _ in range(_SWEEPS):
        rows = np.maximum(energy.by_row(1 / columns) / count[1], floor)
        columns = np.maximum(energy.by_column(1 / rows) / count[0], 1e-9)
    return _short(rows), _short(columns)
