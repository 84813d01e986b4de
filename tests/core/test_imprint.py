"""Writing bits by the smallest change."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import minimize

from neuralmark.checkpoints.readers.dtypes import FLOATS, MANTISSA, rounded
from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.grid_finding import find_grid
from neuralmark.core.imprint import (
    LeastChange,
    doubts,
    goal_of,
    lacking,
    least_helping,
    settle,
    strength_for,
)
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


def weighted_peer(solver: LeastChange, pooled: Float, goal: float, effort: Float) -> Float:
    """The cheapest change by a general method; `effort` is finite."""
    peer = minimize(
        lambda d: float(np.square(effort * d).sum()),
        np.zeros(len(pooled)),
        jac=lambda d: 2 * effort**2 * d,
        constraints={
            "type": "ineq",
            "fun": lambda d: solver.margins(pooled + d) - goal,
            "jac": lambda _: solver._plain.T,
        },
        method="SLSQP",
        options={"maxiter": 2000, "ftol": 1e-10},
    )
    assert peer.success
    return np.asarray(peer.x)


@pytest.mark.parametrize(("bits", "pools"), [(6, 12), (10, 12), (14, 12), (20, 40)])
def test_unequal_efforts_give_the_cheapest_change(bits: int, pools: int) -> None:
    effort = np.exp(np.random.default_rng(bits).uniform(-1.5, 1.5, pools))
    solver, pooled = LeastChange(mark_of(bits, pools), effort), pooled_of(pools)
    change = solver.change(pooled, 0.7)
    assert solver.margins(pooled + change).min() >= 0.7 - 1e-6
    peer = weighted_peer(solver, pooled, 0.7, effort)
    spent, least = (float(np.linalg.norm(effort * d)) for d in (change, peer))
    assert spent == pytest.approx(least, rel=1e-4)
    equal = LeastChange(mark_of(bits, pools)).change(pooled, 0.7)
    assert np.linalg.norm(effort * equal) > 1.05 * spent


def test_efforts_against_every_set_of_bits_that_may_be_tight() -> None:
    # Where the change is cheapest, some bits are exactly at the goal: try all sets of them.
    mark, effort = mark_of(5, 8), np.array([1.0, 3.0, 0.2, np.inf, 1.0, 0.5, 2.0, 1.0])
    solver, pooled, goal = LeastChange(mark, effort), pooled_of(8, seed=4), 2.0
    reach = np.where(np.isfinite(effort), 1 / effort, 0.0)
    half_spaces = mark.matrix.astype(np.float64) * mark.signs
    missing, costs = goal - pooled @ half_spaces, []
    for count in range(6):
        for tight in map(list, combinations(range(5), count)):
            inner = half_spaces[:, tight] * reach[:, None]
            d = reach * (np.linalg.pinv(inner.T) @ missing[tight])
            if (d @ half_spaces >= missing - 1e-9).all():
                costs.append(float(np.linalg.norm(d[reach > 0] / reach[reach > 0])))
    change = solver.change(pooled, goal)
    free = np.isfinite(effort)
    assert np.linalg.norm(effort[free] * change[free]) == pytest.approx(min(costs), rel=1e-9)


@pytest.mark.parametrize("bits", [20, 50])
def test_pools_of_infinite_effort_stay_as_they_are(bits: int) -> None:
    effort = np.ones(40)
    effort[[0, 7, 39]] = np.inf
    solver, pooled = LeastChange(mark_of(bits, 40), effort), pooled_of(40)
    change = solver.change(pooled, 1.0)
    assert not change[[0, 7, 39]].any()
    assert np.count_nonzero(change) == 37
    assert solver.margins(pooled + change).min() >= 1.0 - 1e-6
    goal = goal_of(pooled, 0.5)
    assert solver.cost(pooled, 0.5) == pytest.approx(np.linalg.norm(solver.change(pooled, goal)))


def test_an_effort_for_all_scales_the_cost_and_nothing_else() -> None:
    mark, pooled = mark_of(16, 32), pooled_of(32)
    one, nine = LeastChange(mark), LeastChange(mark, 9.0)
    np.testing.assert_allclose(one.change(pooled, 2.0), nine.change(pooled, 2.0), rtol=1e-9)
    assert nine.cost(pooled, 1.0) == pytest.approx(9 * one.cost(pooled, 1.0))


def test_too_many_bits_for_the_pools_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="64 bits cannot be written into 32 pools:"):
        LeastChange(mark_of(64, 32))


def test_too_many_pools_that_cannot_move_are_refused() -> None:
    effort = np.ones(32)
    effort[:15] = np.inf
    LeastChange(mark_of(31, 32), effort)
    effort[15] = np.inf
    with pytest.raises(InfeasibleError, match=r"into 16 pools \(16 of 32 have no weight"):
        LeastChange(mark_of(31, 32), effort)
    with pytest.raises(InfeasibleError, match="into 0 pools"):
        LeastChange(mark_of(31, 32), np.inf)


def test_bits_that_cannot_be_met_are_refused_by_the_solver() -> None:
    # Nearly two bits per pool: hardly any such set of half-spaces meets, and these do not.
    solver = LeastChange(mark_of(61, 32))
    with pytest.raises(InfeasibleError):
        solver.change(pooled_of(32), 1.0)


def test_doubts_name_what_can_never_prove_and_never_be_written() -> None:
    assert doubts(Parameters()) == []
    assert doubts(Parameters(256, 130)) == []
    (short,) = doubts(Parameters(64, 128))
    assert "never be verified" in short
    (crowded,) = doubts(Parameters(256, 129))
    assert "pools=512" in crowded


def test_written_bits_have_their_margin() -> None:
    mark = mark_of(64, 128)
    carriers = Carriers.of(mark, 20_000)
    values = pooled_of(carriers.size, seed=3)
    pooled, solver = readout.pool(values, 128), LeastChange(mark)
    goal = goal_of(pooled, 1.5)
    written = values + carriers.spread(solver.change(pooled, goal), 0, carriers.size)
    assert solver.margins(readout.pool(written, 128)).min() >= goal * (1 - 1e-6)
    norm = np.linalg.norm(written - values)
    assert norm == pytest.approx(np.sqrt(carriers.per_pool) * solver.cost(pooled, 1.5))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_margins_hold_on_the_grid_of_the_file(dtype: str, strength: float) -> None:
    mark = mark_of(64, 128)
    carriers = Carriers.of(mark, 200_000)
    kind = np.float64 if dtype == "F64" else np.float32
    values: npt.NDArray[np.floating] = rounded(
        0.02 * pooled_of(carriers.size, seed=3), dtype
    ).astype(kind)
    grid = find_grid(values, carriers.size, MANTISSA[dtype])
    pooled, solver = readout.pool(values.astype(np.float64), 128), LeastChange(mark)
    noise = np.random.default_rng(1).random(len(values), np.float32)
    goal = goal_of(pooled, strength)
    written, passes = values, 0

    def realise(shift: Float) -> Float:
        nonlocal written, passes
        passes += 1
        moves = carriers.spread(shift, 0, carriers.size).astype(kind)
        written = grid.moved(values, moves, noise)
        return np.asarray(readout.pool(written.astype(np.float64), 128))

    shift = settle(pooled, lacking(solver, goal), realise)
    assert np.array_equal(written, rounded(written.astype(np.float64), dtype))
    assert solver.margins(readout.pool(written.astype(np.float64), 128)).min() >= goal * (1 - 1e-6)
    assert passes <= 10
    assert np.linalg.norm(shift) == pytest.approx(solver.cost(pooled, strength), rel=0.2)


def test_weights_that_are_written_as_computed_need_one_pass() -> None:
    solver, pooled = LeastChange(mark_of(64, 128)), pooled_of(128)
    goal, shifts = goal_of(pooled, 2.0), []

    def realise(shift: Float) -> Float:
        shifts.append(shift)
        return pooled + shift

    shift = settle(pooled, lacking(solver, goal), realise, exact=True)
    assert len(shifts) == 1
    assert np.array_equal(shifts[0], shift)
    assert solver.margins(pooled + shift).min() >= goal * (1 - 1e-6)
    assert np.linalg.norm(shift) == pytest.approx(solver.cost(pooled, 2.0), rel=1e-4)


def test_nothing_is_written_where_the_margins_hold_already() -> None:
    solver = LeastChange(mark_of(8, 32))
    held = pooled_of(32) + solver.change(pooled_of(32), 3.0)
    writes: list[Float] = []
    shift = settle(held, lacking(solver, 2.9), lambda shift: writes.append(shift) or held)  # type: ignore[func-returns-value]
    assert not shift.any()
    assert writes == []


def test_a_grid_on_which_nothing_moves_is_infeasible() -> None:
    solver, pooled = LeastChange(mark_of(8, 32)), pooled_of(32)
    passes = []

    def realise(shift: Float) -> Float:
        passes.append(shift)
        return pooled

    with pytest.raises(InfeasibleError, match="leaves no room"):
        settle(pooled, lacking(solver, 1.0), realise)
    assert len(passes) < 100


def test_strength_for_a_budget_uses_it_and_does_not_exceed_it() -> None:
    pooled = pooled_of(64)
    for effort in (3.0, np.linspace(1.0, 5.0, 64)):
        solver = LeastChange(mark_of(32, 64), effort)
        for budget in (20.0, 60.0, 300.0):
            strength = strength_for(solver, pooled, budget)
            assert 0.99 * budget <= solver.cost(pooled, strength) <= budget
        assert strength_for(solver, pooled, 1e-3) == 0


def test_weights_at_the_end_of_their_room_are_pushed_harder() -> None:
    """What follows a shift less and less still settles: in 23 passes; with even steps, in 57."""
    passes = 0

    def realise(shift: Float) -> Float:
        nonlocal passes
        passes += 1
        return 1.0 - np.exp(-shift)

    def decide(pooled: Float, overshoot: float) -> Float | None:
        done = pooled.min() >= 0.999
        return None if done else np.maximum(0.999 * (1 + overshoot) - pooled, 0.0)

    settle(np.zeros(4), decide, realise)
    assert passes < 30


@pytest.mark.parametrize(
    ("columns", "missing"),
    [
        (
            [[2, 3, 0, -2], [-2, -3, 0, 1], [3, 3, -2, 1], [3, 3, -3, 2], [1, 1, -2, -1]],
            [-2, -2, 2, 3],
        ),
        (
            [[2, -3, 2, -2], [-3, 2, -1, 3], [3, -1, -2, -3], [-3, 3, -1, 3], [1, -3, 0, -2]],
            [4, -1, -3, -4],
        ),
    ],
)
def test_guesses_that_go_in_circles_end(columns: list[list[int]], missing: list[float]) -> None:
    """Exchanging all wrong guesses at once never ends on these; exchanging one does."""
    gram = np.transpose(columns) @ np.array(columns, np.float64)
    needs = np.array(missing, np.float64)
    weights = least_helping(gram, needs)
    assert weights is not None
    slack = gram @ weights - needs
    assert weights.min() >= 0
    assert slack.min() >= -1e-12
    assert np.abs(weights * slack).max() < 1e-12
    assert 0 < np.count_nonzero(weights) < 4


def test_columns_that_depend_on_each_other_are_left_to_the_other_method() -> None:
    assert least_helping(np.ones((2, 2)), np.array([1.0, 2.0])) is None


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_the_scale_of_the_weights_decides_nothing(scale: float) -> None:
    possible, impossible = LeastChange(mark_of(50, 32)), LeastChange(mark_of(61, 32))
    pooled = pooled_of(32)
    change = possible.change(scale * pooled, scale * 1.0)
    np.testing.assert_allclose(change, scale * possible.change(pooled, 1.0), rtol=1e-6)
    with pytest.raises(InfeasibleError):
        impossible.change(scale * pooled, scale * 1.0)


def test_the_number_of_pools_that_is_just_enough() -> None:
    effort = np.ones(32)
    effort[:15] = np.inf
    LeastChange(mark_of(31, 32), effort)
    with pytest.raises(InfeasibleError, match="into 17 pools"):
        LeastChange(mark_of(32, 32), effort)


def overshoots(count: int, *, exact: bool | None = None) -> list[float]:
    """How far ahead of the goal each of so many passes aims."""
    aimed: list[float] = []

    def decide(pooled: Float, overshoot: float) -> Float | None:
        aimed.append(overshoot)
        return None if len(aimed) > count else np.zeros(4)

    given = {} if exact is None else {"exact": exact}
    settle(np.zeros(4), decide, lambda shift: shift, **given)
    return aimed


def test_what_is_rounded_is_aimed_further_ahead_each_time() -> None:
    usual = overshoots(5)
    assert usual == overshoots(5, exact=False)
    assert 0.005 < usual[0] < 0.01
    assert usual == sorted(set(usual))
    exact = overshoots(5, exact=True)
    assert exact[0] < 1e-5
    assert exact[1:] == usual[1:]


def test_bits_that_exclude_each_other_have_no_change() -> None:
    """Two half-spaces that face away from each other; and what is no problem at all, but ends."""
    assert least_helping(np.array([[1.0, -1.0], [-1.0, 1.0]]), np.ones(2)) is None
    assert least_helping(-np.ones((1, 1)), np.ones(1)) is None


def test_a_cost_that_jumps_over_the_budget_stays_below_it() -> None:
    class Jumping(LeastChange):
        def cost(self, pooled: Float, strength: float) -> float:
            return strength if strength <= 0.7 else 10.0 + strength

    found = strength_for(Jumping(mark_of(16, 64)), pooled_of(64), 5.0)
    assert found == pytest.approx(0.7, rel=1e-3)
    assert found <= 0.7
