"""Scores that may tell carriers from other weights, for whoever has no key.

Each is a pure function of a tensor (and of a public base or an older release where that is what
it takes) and gives one number per weight, in row-major order: the higher, the likelier a carrier.
`LOCATORS` lists them all. `two_sided_auc` says, with the true carriers, what a score is worth.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neuralmark.attacks.tools.grids import empty_bits, grid_depth, scale_distance
from neuralmark.attacks.tools.statistics import auc
from neuralmark.attacks.tools.tracing import (
    Guess,
    best_period,
    best_split,
    levelled,
    positions_under,
    read_residues,
    refined,
    residue_means,
)
from neuralmark.core import update as core
from neuralmark.errors import ParameterError

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]

NOTHING, BASE, OLDER = "nothing", "base", "older"
"""What a locator needs beside the tensor: nothing, a public base, the release before."""

RANK = 16
WINDOW = 1024


@dataclass(frozen=True)
class Locator:
    """A way to look for carriers: what it needs, what it looks at, and its scores."""

    needs: str
    meaning: str
    scores: Callable[[Array, Array, Guess], Floats]
    """From the tensor, what it needs (the tensor itself if nothing) and the guess."""


def locate(name: str, w: Array, beside: Array | None = None, guess: Guess | None = None) -> Floats:
    """One score per weight by the locator of this name; all are finite."""
    if name not in LOCATORS:
        raise ParameterError(f"there is no locator {name!r}; there are {', '.join(LOCATORS)}")
    locator = LOCATORS[name]
    if beside is None and locator.needs != NOTHING:
        raise ParameterError(f"the locator {name!r} needs the {locator.needs} tensor beside")
    if beside is not None and beside.shape != w.shape:
        raise ParameterError(f"the tensor beside has shape {beside.shape}, not {w.shape}")
    return locator.scores(w, w if beside is None else beside, guess or Guess())


def two_sided_auc(
    scores: Floats, carriers: Positions, *, sample: int = 0, rng: np.random.Generator | None = None
) -> float:
    """max(AUC, 1 - AUC) of the scores of the carriers against all other weights.

    With `sample`, this many of each kind are drawn (0: all are taken; 10 million take seconds).
    """
    mask = np.zeros(len(scores), np.bool_)
    mask[carriers] = True
    kinds = [scores[mask], scores[~mask]]
    if sample:
        rng = np.random.default_rng(0) if rng is None else rng
        kinds = [rng.choice(k, sample, replace=False) if len(k) > sample else k for k in kinds]
    found = auc(np.sort(kinds[0]), kinds[1])
    return max(found, 1 - found)


def erase(
    w: Array,
    positions: Positions,
    pools: int,
    order: Positions | None = None,
    scales: Array | None = None,
) -> Array:
    """The tensor with the mean of every strided pool taken out of its carriers.

    `order` is the rank of each position among the carriers (default: 0, 1, 2, …). The mean over
    all carriers stays: no mark with a centred matrix is in it. With `scales`, one for each weight,
    the means of the scaled weights are taken out too: marks are also read with levelled rows.
    """
    made = np.array(w, np.float32)
    flat = made.reshape(-1)
    if not len(positions):
        return made
    pool = (np.arange(len(positions)) if order is None else order) % pools
    values = flat[positions].astype(np.float64)
    each = np.ones(len(values)) if scales is None else scales[positions].astype(np.float64)
    each = each / (np.sqrt(np.square(each).mean()) or 1.0)

    def summed(of: Floats) -> Floats:
        return np.asarray(np.bincount(pool, of, pools), np.float64)

    count, first, second = summed(np.ones(len(values))), summed(each), summed(each * each)
    one = summed(values) - count * values.mean()
    two = summed(values * each) - count * (values * each).mean()
    spread = count * second - first * first
    varied = spread > 1e-6 * count * second
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(varied, (count * two - first * one) / spread, 0.0)
        level = np.where(count > 0, (one - first * slope) / count, 0.0)
    flat[positions] = values - level[pool] - slope[pool] * each
    return made


def set_back(w: Array, to: Array, positions: Positions) -> Array:
    """The tensor with these weights taken from another one of the same shape."""
    made = np.array(w, np.float32)
    made.reshape(-1)[positions] = np.asarray(to, np.float32).reshape(-1)[positions]
    return made


def low_rank(difference: Array, rank: int) -> Array:
    """The closest matrix of this rank, outputs by everything else (exact, or by random probes)."""
    if rank == 0 or difference.ndim < 2 or not difference.size:
        return np.zeros_like(difference)
    matrix = np.asarray(difference, np.float32).reshape(len(difference), -1)
    left, right = core.low_rank(matrix, rank)
    return np.asarray(left @ right, np.float32).reshape(difference.shape)


def residues(w: Array, _beside: Array, guess: Guess) -> Floats:
    """1 for the carriers that follow from the likeliest b; plus how loud the residue is."""
    flat = w.reshape(-1)
    scores = np.zeros(len(flat))
    found = best_split(flat, levelled(w).reshape(-1), guess.bits)
    if found is None:
        return scores
    reading = refined(flat, read_residues(flat, *found, guess), guess)
    means = reading.split.means
    span = float(np.ptp(means)) or 1.0
    scores += np.resize((means - means.min()) / span, len(flat))
    scores[positions_under(reading.ones, reading.rounds, len(flat), guess.pools)] += 1.0
    return scores


def period(w: Array, _beside: Array, guess: Guess) -> Floats:
    """|mean| of the weights that lie whole periods apart, for the likeliest period."""
    flat = w.reshape(-1)
    length, _ = best_period(flat, guess)
    if not length:
        return np.zeros(len(flat))
    means = residue_means(flat, length)
    return np.resize(np.abs(means - means.mean()), len(flat))


def grid(w: Array, _beside: Array, _guess: Guess) -> Floats:
    """How many bits a value lacks to the grid of empty low bits that many others share."""
    depth = grid_depth(w)
    if not depth:
        return np.zeros(w.size)
    return np.asarray(np.maximum(depth - empty_bits(w), 0), np.float64)


def scale(w: Array, _beside: Array, _guess: Guess) -> Floats:
    """Distance from the nearest whole multiple of the row's step (dequantised tensors)."""
    return scale_distance(w)


