"""Profiles: what a tensor looks like whatever the order, signs and scales of its channels (pure).

Rows and columns are scaled to one size in turn (Sinkhorn), which cancels factors. Then: how the
sizes of weights are spread, over all and by kernel position; singular values; how far apart rows
and columns point, and how peaked they are. Each is told of the tensor as a set, so that permuted
channels, turned signs and a few channels more or less hardly change it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from neuralmark.anchors.locating.likeness import Scores, finite
from neuralmark.structures.structure import Array

Profile = tuple[Scores, ...]
"""Several groups of numbers, the same for tensors of one kind."""
Floats = npt.NDArray[np.float64]

LARGEST = 16
"""Singular values that are looked at."""
EXACT = 768
"""Up to this length of the shorter side they are exact, else by subspace iteration."""
_ROUNDS = 4
_STEPS = 8
_FLOOR = 0.02
"""Differences below this part of a unit are not told apart."""
_MANY = 1 << 20
_ROUGH = 2.0**-10
"""Distances are rounded to this, so that another BLAS decides the same."""
_HIGH = np.linspace(0.6, 0.999, 16)
_MIDDLE = np.linspace(0.05, 0.95, 9)
_ALL = np.linspace(0, 1, 48)
_PAIRS = np.array([*np.linspace(0.5, 0.99, 12), 0.995, 0.999, 1.0])
_FEW = np.linspace(0.1, 0.9, 5)
_FEWEST = 3
"""Tensors that have a middle and a spread."""


def profile(values: Array) -> Profile:
    """Of a tensor of any shape."""
    values = finite(values)
    if values.ndim == 1:
        return (np.quantile(values.astype(np.float64), np.linspace(0, 1, 33)),)
    raw = _alive(values.reshape(*values.shape[:2], -1))
    even = levelled(raw)
    squares = np.square(even)
    positions = even.shape[2]
    groups = [
        _log(np.quantile(np.abs(_thinned(even)), _HIGH)),
        *_spectrum(raw.reshape(len(raw), -1)),
        *_spectrum(even.reshape(len(even), -1)),
        *_angles(even.reshape(len(even), -1)),
        *_angles(even.swapaxes(0, 1).reshape(even.shape[1], -1)),
        _peaks(squares, (1, 2)),
        _peaks(squares, (0, 2)),
    ]
    if positions > 1:
        groups += [
            _log(squares.mean(axis=(0, 1), dtype=np.float64)),
            _spectrum(even.swapaxes(0, 1).reshape(even.shape[1], -1))[0],
            np.concatenate([_spectrum(even[:, :, k])[0][:6] for k in range(positions)]),
            np.quantile(_log(squares.mean(axis=1, dtype=np.float64)), _FEW, axis=0).reshape(-1),
            np.quantile(_log(squares.mean(axis=0, dtype=np.float64)), _FEW, axis=0).reshape(-1),
        ]
    return tuple(np.asarray(group, np.float64) for group in groups)


def distances(wanted: Sequence[Profile], held: Sequence[Profile]) -> Scores:
    """How unlike profiles are, wanted x held: each side against its own middle and spread.

    What damage does to all tensors alike is so left out; groups of numbers that a change has
    spoilt weigh little (a geometric mean). Where more are held than wanted, the middle and the
    spread are those of the wanted for both: the others may be anything.
    """
    return _distances(wanted, held, held if len(held) <= len(wanted) else wanted)


def _distances(wanted: Sequence[Profile], held: Sequence[Profile], by: Sequence[Profile]) -> Scores:
    """With the middle and the spread of some for those that are held."""
    logs = np.zeros((len(wanted), len(held)))
    for parts in zip(*(zip(*each, strict=True) for each in (wanted, held, by)), strict=True):
        logs += np.log(_apart(*_standard(*map(np.stack, parts))) + 1e-3)
    return np.asarray(np.rint(np.exp(logs / len(wanted[0])) / _ROUGH) * _ROUGH)


def levelled(values: Array) -> Array:
    """With rows and columns of one size, by turns."""
    energy = np.square(values).sum(axis=2)
    rows: Array = np.ones(len(energy), np.float32)
    columns: Array = np.ones(energy.shape[1], np.float32)
    for _ in range(_STEPS):
        rows = np.reciprocal(_positive(energy @ columns))
        columns = np.reciprocal(_positive(rows @ energy))
    size = float(rows.astype(np.float64) @ (energy @ columns).astype(np.float64)) / values.size
    rows = (rows / np.float32(size or 1)).astype(np.float32)
    return np.asarray(values * np.sqrt(rows)[:, None, None] * np.sqrt(columns)[None, :, None])


def _thinned(values: Array) -> Array:
    """An even part of very many values."""
    flat = values.reshape(-1)
    return flat if flat.size <= _MANY else flat[np.arange(_MANY) * flat.size // _MANY]


def _positive(values: Array) -> Array:
    return np.asarray(np.where(values > 1e-30, values, np.float32(1)), np.float32)


def _alive(values: Array) -> Array:
    """Without rows and columns of zeros; brought to an ordinary size."""
    top = float(np.abs(values).max(initial=0.0))
    if not top:
        return np.zeros((1, 1, values.shape[2]), np.float32)
    values = values / np.float32(top)
    energy = np.square(values).sum(axis=2)
    rows, columns = energy.any(axis=1), energy.any(axis=0)
    if not rows.all():
        values = values[rows]
    return values if columns.all() else np.asarray(values[:, columns])


def _log(values: Floats) -> Floats:
    return np.log(np.asarray(values, np.float64) + 1e-3)


def _peaks(squares: Array, axes: tuple[int, int]) -> Floats:
    """How peaked rows (or columns) are: quantiles of their kurtosis."""
    second = squares.mean(axis=axes, dtype=np.float64)
    fourth = np.square(squares).mean(axis=axes, dtype=np.float64)
    return np.quantile(_log(fourth / np.maximum(second**2, 1e-12)), _MIDDLE)


def _spectrum(matrix: Array) -> tuple[Floats, Floats]:
    """Logarithms of the largest singular values, as shares of the whole, and of some of all."""
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    total = float(np.sqrt(np.square(short, dtype=np.float64).sum())) or 1.0
    if len(short) <= EXACT:
        wide = short.astype(np.float64)
        values = np.sqrt(np.maximum(np.linalg.eigvalsh(wide @ wide.T)[::-1], 0)) / total
        spread = np.interp(_ALL, np.linspace(0, 1, len(values)), values)
    else:
        values = _largest(short, LARGEST) / total
        spread = values
    kept = np.zeros(LARGEST)
    kept[: min(LARGEST, len(values))] = values[:LARGEST]
    return _log(kept), _log(np.resize(spread, len(_ALL)))


def _angles(rows: Array) -> tuple[Floats]:
    """How far apart rows point: quantiles of the cosines of all pairs (of some, of many)."""
    some = rows if len(rows) <= EXACT else rows[np.arange(EXACT) * len(rows) // EXACT]
    flat = some.astype(np.float64)
    flat /= np.maximum(np.sqrt(np.square(flat).sum(axis=1, keepdims=True)), 1e-30)
    cosines = np.abs(flat @ flat.T)[np.triu_indices(len(flat), 1)]
    return (_log(np.quantile(cosines if len(cosines) else np.zeros(1), _PAIRS)),)


def _largest(matrix: Array, count: int) -> Floats:
    """By subspace iteration from a fixed start."""
    start = np.random.default_rng(0).standard_normal((len(matrix), count + 4))
    basis = np.linalg.qr(start)[0].astype(np.float32)
    for _ in range(_ROUNDS):
        basis = np.linalg.qr((matrix @ (matrix.T @ basis)).astype(np.float64))[0]
        basis = basis.astype(np.float32)
    return np.asarray(np.linalg.svd(matrix.T @ basis, compute_uv=False), np.float64)


def _standard(one: Floats, two: Floats, by: Floats) -> tuple[Floats, Floats]:
    """Each side by its own middle and spread; by those of both where one has few."""
    both = np.concatenate([one, by])
    few = min(len(one), len(by)) < _FEWEST
    mine, other = (both, both) if few else (one, by)
    return tuple(
        (values - np.median(of, axis=0)) / (of.std(axis=0) + _FLOOR)
        for values, of in ((one, mine), (two, other))
    )


def _apart(one: Floats, two: Floats) -> Scores:
    """Mean squared differences, row by row so that no large table is made."""
    return np.stack([np.square(two - row).mean(axis=1) / 4 for row in one])
