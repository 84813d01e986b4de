"""What the published filter leaves in the weights: residues modulo n, and longer periods.

The published filter lays the n bits of b over the weights again and again. So whether a weight can
be a carrier depends on its position modulo n alone, and some keys repeat their carriers, pools and
all, after a few thousand weights. Everything here is computed from weights; no key is known.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from neuralmark.core.carriers import Tiled

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

LENGTHS = (256, 512, 128, 160, 1024)
"""Lengths of marks that are tried when the length is not known."""
ROUNDS = (1, 2, 3, 4)
FEWEST, MOST = 0.38, 0.62
"""Shares of ones that a hash may have: nearly four deviations at 256 bits."""
ENOUGH = 1 << 19
"""How many weights tell whether a guess is right."""
_DECOYS = (-13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13)
_FEW_ROWS = 4
_FEW_CARRIERS = 1 << 14
_DOUBTFUL, _NEAR = 24, 16
_BETTER = 0.1
_CLEAN = 6.0
STANDS_OUT = 5.0
"""From this many deviations on, it is not chance."""


@dataclass(frozen=True)
class Guess:
    """What is known or supposed of a mark: bits, pools, and the rounds that may have been used."""

    bits: int = 256
    pools: int = 512
    rounds: tuple[int, ...] = ROUNDS


@dataclass(frozen=True, eq=False)
class ResidueSplit:
    """Residues in two classes by one number each."""

    means: Floats
    """The number of each residue, such as the mean square of its weights."""
    ones: Bits
    """1 where it is large."""
    apart: float
    """Distance of the classes in deviations within them; about 2.6 for one Gaussian cloud."""
    ratio: float
    """Mean of the upper class over mean of the lower one."""


@dataclass(frozen=True, eq=False)
class ResidueReading:
    """A guess at b: the split it came from, how far that stands out, and what its pools say."""

    split: ResidueSplit
    z: float
    """How far the split stands out from those of neighbouring lengths, in their deviations."""
    ones: Bits
    rounds: int
    pool_z: float
    """How far the pools' means lie beyond chance under this b, in deviations."""


def levelled(w: Array) -> Array:
    """The tensor with every output row brought to mean square 1: loud rows drown the others."""
    return np.asarray(w * row_scales(w), np.float32) if w.ndim > 1 and w.size else w


def row_scales(w: Array) -> Array:
    """For every weight, what brings its output row to mean square 1."""
    if w.ndim < 2 or not w.size:
        return np.ones_like(w)
    rows = w.reshape(len(w), -1)
    size = np.sqrt(np.square(rows, dtype=np.float64).mean(axis=1, keepdims=True))
    size[size == 0] = 1.0
    scales = np.broadcast_to((1.0 / size).astype(np.float32), rows.shape)
    return np.asarray(scales.reshape(w.shape))


def centred(w: Array) -> Array:
    """The tensor without the means of its columns: inputs differ in every trained network."""
    if w.ndim < 2 or not w.size:
        return w
    rows = w.reshape(len(w), -1)
    return np.asarray(rows - rows.mean(axis=0, dtype=np.float64), np.float32).reshape(w.shape)


def residue_means(values: Array, length: int) -> Floats:
    """Mean of the values by position modulo `length`; the incomplete end is left out.

    >>> residue_means(np.array([1.0, 2.0, 3.0, 4.0, 9.0]), 2).tolist()
    [2.0, 3.0]
    """
    whole = len(values) // length
    folded = values[: whole * length].reshape(whole, length)
    return np.asarray(folded.mean(axis=0, dtype=np.float64), np.float64)


