"""The smallest change of the weights that writes the bits (METHOD, section 3).

With s = ±1 for b, A = K·diag(s) and p the pooled carriers, find the smallest d with
Aᵀ(p + d) ≥ g, and add d_j to every carrier of pool j: a least-distance problem. Its dual is a
non-negative least-squares problem in n unknowns, solved by pivoting or by Lawson and Hanson.
"""

import math
from collections.abc import Callable

import numpy as np

from neuralmark.core import readout
from neuralmark.core.bound import SECURITY_BITS, boundary
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Float, Mark, Parameters
from neuralmark.errors import InfeasibleError

Rounding = Callable[[Float], Float]
"""Maps values to the nearest ones that the file's dtype can hold."""


_MAX_ROUNDS = 60
_MAX_PIVOTS = 200
_EVEN_ROUNDS = 3
_SLACK = 1e-6
_OVERSHOOT = 2e-3


def doubts(parameters: Parameters) -> list[str]:
    """Why keys of these parameters can never prove or never be written, if so."""
    found = []
    if boundary(parameters.bits) is None:
        found.append(
            f"{parameters.bits} bits can never be verified to 2^-{SECURITY_BITS}, not even by a"
            " full match; use 256 or more"
        )
    if parameters.pools and parameters.bits >= 2 * (parameters.pools - 1):
        found.append(
            f"{parameters.bits} bits cannot be written into {parameters.pools} pools; use"
            f" --pools {2 * parameters.bits}"
        )
    return found


class LeastChange:
    """Solver for one mark: the Gram matrix once, then a millisecond or so a call."""

    def __init__(self, mark: Mark) -> None:
        """Prepare the half-spaces of this mark; refuse lengths that cannot be met."""
        pools, bits = mark.matrix.shape
        if bits >= 2 * (pools - 1):
            raise InfeasibleError(
                f"{bits} bits cannot be written into {pools} pools: random half-spaces meet"
                f" only for bits < 2 x (pools - 1); make a key with --pools {2 * bits}"
            )
        self._half_spaces = mark.matrix.astype(np.float64) * mark.signs
        self._gram = self._half_spaces.T @ self._half_spaces if bits < pools else None

    def margins(self, pooled: Float) -> Float:
        """Signed margin of every bit."""
        return pooled @ self._half_spaces

    def change(self, pooled: Float, goal: float) -> Float:
        """Smallest d with every margin of pooled + d at least `goal`."""
        missing = goal - self.margins(pooled)
        if missing.max() <= 0:
            return np.zeros_like(pooled)
        change = self._by_pivoting(missing)
        if change is None:
            change = self._by_distance(missing)
        short = goal - self.margins(pooled + change).min()
        if not math.isfinite(short) or short > 1e-6 * float(np.abs(missing).max()):
            raise InfeasibleError(
                "these bits cannot be written at any margin with this key; make a key with more"
                " pools (--pools at least twice --bits)"
            )
        return change

    def _by_pivoting(self, missing: Float) -> Float | None:
        """Block principal pivoting on the dual; None where it does not apply or does not end.

        Guess which bits need help, solve for exactly these, and exchange all that were guessed
        wrong; single exchanges when that does not get better. A handful of rounds as a rule.
        """
        if self._gram is None:
            return None
        helped = missing > 0
        fewest, patience = len(missing) + 1, 3
        for _ in range(_MAX_PIVOTS):
            chosen = np.flatnonzero(helped)
            try:
                part = np.linalg.solve(self._gram[np.ix_(chosen, chosen)], missing[chosen])
            except np.linalg.LinAlgError:  # columns that depend on each other
                return None
            weights = np.zeros(len(missing))
            weights[chosen] = part
            slack = self._gram[:, chosen] @ part - missing
            wrong = np.where(helped, weights < 0, slack < -1e-12 * np.abs(missing).max())
            count = int(wrong.sum())
            if count == 0:
                return np.asarray(self._half_spaces @ weights)
            patience = 3 if count < fewest else patience - 1
            fewest = min(fewest, count)
            if patience < 0:
                wrong[np.flatnonzero(wrong)[:-1]] = False
            helped = helped ^ wrong
        return None

    def _by_distance(self, missing: Float) -> Float:
        """Lawson and Hanson's form, for more bits than pools."""
        from scipy.optimize import nnls

        pools = len(self._half_spaces)
        scale, shrink = float(np.abs(missing).max()), 1.0 / math.sqrt(pools)
        system = np.vstack([self._half_spaces * shrink, missing[None] / scale])
        unit = np.zeros(pools + 1)
        unit[-1] = 1.0
        weights, _ = nnls(system, unit)
        residual = system @ weights - unit
        if abs(residual[-1]) < 1e-12:
            return np.full(pools, np.nan)
        return np.asarray(-residual[:-1] / residual[-1] * scale * shrink)


