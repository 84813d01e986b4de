"""The smallest change of the weights that writes the bits (docs/method.md, section 3).

With s = ±1 for b, A = K·diag(s) and p the pooled carriers, find the smallest d with
Aᵀ(p + d) ≥ g, and add d_j to every carrier of pool j: a least-distance problem. Its dual is a
non-negative least-squares problem in n unknowns, solved by pivoting or by Lawson and Hanson.
Where some weights must stay, or may move less than others, pools differ in what a shift costs.
"""

import math
from collections.abc import Callable
from copy import copy
from typing import Protocol

import numpy as np

from neuralmark.core import readout
from neuralmark.core.bound import SECURITY_BITS, boundary
from neuralmark.core.key import Float, Mark, Parameters
from neuralmark.errors import InfeasibleError

_MAX_ROUNDS = 60
_MAX_PIVOTS = 200
_SLACK = 1e-6
_OVERSHOOT = 2e-3
_PATIENT = 10
_LARGEST_STEP = 8


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
            f" pools={2 * parameters.bits}"
        )
    return found


class Solver(Protocol):
    """What writing needs: the margins of pooled values, and what they lack for a goal.

    Where numbers are to be met, not only passed, steps are `steady`: they must not grow.
    """

    @property
    def most(self) -> float:
        """The largest margin that it can give."""

    @property
    def steady(self) -> bool:
        """Whether steps must not grow."""

    def margins(self, pooled: Float) -> Float:
        """Signed margin of every bit."""

    def change(self, pooled: Float, goal: float) -> Float:
        """What to change, pool by pool, for every margin to reach `goal`."""


class LeastChange:
    """Solver for one mark: the Gram matrix once, then a millisecond or so a call."""

    most: float = math.inf
    steady: bool = False

    def __init__(self, mark: Mark, effort: Float | float = 1.0) -> None:
        """Prepare the half-spaces of this mark; refuse lengths that cannot be met.

        `effort` is the norm of the change of the weights that a shift of a pool's mean by 1 takes,
        pool by pool; infinite where nothing in the pool can move.
        """
        pools, bits = mark.matrix.shape
        self._reach = 1.0 / np.broadcast_to(np.asarray(effort, np.float64), (pools,))
        free = int((self._reach > 0).sum())
        if bits >= 2 * (free - 1):
            fixed = f" ({pools - free} of {pools} have no weight that may move)"
            raise InfeasibleError(
                f"{bits} bits cannot be written into {free} pools{fixed if free < pools else ''}:"
                " random half-spaces meet only for bits < 2 x (pools - 1); make a key with"
                f" pools={2 * bits}"
            )
        self._given: Float | float = 0.0
        self._plain = mark.matrix.astype(np.float64) * mark.signs
        self._half_spaces = self._plain * self._reach[:, None]
        self._gram = self._half_spaces.T @ self._half_spaces if bits < free else None

    def margins(self, pooled: Float) -> Float:
        """Signed margin of every bit."""
        return pooled @ self._plain - self._given

    def beyond(self, pooled: Float) -> "LeastChange":
        """The solver for a mark that the change alone shows, too, whatever these values gave.

        Where they have a bit right already, that counts for nothing: every bit is moved by the
        goal. So the mark is read from the difference from these values as well as from the sum.
        """
        other = copy(self)
        other._given = np.maximum(pooled @ self._plain, 0.0)
        return other

    def change(self, pooled: Float, goal: float) -> Float:
        """Cheapest d with every margin of pooled + d at least `goal`."""
        missing = goal - self.margins(pooled)
        if missing.max() <= 0:
            return np.zeros_like(pooled)
        effort = self._by_pivoting(missing)
        if effort is None:
            effort = self._by_distance(missing)
        change = effort * self._reach
        short = goal - self.margins(pooled + change).min()
        if not math.isfinite(short) or short > 1e-6 * float(np.abs(missing).max()):
            raise InfeasibleError(
                "these bits cannot be written at any margin with this key; make a key with more"
                " pools (at least twice as many as bits)"
            )
        return change

    def cost(self, pooled: Float, strength: float) -> float:
        """Norm of the change of the weights that this strength takes."""
        change = self.change(pooled, goal_of(pooled, strength))
        free = self._reach > 0
        return float(np.linalg.norm(change[free] / self._reach[free]))

    def _by_pivoting(self, missing: Float) -> Float | None:
        """From the Gram matrix; None where it does not apply or does not end."""
        helped = None if self._gram is None else least_helping(self._gram, missing)
        return None if helped is None else np.asarray(self._half_spaces @ helped)

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


