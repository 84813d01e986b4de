"""What a fine-tuned tensor shows to somebody who has the public base it came from.

The difference to the base is the fine-tuning and the mark. Whoever takes the part of low rank out
of it (an adapter that was merged) sees the rest weight by weight: a mark is hidden there only if
fine-tuning moved each weight further than the mark does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from neuralmark.core.key import Float
from neuralmark.errors import ParameterError

Values = npt.NDArray[np.floating]

MOST_RANK = 64
"""An adapter has no more; what is left without these directions is what a mark can hide in."""
_OVERSAMPLED = 8
_LAW_POINTS = 4096
_PASSES = 3
_EXACT = 512
"""Matrices with a side no longer than this are decomposed as they are."""
_UNMOVED = 0.01
"""More weights than this share that equal the base's are not chance: a mark in them would show."""


@dataclass(frozen=True, eq=False)
class Update:
    """How a tensor differs from its base."""

    size: float
    """Root mean square of the difference."""
    unmoved: float
    """Share of the weights that are the base's."""
    residual: float
    """Root mean square of what the part of low rank does not explain."""
    left: Values = field(repr=False)
    right: Values = field(repr=False)
    """The part of low rank is left @ right."""

    @property
    def sparse(self) -> bool:
        """Whether so many weights are the base's that a moved one would show."""
        return self.unmoved > _UNMOVED

    @property
    def explained(self) -> float:
        """Share of the difference in its part of low rank, beyond what noise has there too."""
        if not self.size or not self.left.size:
            return 0.0
        noise = noise_share(len(self.left), self.right.shape[1], len(self.right))
        return max(1.0 - (self.residual / self.size) ** 2 / (1.0 - noise), 0.0)

    def smooth_part(self, positions: npt.NDArray[np.int64]) -> Float:
        """The part of low rank at these flat positions."""
        if not self.left.size:
            return np.zeros(len(positions))
        row, column = np.divmod(positions, self.right.shape[1])
        product: Float = np.einsum("ij,ji->i", self.left[row], self.right[:, column])
        return product.astype(np.float64)


def update_of(difference: Values, rows: int) -> Update:
    """Look at a difference, laid out as `rows` rows."""
    flat = difference.reshape(-1)
    total = float(np.square(flat, dtype=np.float64).sum())
    matrix = flat.reshape(rows, -1)
    left, right = low_rank(matrix, min(MOST_RANK, min(matrix.shape) // _OVERSAMPLED))
    kept = float(np.square(left, dtype=np.float64).sum())  # the rows of `right` are orthonormal
    count = max(len(flat), 1)
    return Update(
        size=float(np.sqrt(total / count)),
        unmoved=float(np.count_nonzero(flat == 0) / count),
        residual=float(np.sqrt(max(total - kept, 0.0) / count)),
        left=left,
        right=right,
    )


def low_rank(matrix: Values, rank: int) -> tuple[Values, Values]:
    """The best product of so low a rank: left @ right, rows of `right` orthonormal.

    Exact for small matrices; for large ones by random directions and a few passes (Halko,
    Martinsson and Tropp 2011).

    >>> left, right = low_rank(np.outer([1.0, 2.0, 3.0], [1.0, -1.0]), 1)
    >>> np.round(left @ right, 6).tolist()
    [[1.0, -1.0], [2.0, -2.0], [3.0, -3.0]]
    """
    if rank < 1 or not matrix.any():
        empty = np.zeros((len(matrix), 0), matrix.dtype)
        return empty, np.zeros((0, matrix.shape[1]), matrix.dtype)
    if min(matrix.shape) <= max(_EXACT, 2 * rank):
        turned, sizes, right = np.linalg.svd(matrix, full_matrices=False)
        return turned[:, :rank] * sizes[:rank], right[:rank]
    rng = np.random.default_rng(0)
    probes = rng.standard_normal((matrix.shape[1], rank + _OVERSAMPLED)).astype(matrix.dtype)
    for _ in range(_PASSES):
        base, _ = np.linalg.qr(matrix @ probes)
        probes, _ = np.linalg.qr(matrix.T @ base)
    turned, sizes, right = np.linalg.svd(base.T @ matrix, full_matrices=False)
    return (base @ turned[:, :rank]) * sizes[:rank], right[:rank]


def noise_share(rows: int, columns: int, rank: int) -> float:
    """The share of its energy that a matrix of noise has in its largest directions.

    >>> round(noise_share(1000, 1000, 100), 2)
    0.31
    """
    short = min(rows, columns)
    squares, law = noise_law(short / max(rows, columns))
    middle = (squares[1:] + squares[:-1]) / 2
    energy = np.concatenate([[0.0], np.cumsum(np.diff(law) * middle)])
    return float(1.0 - np.interp(1.0 - rank / short, law, energy) / energy[-1])


def noise_law(aspect: float) -> tuple[Float, Float]:
    """Distribution function of squared singular values of pure noise (Marchenko and Pastur).

    `aspect` is the shorter side over the longer. Gives the squares, and the share below each.
    """
    low, high = (1 - np.sqrt(aspect)) ** 2, (1 + np.sqrt(aspect)) ** 2
    # Through the angle, so that the density is finite at both ends.
    angle = np.linspace(0, np.pi, _LAW_POINTS)
    grid = (low + high) / 2 - (high - low) / 2 * np.cos(angle)
    slope = ((high - low) / 2 * np.sin(angle)) ** 2 / (2 * np.pi * aspect * np.maximum(grid, 1e-12))
    law = np.concatenate([[0.0], np.cumsum((slope[1:] + slope[:-1]) / 2)])
    return np.asarray(grid, np.float64), np.asarray(law / law[-1], np.float64)


def auc(marked_scores: Sequence[float] | Values, clean_scores: Sequence[float] | Values) -> float:
    """Chance that a marked one scores above a clean one, ties counted half (Mann-Whitney, exact).

    >>> auc([2, 3], [1, 2])
    0.875
    """
    marked = np.asarray(marked_scores, np.float64)
    clean = np.sort(np.asarray(clean_scores, np.float64))
    if not len(marked) or not len(clean):
        raise ParameterError("an AUC needs scores of both kinds")
    if not (np.isfinite(marked).all() and np.isfinite(clean).all()):
        raise ParameterError("an AUC needs finite scores")
    below = np.searchsorted(clean, marked, "left") + np.searchsorted(clean, marked, "right")
    return float(below.sum() / (2 * len(marked) * len(clean)))
