"""Statistics that might betray a mark: of one tensor, of a tensor against clean ones, of an update.

All are pure functions of arrays. Tensors are seen as matrices of outputs by everything else, and
scale is taken out, so that layers of different sizes can be compared.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from neuralmark.core.update import auc, noise_law
from neuralmark.errors import ParameterError

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Statistic = Callable[[Array, Sequence[Array]], float]
"""From a tensor and clean references (maybe none) to a score: the higher, the more suspicious."""

__all__ = [
    "STATISTICS",
    "auc",
    "edge",
    "excess_kurtosis",
    "ks_between",
    "ks_gaussian",
    "marchenko_pastur",
    "spectral_between",
    "spectrum",
    "standardised",
    "update",
]

_COARSE = 64


def standardised(values: Array) -> Floats:
    """All values in one row, with mean zero and deviation one."""
    flat = np.asarray(values, np.float64).reshape(-1)
    spread = float(flat.std())
    centred: Floats = (flat - flat.mean()) / (spread or 1.0)
    return centred


def excess_kurtosis(values: Array) -> float:
    """Fourth moment beyond a Gaussian's; 0 for a Gaussian, below for flat, above for heavy tails.

    >>> excess_kurtosis(np.array([-1.0, 1.0]))
    -2.0
    """
    return float(np.mean(standardised(values) ** 4) - 3)


def ks_gaussian(values: Array) -> float:
    """Largest distance between the distribution function of the values and a Gaussian's."""
    from scipy.special import ndtr

    ordered = np.sort(standardised(values))
    return _ks_against(np.asarray(ndtr(ordered), np.float64))


def ks_between(values: Array, others: Array) -> float:
    """Largest distance between two empirical distribution functions, scale taken out.

    >>> ks_between(np.array([0.0, 1.0, 2.0]), np.array([10.0, 20.0, 30.0]))
    0.0
    """
    return _ks_two(np.sort(standardised(values)), np.sort(standardised(others)))


def spectrum(values: Array) -> Floats:
    """Singular values, largest first, in units of deviation times the root of the longer side."""
    matrix = np.asarray(values, np.float64)
    matrix = matrix.reshape(len(matrix), -1)
    spread = float(matrix.std()) or 1.0
    found = np.linalg.svd(matrix - matrix.mean(), compute_uv=False)
    return np.asarray(found / (spread * np.sqrt(max(matrix.shape))), np.float64)


def edge(values: Array) -> float:
    """Largest singular value over the edge that pure noise of this shape has."""
    matrix = values.reshape(len(values), -1)
    return float(spectrum(values)[0] / (1 + np.sqrt(_aspect(matrix))))


def marchenko_pastur(values: Array) -> float:
    """Largest distance between the spectrum and the one of pure noise of this shape."""
    squares = np.sort(spectrum(values) ** 2)
    grid, law = noise_law(_aspect(values.reshape(len(values), -1)))
    return _ks_against(np.interp(squares, grid, law))


def spectral_between(values: Array, others: Array) -> float:
    """Largest distance between the distributions of the singular values of two tensors."""
    return _ks_two(np.sort(spectrum(values)), np.sort(spectrum(others)))


STATISTICS: Mapping[str, Statistic] = {
    "kurtosis": lambda values, clean: excess_kurtosis(values),
    "ks": lambda values, clean: (
        float(np.mean([ks_between(values, other) for other in clean]))
        if clean
        else ks_gaussian(values)
    ),
    "edge": lambda values, clean: edge(values),
    "noise_law": lambda values, clean: marchenko_pastur(values),
    "spectrum": lambda values, clean: (
        float(np.mean([spectral_between(values, other) for other in clean]))
        if clean
        else marchenko_pastur(values)
    ),
}
"""Scores of one tensor, by name."""


def update(before: Array, after: Array) -> dict[str, float]:
    """What the change from one checkpoint to the next looks like.

    `changed` is the share of weights that moved, `distinct` the number of different steps,
    `duplicated` the share of moved weights whose step some other weight took as well, `unison`
    how much more often steps coincide than a smooth distribution of them would let them (1:
    no more; up to 64: always).
    """
    if before.shape != after.shape:
        raise ParameterError(
            f"an update needs two tensors of one shape, not {before.shape} and {after.shape}"
        )
    steps = (np.asarray(after, np.float64) - np.asarray(before, np.float64)).reshape(-1)
    # What rounding to float32 does to a step that was the same for many weights.
    unit = 2.0**-22 * max(float(np.abs(before).max()), float(np.abs(after).max()), 1e-30)
    moved = steps[np.abs(steps) > unit / 2]
    if not len(moved):
        return {"changed": 0.0, "distinct": 0.0, "duplicated": 0.0, "unison": 1.0}
    _, counts = np.unique(np.rint(moved / unit), return_counts=True)
    return {
        "changed": len(moved) / len(steps),
        "distinct": float(len(counts)),
        "duplicated": float(counts[counts > 1].sum() / len(moved)),
        "unison": _unison(moved, counts, unit),
    }


def _unison(moved: Floats, counts: Array, unit: float) -> float:
    """Coincidences on the fine grid against those on one 64 times as coarse."""
    if len(moved) < 2:
        return 1.0
    _, coarse = np.unique(np.rint(moved / (unit * _COARSE)), return_counts=True)
    fine_pairs = float((counts * (counts - 1.0)).sum())
    coarse_pairs = float((coarse * (coarse - 1.0)).sum())
    return _COARSE * fine_pairs / coarse_pairs if coarse_pairs else 1.0


def _aspect(matrix: Array) -> float:
    """Shorter over longer side."""
    return float(min(matrix.shape) / max(matrix.shape))


def _ks_against(law: Floats) -> float:
    """Distance to a law of which the values at the ordered sample are given."""
    steps = np.arange(len(law) + 1) / len(law)
    return float(max(np.max(law - steps[:-1]), np.max(steps[1:] - law)))


def _ks_two(one: Floats, two: Floats) -> float:
    both = np.concatenate([one, two])
    first = np.searchsorted(one, both, "right") / len(one)
    second = np.searchsorted(two, both, "right") / len(two)
    return float(np.abs(first - second).max())