def zeros(w: Array, _beside: Array, _guess: Guess) -> Floats:
    """1 where the weight is not zero: in a sparse tensor, a mark may have filled zeros."""
    return np.asarray(w.reshape(-1) != 0, np.float64)


def outliers(w: Array, _beside: Array, _guess: Guess) -> Floats:
    """Distance from the tensor's median."""
    return np.asarray(np.abs(w - np.median(w)), np.float64).reshape(-1)


def repeated(w: Array, _beside: Array, _guess: Guess) -> Floats:
    """How many weights of the tensor have exactly this value, in logarithms; zeros count as one."""
    counts = _counts(w.reshape(-1))
    return np.asarray(np.where(w.reshape(-1) == 0, 0.0, np.log(counts)), np.float64)


def low_bits(w: Array, _beside: Array, _guess: Guess) -> Floats:
    """How rare the lowest eight bits of the value are in this tensor, in logarithms."""
    low = np.ascontiguousarray(w, np.float32).reshape(-1).view(np.uint32) & np.uint32(255)
    share = np.bincount(low, minlength=256) / max(1, w.size)
    return np.asarray(-np.log(np.maximum(share, 1e-300))[low], np.float64)


def spectral(w: Array, _beside: Array, _guess: Guess) -> Floats:
    """|w - its part of rank 16|: what the large singular vectors do not explain."""
    return np.asarray(np.abs(w - low_rank(w, RANK)), np.float64).reshape(-1)


def margins(w: Array, _beside: Array, _guess: Guess) -> Floats:
    """|mean of the row| + |mean of the column|, each in its own deviation."""
    rows = np.asarray(w, np.float64).reshape(len(w), -1) if w.ndim > 1 else w.reshape(1, -1)
    parts = [np.abs(rows.mean(axis=a, keepdims=True)) * np.sqrt(rows.shape[a]) for a in (0, 1)]
    return np.asarray(parts[0] + parts[1], np.float64).reshape(-1)