def split(means: Floats) -> ResidueSplit:
    """The best cut of the numbers into an upper and a lower class: least squares, all thresholds.

    The upper class has as many members as a hash may have ones.
    """
    order = np.argsort(-means, kind="stable")
    ranked = means[order]
    counts = np.arange(*_ones_range(len(means)))
    sums, squares = np.cumsum(ranked), np.cumsum(ranked**2)
    upper, lower = counts, len(means) - counts
    top, bottom = sums[counts - 1], sums[-1] - sums[counts - 1]
    within = squares[-1] - top**2 / upper - bottom**2 / lower
    best = int(np.argmin(within))
    count = int(counts[best])
    above, below = top[best] / upper[best], bottom[best] / lower[best]
    spread = math.sqrt(max(float(within[best]), 0.0) / len(means))
    ones = np.zeros(len(means), np.uint8)
    ones[order[:count]] = 1
    apart = float(above - below) / spread if spread > 0 else 0.0
    return ResidueSplit(means, ones, apart, float(above / below) if below else 1.0)


def residue_split(values: Array, length: int) -> tuple[ResidueSplit, float]:
    """The split of the residues of `length`, and its distance from those of lengths nearby.

    Neighbouring lengths show no mark but the same weights: the distance is in deviations of
    their splits.
    """
    found = split(residue_means(values, length))
    decoys = [split(residue_means(values, length + by)).apart for by in _DECOYS]
    return found, (found.apart - float(np.mean(decoys))) / max(float(np.std(decoys)), 1e-3)


def pool_excess(values: Array, pools: int) -> float:
    """How far the means of strided pools lie beyond chance, in deviations of the chance.

    The sum of their squares is chi-square with as many degrees of freedom as there are pools.
    """
    whole = len(values) // pools
    if whole < 2:
        return 0.0
    return fold_excess(values, pools)


def fold_excess(values: Array, period: int) -> float:
    """How far means by position modulo `period` scatter beyond chance, in deviations."""
    means = residue_means(values, period)
    variance = float(values.var(dtype=np.float64))
    if period < 2 or variance == 0:
        return 0.0
    rows = len(values) // period
    energy = rows * float(np.square(means - means.mean()).sum()) / variance
    return (energy - (period - 1)) / math.sqrt(2 * (period - 1))


def best_split(flat: Array, level: Array, length: int) -> tuple[ResidueSplit, float] | None:
    """The split that stands out most, by mean squares, sizes and fourth powers of the weights.

    `level` are the same weights after `levelled`. None: too few weights for this length.
    """
    if len(flat) < _FEW_ROWS * (length + max(_DECOYS)):
        return None
    found = [residue_split(values, length) for values in _features((flat, level))]
    return max(found, key=lambda each: each[1])


def read_residues(flat: Array, found: ResidueSplit, z: float, guess: Guess) -> ResidueReading:
    """The likeliest b under this split.

    Every threshold between the residues is tried with every number of rounds, and judged by the
    pools that follow: with the right b, their means stand out.
    """
    part = flat[:ENOUGH]
    order = np.argsort(-found.means, kind="stable")
    best = ResidueReading(found, z, found.ones, guess.rounds[-1], -math.inf)
    for count in range(*_ones_range(guess.bits)):
        ones = np.zeros(guess.bits, np.uint8)
        ones[order[:count]] = 1
        for rounds in guess.rounds:
            excess = _excess(part, ones, rounds, guess)
            if excess > best.pool_z:
                best = ResidueReading(found, z, ones, rounds, excess)
    return best


def refined(flat: Array, reading: ResidueReading, guess: Guess) -> ResidueReading:
    """The reading with doubtful residues turned over as long as its pools stand out more.

    A wrong residue puts every weight between it and the next wrong one into other pools. So those
    nearest to the threshold are turned over, one or two at a time; what is wrong after that lies
    side by side, and neighbours are exchanged. Readings that do not stand out, and those without
    doubt, stay as they are.
    """
    if max(reading.z, reading.pool_z) < STANDS_OUT or reading.split.apart > _CLEAN:
        return reading
    part, best = flat[: _FEW_CARRIERS << reading.rounds], reading
    order = _doubtful_first(reading)
    single = [(each,) for each in order]
    score = _excess(part, reading.ones, reading.rounds, guess)
    best, score = _turned(part, best, score, [*combinations(order[:_DOUBTFUL], 2), *single], guess)
    if score > 4 * STANDS_OUT:
        pairs = combinations(range(guess.bits), 2)
        near = [(i, j) for i, j in pairs if j - i <= _NEAR and best.ones[i] != best.ones[j]]
        best, score = _turned(part, best, score, [*near, *single], guess)
    return replace(best, pool_z=_excess(flat[:ENOUGH], best.ones, best.rounds, guess))