def goal_of(pooled: Float, strength: float) -> float:
    """The margin g = γ·‖p - mean(p)‖ that a strength γ stands for."""
    return strength * float(readout.scatter_unit(pooled))


def cost(solver: LeastChange, pooled: Float, per_pool: int, strength: float) -> float:
    """Norm of the change of the weights that this strength takes."""
    change = solver.change(pooled, goal_of(pooled, strength))
    return math.sqrt(per_pool) * float(np.linalg.norm(change))


def strength_for(solver: LeastChange, pooled: Float, per_pool: int, budget: float) -> float:
    """Largest strength whose change has at most norm `budget` (within 0.5 %); 0 if none has.

    The cost is convex and grows with the strength, so a chord from below never overshoots twice.
    """
    low, low_cost = 0.0, cost(solver, pooled, per_pool, 0.0)
    if low_cost >= budget:
        return 0.0
    high, high_cost = 1.0, cost(solver, pooled, per_pool, 1.0)
    while high_cost <= budget:
        low, low_cost = high, high_cost
        high *= 2.0
        high_cost = cost(solver, pooled, per_pool, high)
    for _ in range(30):
        if low_cost >= 0.995 * budget:
            break
        share = (budget - low_cost) / (high_cost - low_cost)
        middle = low + (high - low) * min(max(share * 0.999, 0.02), 0.98)
        middle_cost = cost(solver, pooled, per_pool, middle)
        if middle_cost <= budget:
            low, low_cost = middle, middle_cost
        else:
            high, high_cost = middle, middle_cost
    return low


Decide = Callable[[Float, float], Float | None]
"""From pooled values and an overshoot to what they still lack, or None when the margins hold."""

Realise = Callable[[Float, bool], Float]
"""Writes values + shift (unevenly on request), rounded, and gives what is pooled then."""


def lacking(solver: LeastChange, goal: float) -> Decide:
    """What pooled values lack for every margin to reach `goal`."""

    def decide(pooled: Float, overshoot: float) -> Float | None:
        if solver.margins(pooled).min() >= goal * (1 - _SLACK):
            return None
        return solver.change(pooled, goal * (1 + overshoot))

    return decide


def settle(pooled: Float, decide: Decide, realise: Realise) -> None:
    """Shift the pools until every margin holds after rounding to the weights' dtype.

    Weights already lie on the dtype's grid, so a small shift may round away, and equal ones move
    all at once. What the rounded weights still lack is solved for again and added to the shift,
    which then differs a little from weight to weight, until the margins hold.
    """
    shift = np.zeros(len(pooled))
    for attempt in range(_MAX_ROUNDS):
        more = decide(pooled, _OVERSHOOT * attempt if attempt else _SLACK)
        if more is None:
            return
        shift = shift + more
        pooled = realise(shift, attempt >= _EVEN_ROUNDS)
    raise InfeasibleError(
        "the weights' dtype is too coarse for this margin; lower the strength, or mark the weights"
        " before they are converted"
    )


def uneven(size: int) -> Float:
    """Factors around 1 that let equal weights move one after the other."""
    return np.random.default_rng(0).uniform(0.7, 1.3, size)


def write_bits(
    values: Float, carriers: Carriers, solver: LeastChange, goal: float, rounding: Rounding
) -> Float:
    """The carriers' new values: every margin at least `goal` after rounding to the file's dtype."""
    pool_of = carriers.pool_of(0, carriers.size)
    written = values

    def realise(shift: Float, unevenly: bool) -> Float:
        nonlocal written
        change = shift[pool_of] * uneven(len(values)) if unevenly else shift[pool_of]
        written = rounding(values + change)
        return _pooled(written)

    def _pooled(array: Float) -> Float:
        pooled: Float = readout.pool(array, carriers.pools, carriers.pooling)
        return pooled

    settle(_pooled(values), lacking(solver, goal), realise)
    return written
