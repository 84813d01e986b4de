"""Writing bits by the smallest change."""

import numpy as np
import pytest
from scipy.optimize import minimize

from neuralmark.checkpoints._dtypes import FLOATS, rounded
from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.imprint import LeastChange, cost, goal_of, strength_for, write_bits
from neuralmark.core.key import Float, Mark, Parameters, Terms, derive
from neuralmark.errors import InfeasibleError


def mark_of(bits: int, pools: int, rounds: int = 2, seed: int = 0) -> Mark:
    return derive(bytes([seed] * 32), Terms(Parameters(bits, pools, rounds), (("w", (1,)),)))


def pooled_of(pools: int, seed: int = 0) -> Float:
    return np.random.default_rng(seed).standard_normal(pools)


@pytest.mark.parametrize(("bits", "pools"), [(6, 12), (10, 12), (14, 12)])
def test_change_is_the_smallest(bits: int, pools: int) -> None:
    solver, pooled = LeastChange(mark_of(bits, pools)), pooled_of(pools)
    change = solver.change(pooled, 0.7)
    assert solver.margins(pooled + change).min() >= 0.7 - 1e-6
    peer = minimize(
        lambda d: d @ d,
        np.zeros(pools),
        jac=lambda d: 2 * d,
        constraints={"type": "ineq", "fun": lambda d: solver.margins(pooled + d) - 0.7},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert peer.success
    assert np.linalg.norm(change) == pytest.approx(np.sqrt(peer.fun), rel=1e-4)


def test_both_forms_of_the_problem_agree() -> None:
    solver, pooled = LeastChange(mark_of(60, 100)), pooled_of(100)
    missing = 5.0 - solver.margins(pooled)
    by_pivoting = solver._by_pivoting(missing)
    assert by_pivoting is not None
    np.testing.assert_allclose(by_pivoting, solver._by_distance(missing), rtol=1e-8)


def test_nothing_changes_where_the_margins_hold() -> None:
    solver = LeastChange(mark_of(8, 32))
    pooled = pooled_of(32)
    held = pooled + solver.change(pooled, 3.0)
    assert not solver.change(held, 2.9).any()


def test_too_many_bits_for_the_pools_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="pools"):
        LeastChange(mark_of(64, 32))


def test_bits_that_cannot_be_met_are_refused_by_the_solver() -> None:
    # Nearly two bits a pool: hardly any such set of half-spaces meets, and these do not.
    solver = LeastChange(mark_of(61, 32))
    with pytest.raises(InfeasibleError):
        solver.change(pooled_of(32), 1.0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_margins_hold_after_rounding(dtype: str, strength: float) -> None:
    mark = mark_of(64, 128)
    carriers = Carriers.of(mark, 200_000)
    values = rounded(0.02 * pooled_of(carriers.size, seed=3), dtype)
    goal = goal_of(readout.pool(values, 128), strength)
    written = write_bits(
        values, carriers, LeastChange(mark), goal, lambda array: rounded(array, dtype)
    )
    assert np.array_equal(written, rounded(written, dtype))
    margins = LeastChange(mark).margins(readout.pool(written, 128))
    assert margins.min() >= goal * (1 - 1e-6)


def test_strength_for_a_budget_uses_it_and_does_not_exceed_it() -> None:
    solver, pooled = LeastChange(mark_of(32, 64)), pooled_of(64)
    for budget in (20.0, 60.0, 300.0):
        strength = strength_for(solver, pooled, 9, budget)
        assert 0.99 * budget <= cost(solver, pooled, 9, strength) <= budget
    assert strength_for(solver, pooled, 9, 1e-3) == 0