def positions_under(ones: Bits, rounds: int, total: int, pools: int) -> Positions:
    """The carriers of the published filter under b, cut to whole pools."""
    return Tiled.under(ones, rounds, total, pools).positions()


def periods(guess: Guess, total: int) -> list[int]:
    """Lengths after which carriers and pools of some b repeat, the shorter ones of `total`.

    With h ones in b, an index s carriers on is s·(n/h)^R weights on, if every round divides.

    >>> periods(Guess(256, 512, (4,)), 1 << 20)
    [8192]
    """
    found = {
        _period(guess, ones, rounds)
        for rounds in guess.rounds
        for ones in range(*_ones_range(guess.bits))
    }
    return sorted(each for each in found if each * _FEW_ROWS <= total)


def best_period(flat: Array, guess: Guess) -> tuple[int, float]:
    """The period whose means stand out most, and by how many deviations; (0, 0.0): none fits."""
    found = [(_standing(flat, each), each) for each in periods(guess, len(flat))]
    z, period = max(found, default=(0.0, 0))
    return period, z


def without_period(flat: Array, period: int) -> Array:
    """The weights less the mean over the period: what repeats is gone."""
    means = residue_means(flat, period).astype(np.float32)
    return np.asarray(flat - np.resize(means - means.mean(), len(flat)), np.float32)


def _ones_range(bits: int) -> tuple[int, int]:
    """From the fewest ones that a hash may have to one more than the most."""
    return max(1, math.floor(FEWEST * bits)), min(bits - 1, math.ceil(MOST * bits)) + 1


def _features(views: Iterable[Array]) -> list[Array]:
    """Functions of single weights that a shift of some of them moves."""
    made = []
    for values in views:
        square = np.square(values)
        made += [square, np.abs(values), np.square(square)]
    return made


def _turned(
    part: Array, best: ResidueReading, score: float, moves: Sequence[tuple[int, ...]], guess: Guess
) -> tuple[ResidueReading, float]:
    """Turn over these residues, time and again until nothing helps."""
    helped = True
    while helped:
        helped = False
        for move in moves:
            ones = best.ones.copy()
            ones[list(move)] ^= 1
            now = _excess(part, ones, best.rounds, guess)
            if now > score + _BETTER:
                best, score, helped = replace(best, ones=ones), now, True
    return best, score


def _doubtful_first(reading: ResidueReading) -> list[int]:
    """The residues, those nearest to the threshold first."""
    means, count = reading.split.means, int(reading.ones.sum())
    edge = float(np.sort(means)[::-1][max(0, count - 1) : count + 1].mean())
    return [int(each) for each in np.argsort(np.abs(means - edge), kind="stable")]


def _excess(part: Array, ones: Bits, rounds: int, guess: Guess) -> float:
    return pool_excess(part[positions_under(ones, rounds, len(part), guess.pools)], guess.pools)


def _period(guess: Guess, ones: int, rounds: int) -> int:
    steps = [guess.pools]
    for done in range(rounds):
        whole, dealt = ones ** (done + 1), guess.bits**done
        steps.append(whole // math.gcd(whole, dealt))
    return int(math.lcm(*steps) * guess.bits**rounds // ones**rounds)


def _standing(flat: Array, period: int, decoys: Sequence[int] = (-3, -1, 1, 3)) -> float:
    """How far a period's means stand out from those of periods nearby, in deviations."""
    others = [fold_excess(flat, period + by) for by in decoys]
    return (fold_excess(flat, period) - float(np.mean(others))) / max(1.0, float(np.std(others)))