def least_helping(gram: Float, missing: Float) -> Float | None:
    """Weights, none negative, of the half-spaces whose sum gives each at least what it is missing.

    That sum is the smallest change that does. Block principal pivoting; None where it does not end.
    Guess which bits need help, solve for exactly these, and exchange all that were guessed wrong;
    single exchanges when that does not get better. A handful of rounds as a rule.
    """
    helped = missing > 0
    fewest, patience = len(missing) + 1, 3
    for _ in range(_MAX_PIVOTS):
        chosen = np.flatnonzero(helped)
        try:
            part = np.linalg.solve(gram[np.ix_(chosen, chosen)], missing[chosen])
        except np.linalg.LinAlgError:  # columns that depend on each other
            return None
        weights = np.zeros(len(missing))
        weights[chosen] = part
        slack = gram[:, chosen] @ part - missing
        wrong = np.where(helped, weights < 0, slack < -1e-12 * np.abs(missing).max())
        count = int(wrong.sum())
        if count == 0:
            return weights
        patience = 3 if count < fewest else patience - 1
        fewest = min(fewest, count)
        if patience < 0:
            wrong[np.flatnonzero(wrong)[:-1]] = False
        helped = helped ^ wrong
    return None


def goal_of(pooled: Float, strength: float) -> float:
    """The margin g = γ·‖p - mean(p)‖ that a strength γ stands for."""
    return strength * float(readout.scatter_unit(pooled))


def strength_for(solver: LeastChange, pooled: Float, budget: float) -> float:
    """Largest strength whose change has at most norm `budget` (within 0.5 %); 0 if none has.

    The cost is convex and grows with the strength, so a chord from below never overshoots twice.
    """
    low, low_cost = 0.0, solver.cost(pooled, 0.0)
    if low_cost >= budget:
        return 0.0
    high, high_cost = 1.0, solver.cost(pooled, 1.0)
    while high_cost <= budget:
        if goal_of(pooled, high) >= solver.most:
            return high  # there is no larger margin
        low, low_cost = high, high_cost
        high *= 2.0
        high_cost = solver.cost(pooled, high)
    for _ in range(30):
        if low_cost >= 0.995 * budget:
            break
        share = (budget - low_cost) / (high_cost - low_cost)
        middle = low + (high - low) * min(max(share * 0.999, 0.02), 0.98)
        middle_cost = solver.cost(pooled, middle)
        if middle_cost <= budget:
            low, low_cost = middle, middle_cost
        else:
            high, high_cost = middle, middle_cost
    return low


Decide = Callable[[Float, float], Float | None]
"""From pooled values and an overshoot to what they still lack, or None when the margins hold."""

Realise = Callable[[Float], Float]
"""Writes the weights moved by a shift of their pools, and gives what is pooled then."""


def lacking(solver: Solver, goal: float) -> Decide:
    """What pooled values lack for every margin to reach `goal`, or the most that there is."""
    goal = min(goal, solver.most)

    def decide(pooled: Float, overshoot: float) -> Float | None:
        if solver.margins(pooled).min() >= goal * (1 - _SLACK):
            return None
        return solver.change(pooled, goal * (1 + overshoot))

    return decide


def settle(
    pooled: Float,
    decide: Decide,
    realise: Realise,
    *,
    exact: bool = False,
    steady: bool = False,
) -> Float:
    """Shift the pools until every margin holds in the weights as they are written; give the shift.

    What is written lies on the weights' grid, some of them stay, and dithering meets a shift only
    on average. What the written weights still lack is solved for again and added to the shift,
    until the margins hold; in growing steps, as weights that have come to the end of their room
    follow no longer. `exact` weights are written as they are computed; `steady` steps never grow.
    """
    shift = np.zeros(len(pooled))
    for attempt in range(_MAX_ROUNDS):
        ahead = _SLACK if exact and not attempt else _OVERSHOOT * (attempt + 4)
        more = decide(pooled, ahead)
        if more is None:
            return shift
        late = 0 if steady else max(0, attempt - _PATIENT)
        shift = shift + more * min(1 + late, _LARGEST_STEP)
        pooled = realise(shift)
    raise InfeasibleError(
        "the weights cannot move as far as this strength asks: what they lie on leaves no room (few"
        " steps, or a small range of values); lower the strength, name more tensors, or mark the"
        " weights before they are converted, if they were"
    )