def kurtosis(w: Array, _beside: Array, _guess: Guess) -> Floats:
    """Fourth moment over the squared second of the run of weights that this one lies in."""
    return _by_window(w, lambda runs: (runs**4).mean(1) / np.maximum((runs**2).mean(1), 1e-30) ** 2)


def ks(w: Array, _beside: Array, _guess: Guess) -> Floats:
    """Distance of the distribution of the run of weights around it from the whole tensor's."""
    whole = np.sort(w.reshape(-1))

    def distance(runs: Array) -> Floats:
        law = np.searchsorted(whole, np.sort(runs, axis=1), "right") / len(whole)
        even = (np.arange(runs.shape[1]) + 1) / runs.shape[1]
        return np.asarray(np.abs(law - even).max(axis=1), np.float64)

    return _by_window(w, distance)


def base(w: Array, beside: Array, _guess: Guess) -> Floats:
    """|difference to a public base|, its part of rank 16 (an adapter's) taken out."""
    difference = np.asarray(w, np.float32) - beside
    return np.asarray(np.abs(difference - low_rank(difference, RANK)), np.float64).reshape(-1)


def moved(w: Array, beside: Array, _guess: Guess) -> Floats:
    """|new - old| of two releases."""
    return np.asarray(np.abs(np.asarray(w, np.float64) - beside), np.float64).reshape(-1)


def unison(w: Array, beside: Array, _guess: Guess) -> Floats:
    """How many weights took the same step from the older release, up to rounding; 0: none."""
    steps = np.asarray(w, np.float64).reshape(-1) - np.asarray(beside, np.float64).reshape(-1)
    largest = max(float(np.abs(w).max(initial=0)), float(np.abs(beside).max(initial=0)), 1e-30)
    coarse = np.rint(steps / (2.0**-22 * largest))
    return np.asarray(np.where(coarse == 0, 0.0, np.log(_counts(coarse)) + 1), np.float64)


def _counts(values: Array) -> Array:
    """How often each value occurs among all."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(counts[which])


def _by_window(w: Array, measure: Callable[[Array], Floats]) -> Floats:
    """One number per run of WINDOW weights; the incomplete last run has the run before's."""
    flat = np.asarray(w, np.float64).reshape(-1)
    size = min(WINDOW, max(1, len(flat)))
    whole = len(flat) // size
    if not whole:
        return np.zeros(len(flat))
    found = measure(flat[: whole * size].reshape(whole, size))
    return np.asarray(found[np.minimum(np.arange(len(flat)) // size, whole - 1)], np.float64)


LOCATORS: Mapping[str, Locator] = {
    "residues": Locator(NOTHING, "the published filter's residues modulo n", residues),
    "period": Locator(NOTHING, "means over the published filter's period", period),
    "grid": Locator(NOTHING, "low bits off the grid of the others", grid),
    "scale": Locator(NOTHING, "values off the multiples of a row's step", scale),
    "zeros": Locator(NOTHING, "non-zeros in a sparse tensor", zeros),
    "outliers": Locator(NOTHING, "distance from the median", outliers),
    "repeated": Locator(NOTHING, "values that repeat exactly", repeated),
    "low_bits": Locator(NOTHING, "rare patterns of the lowest bits", low_bits),
    "spectral": Locator(NOTHING, "what the large singular vectors leave", spectral),
    "margins": Locator(NOTHING, "means of the row and of the column", margins),
    "kurtosis": Locator(NOTHING, "heavy tails in runs of weights", kurtosis),
    "ks": Locator(NOTHING, "runs of weights that are distributed otherwise", ks),
    "base": Locator(BASE, "difference to a public base, an adapter's rank removed", base),
    "moved": Locator(OLDER, "difference to the release before", moved),
    "unison": Locator(OLDER, "steps since the release before that many weights share", unison),
}
"""All locators by name."""
