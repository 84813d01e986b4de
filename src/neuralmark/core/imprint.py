"""The smallest change of the weights that writes the bits (METHOD, section 3).

With s = ±1 for b, A = K·diag(s) and p the pooled carriers, find the smallest d with
Aᵀ(p + d) ≥ g, and add d_j to every carrier of pool j: a least-distance problem, solved by
non-negative least squares on its dual.
"""

import math
from collections.abc import Callable

import numpy as np

from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Float, Mark
from neuralmark.errors import InfeasibleError

Rounding = Callable[[Float], Float]
"""Maps values to the nearest ones that the file's dtype can hold."""

_MAX_ROUNDS = 60
_SLACK = 1e-6
_OVERSHOOT = 2e-3


class LeastChange:
    """Solver for one mark; factors its Gram matrix once and then takes milliseconds a call."""

    def __init__(self, mark: Mark) -> None:
        """Prepare the half-spaces of this mark; refuse lengths that cannot be met."""
        p = mark.parameters
        if p.bits >= 2 * (p.pools - 1):
            raise InfeasibleError(
                f"{p.bits} bits cannot be written into {p.pools} pools: random half-spaces meet"
                f" only for bits < 2 x (pools - 1); make a key with --pools {2 * p.bits}"
            )
        self._half_spaces = mark.matrix.astype(np.float64) * mark.signs
        self._factor: Float | None = None
        if p.bits < p.pools:
            gram = self._half_spaces.T @ self._half_spaces
            try:
                self._factor = np.asarray(np.linalg.cholesky(gram), np.float64)
            except np.linalg.LinAlgError:  # nearly dependent columns: the primal form still works
                self._factor = None

    def margins(self, pooled: Float) -> Float:
        """Signed margin of every bit."""
        return pooled @ self._half_spaces

    def change(self, pooled: Float, goal: float) -> Float:
        """Smallest d with every margin of pooled + d at least `goal`."""
        missing = goal - self.margins(pooled)
        if missing.max() <= 0:
            return np.zeros_like(pooled)
        dual = self._by_factor if self._factor is not None else self._by_distance
        change = dual(missing)
        short = goal - self.margins(pooled + change).min()
        if not math.isfinite(short) or short > 1e-6 * float(np.abs(missing).max()):
            raise InfeasibleError(
                "these bits cannot be written at any margin with this key; make a key with more"
                " pools (--pools at least twice --bits)"
            )
        return change

    def _by_factor(self, missing: Float) -> Float:
        from scipy.linalg import solve_triangular
        from scipy.optimize import nnls

        assert self._factor is not None
        scale = float(np.abs(missing).max())
        right = solve_triangular(self._factor, missing / scale, lower=True)
        weights, _ = nnls(np.ascontiguousarray(self._factor.T), right)
        return np.asarray(self._half_spaces @ weights * scale)

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


def write_bits(
    values: Float, carriers: Carriers, solver: LeastChange, goal: float, rounding: Rounding
) -> Float:
    """The carriers' new values: every margin at least `goal` after rounding to the file's dtype.

    Weights already lie on the dtype's grid, so a small shift may round away, and equal ones move
    all at once. What the rounded weights still lack is solved for again and added to the shift,
    which differs a little from weight to weight, until the margins hold.
    """
    pool_of = carriers.pool_of(0, carriers.size)
    spread: Float | float = 1.0
    shift = np.zeros(carriers.pools)
    written = values
    for attempt in range(_MAX_ROUNDS):
        pooled = readout.pool(written, carriers.pools, carriers.pooling)
        if solver.margins(pooled).min() >= goal * (1 - _SLACK):
            return written
        if attempt == 3:
            spread = np.random.default_rng(0).uniform(0.7, 1.3, len(values))
        overshoot = _OVERSHOOT * attempt if attempt else _SLACK
        shift = shift + solver.change(pooled, goal * (1 + overshoot))
        written = rounding(values + shift[pool_of] * spread)
    raise InfeasibleError(
        "the file's dtype is too coarse for this margin; lower --strength or mark the weights"
        " before they are converted"
    )
