"""Directions in which a residual stands out, shrunk; and how much of a mark is left (pure).

D is what a suspect differs by from the anchor: a faint mark, spread evenly, under much else. Where
the rest is stronger in some directions than in others, these are worth less. With C = D Dᵀ the
filter is x = μ(C + μ)⁻¹D: a direction of energy λ keeps the share f = μ/(μ + λ). It equals
μD(DᵀD + μ)⁻¹, so it shrinks right and left directions alike.

How much of a mark x still has is the mean derivative of x by D, weight by weight (Stein). It is
known in closed form, also for directions that were found in the very rows they are applied to: with
f₁ + … + fₙ = F, n·p weights, n ≤ p, it is (pF - F(n - F) - Σf²λ/μ)/np. (Taking the directions of
every row from the others changes nothing but the row's factor: Sherman and Morrison.) What is left
of the noise, for one unit of the mark, is Σf²λ over the square of that; μ is chosen to make it
least. No step depends sharply on a count of directions, so another BLAS gives the same result.
Where single rows stand out, they are shrunk as they are (`least_noise_of_rows`), which costs less
of a mark: only their energies are estimated, and what is left is (pF - 2Σf²λ/μ)/np.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from neuralmark.anchors.moves import GRID
from neuralmark.structures.structure import Array

Float = npt.NDArray[np.float64]

SIDE = 4096
"""The shorter side of what is filtered at once; of a larger matrix, this many rows at a time."""

_BLOCK = 1 << 22
"""Numbers that are turned to float64 at once."""
_DIGITS = 10
"""What is filtered is rounded to this many binary digits of the noise in it."""
_LOWEST, _HIGHEST = 40, 6
"""How far μ may lie below and above the mean energy of a direction, in powers of two."""


@dataclass(frozen=True)
class Shrinkage:
    """One choice of μ, and what it does."""

    penalty: float
    """μ; infinite where nothing is shrunk."""
    gain: float
    """How much of an evenly spread mark is left, as a factor."""
    spread: float
    """What becomes of the energy of white noise, as a factor."""
    cost: float
    """Noise for one unit of the mark, relative to that before."""
    kept: float
    """Share of the directions that count, as many as would if each did wholly or not at all."""
    rank: int
    """How many directions are shrunk to less than half of the least one."""


NOTHING = Shrinkage(np.inf, 1.0, 1.0, 1.0, 1.0, 0)


@dataclass(frozen=True, eq=False)
class Plan:
    """How a matrix is to be filtered, and what that does to a mark and to white noise."""

    ends: tuple[tuple[int, int], ...]
    """Rows (of columns, if there are fewer of them) that are filtered at once."""
    grams: tuple[Float, ...] = field(repr=False)
    choices: tuple[Shrinkage, ...]

    @property
    def gain(self) -> float:
        """How much of an evenly spread mark is left, as a factor."""
        return self._mean([choice.gain for choice in self.choices])

    @property
    def spread(self) -> float:
        """What becomes of the energy of white noise, as a factor."""
        return self._mean([choice.spread for choice in self.choices])

    @property
    def cost(self) -> float:
        """Noise for one unit of the mark, relative to that before."""
        return self._mean([choice.cost for choice in self.choices])

    @property
    def kept(self) -> float:
        """Share of the directions that count."""
        return self._mean([choice.kept for choice in self.choices])

    @property
    def rank(self) -> int:
        """How many directions are shrunk to less than half of the least one."""
        return sum(choice.rank for choice in self.choices)

    def of(self, matrix: Array) -> Array:
        """The matrix filtered."""
        if matrix.shape[0] > matrix.shape[1]:
            return self.of(matrix.T).T
        values = np.empty(matrix.shape, np.float32)
        for (low, high), products, choice in zip(self.ends, self.grams, self.choices, strict=True):
            _apply(products, choice.penalty, matrix[low:high], values[low:high])
        return values

    def _mean(self, each: list[float]) -> float:
        sizes = np.array([high - low for low, high in self.ends])
        return float(sizes @ np.array(each) / sizes.sum())


def plan(matrix: Array, floor: float) -> Plan:
    """How to filter a matrix.

    `floor` is the mean square of a noise that is known to be everywhere: directions that are
    quieter are not preferred. With filtering, 4n²p operations and 3n² numbers in float64 for n x p
    weights, n ≤ p, n ≤ SIDE.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return plan(matrix.T, floor)
    height, width = matrix.shape
    parts = -(-height // SIDE)
    cuts = [height * part // parts for part in range(parts + 1)]
    ends = tuple(pairwise(cuts))
    grams = tuple(gram(matrix[low:high]) for low, high in ends)
    choices = tuple(least_noise(_energies(each), width, floor) for each in grams)
    return Plan(ends, grams, choices)


def least_noise_of_rows(energies: Float, width: int, floor: float) -> tuple[Float, Shrinkage]:
    """The share that each row keeps, from the mean squares of the rows."""
    choice = least_noise(energies * width, width, floor, alone=True)
    if np.isinf(choice.penalty):
        return np.ones(len(energies)), choice
    return choice.penalty / (choice.penalty + energies * width), choice


def least_noise(energies: Float, width: int, floor: float, *, alone: bool = False) -> Shrinkage:
    """The μ, on a fixed grid, that leaves the least noise for one unit of the mark.

    `alone`: the energies are those of rows, not of directions.

    >>> energies = np.array([1.0] * 60 + [900.0] * 4) * 1000
    >>> one = least_noise(energies, 1000, 0.0)
    >>> one.rank, round(one.gain, 1), one.cost < 0.05
    (4, 0.8, True)
    """
    energies = np.maximum(energies, 0.0)
    height, mean = len(energies), float(energies.mean())
    if mean <= 0 or height < 2:
        return NOTHING
    best, middle = NOTHING, round(2 * np.log2(mean))
    for step in range(2 * _HIGHEST, -2 * _LOWEST, -1):
        penalty = 2.0 ** ((middle + step) / 2)
        left = penalty / (penalty + energies)
        total, squares = float(left.sum()), float((left * left).sum())
        energy = float((left * left * energies).sum())
        lost = 2 * energy / penalty if alone else total * (height - total) + energy / penalty
        gain = (width * total - lost) / (height * width)
        if gain <= GRID:
            break
        noise = (energy + floor * width * squares) / height / (mean + floor * width) / gain**2
        cost = round(noise / GRID) * GRID
        if cost < best.cost:
            quiet = penalty / (penalty + max(float(energies.min()), floor * width))
            rank = int((left < quiet / 2).sum())
            kept = total**2 / (height * squares)
            best = Shrinkage(penalty, gain, squares / height, cost, kept, rank)
    return best


def gram(matrix: Array) -> Float:
    """Inner products of the rows, in float64."""
    total = np.zeros((len(matrix), len(matrix)))
    for low, high in _blocks(matrix):
        part = matrix[:, low:high].astype(np.float64)
        total += part @ part.T
    return total


def _energies(products: Float) -> Float:
    return np.asarray(np.linalg.eigvalsh(products), np.float64)


def _apply(products: Float, penalty: float, matrix: Array, out: Array) -> None:
    if np.isinf(penalty):
        out[...] = matrix
        return
    products = products / penalty
    products.flat[:: len(products) + 1] += 1.0
    by = np.linalg.inv(products)
    # The last digits, which depend on the order of sums, are rounded off.
    grid = 2.0 ** (np.floor(0.5 * np.log2(penalty / matrix.shape[1])) - _DIGITS)
    for low, high in _blocks(matrix):
        part = by @ matrix[:, low:high].astype(np.float64)
        out[:, low:high] = np.rint(part / grid) * grid


def _blocks(matrix: Array) -> list[tuple[int, int]]:
    height, width = matrix.shape
    step = max(_BLOCK // max(height, 1), 1)
    return [(low, min(low + step, width)) for low in range(0, width, step)]
