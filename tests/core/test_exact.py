"""Numbers brought exactly to where they belong, by the smallest change."""

from dataclasses import dataclass

import numpy as np
import pytest

from neuralmark.core.exact import Aim, ExactChange
from neuralmark.core.imprint import lacking, settle, strength_for
from neuralmark.core.key import Float, Mark, Parameters
from neuralmark.errors import InfeasibleError

RNG = np.random.default_rng(0)
MARK = Mark(
    Parameters(6, 20), np.zeros((20, 6), np.float32), np.array([1, 0, 1, 1, 0, 0], np.uint8)
)
BASIS = RNG.standard_normal((20, 6))
POOLED = RNG.standard_normal(20)


@dataclass(frozen=True, eq=False)
class Plain(Aim):
    """Every number at ± the goal."""

    def margins(self, numbers: Float) -> Float:
        return numbers * self.signs

    def targets(self, numbers: Float, goal: float) -> Float:
        return min(goal, 2 * self.most) * self.signs


def solver(effort: Float | float = 1.0, most: float = np.inf) -> ExactChange:
    return ExactChange(MARK, Plain(BASIS, MARK.signs, most), effort)


def test_it_is_the_least_squares_solution() -> None:
    change = solver().change(POOLED, 3.0)
    np.testing.assert_allclose((POOLED + change) @ BASIS, 3.0 * MARK.signs)
    plain, *_ = np.linalg.lstsq(BASIS.T, 3.0 * MARK.signs - POOLED @ BASIS, rcond=None)
    np.testing.assert_allclose(change, plain)
    assert not solver().change(POOLED + change, 3.0).any() or np.allclose(
        solver().change(POOLED + change, 3.0), 0
    )


def test_efforts_weigh_and_what_cannot_move_stays() -> None:
    effort = np.ones(20)
    effort[:4], effort[4] = np.inf, 1e3
    change = solver(effort).change(POOLED, 3.0)
    assert not change[:4].any()
    assert abs(change[4]) < 1e-3 * np.abs(change[5:]).max()
    np.testing.assert_allclose((POOLED + change) @ BASIS, 3.0 * MARK.signs)
    assert solver(effort).cost(POOLED, 0.5) == pytest.approx(
        float(np.linalg.norm(solver(effort).change(POOLED, goal(0.5))[4:] * effort[4:]))
    )


def goal(strength: float) -> float:
    return strength * float(np.linalg.norm(POOLED - POOLED.mean()))


def test_too_many_numbers_and_dead_ones_are_refused() -> None:
    effort = np.full(20, np.inf)
    effort[:5] = 1.0
    with pytest.raises(InfeasibleError, match="6 numbers of neuralmark cannot be met in 5 pools"):
        solver(effort)
    dead = BASIS.copy()
    dead[:, 2] = 0
    with pytest.raises(InfeasibleError, match="cannot move"):
        ExactChange(MARK, Plain(dead, MARK.signs, np.inf)).change(POOLED, 1.0)


def test_no_more_is_asked_for_than_there_is() -> None:
    limited = solver(most=0.5)
    decide = lacking(limited, 100.0)
    found = decide(POOLED, 0.0)
    assert found is not None
    np.testing.assert_allclose(limited.margins(POOLED + found), 0.5)
    assert decide(POOLED + found, 0.0) is None
    # A budget that could buy any strength ends where margins end.
    assert np.isfinite(strength_for(limited, POOLED, 1e9))


def test_steady_steps_do_not_run_away() -> None:
    """Rounding hides what is written: growing steps would swing further and further."""

    def coarse(shift: Float) -> Float:
        return np.rint((POOLED + shift) / 0.05) * 0.05

    one = solver()
    shift = settle(POOLED, lacking(one, 20.0), coarse, steady=True)
    assert one.margins(coarse(shift)).min() >= 20.0 * (1 - 1e-6)
    assert np.abs(one.margins(coarse(shift)) - 20.0).max() < 4.0


@dataclass(frozen=True, eq=False)
class Given(Aim):
    """Every number at a place of its own; NaN: where it is."""

    places: Float

    def margins(self, numbers: Float) -> Float:
        return numbers * self.signs

    def targets(self, numbers: Float, goal: float) -> Float:
        return np.where(np.isnan(self.places), numbers, self.places)


def given(places: list[float], basis: Float = BASIS) -> ExactChange:
    return ExactChange(MARK, Given(basis, MARK.signs, np.inf, np.array(places)))


def test_numbers_that_are_there_already_do_not_keep_the_others() -> None:
    there = POOLED @ BASIS
    change = given([np.nan, 2.0, np.nan, -3.0, 4.0, 5.0]).change(POOLED, 1.0)
    expected = [there[0], 2.0, there[2], -3.0, 4.0, 5.0]
    np.testing.assert_allclose((POOLED + change) @ BASIS, expected, atol=1e-12)
    assert not given([np.nan] * 6).change(POOLED, 1.0).any()


def test_as_many_numbers_as_pools_that_move_are_met() -> None:
    effort = np.full(20, np.inf)
    effort[:6] = 1.0
    change = solver(effort).change(POOLED, 3.0)
    assert not change[6:].any()
    np.testing.assert_allclose((POOLED + change) @ BASIS, 3.0 * MARK.signs)


def test_a_small_number_beside_a_huge_one_is_met_as_well_as_can_be() -> None:
    near = float((POOLED @ BASIS)[1]) + 1e-9
    change = given([1e9, near, 0.0, 0.0, 0.0, 0.0]).change(POOLED, 1.0)
    assert (change @ BASIS)[0] == pytest.approx(1e9)


def test_numbers_that_move_together_cannot_go_apart() -> None:
    """The solver finds no fault in such a basis: its answer just does not fit."""
    basis = np.zeros((20, 6))
    basis[:4, 0] = BASIS[:4, 0]
    basis[:4, 1] = basis[:4, 0] * 1.1
    basis[range(4, 8), range(2, 6)] = 1.0
    gram = basis.T @ basis
    assert np.isfinite(np.linalg.solve(gram, np.ones(6))).all()
    with pytest.raises(InfeasibleError, match="cannot move"):
        given([1.0, -1.0, 1.0, 1.0, 1.0, 1.0], basis).change(np.zeros(20), 1.0)


def test_effort_is_one_where_none_is_given() -> None:
    plain = ExactChange(MARK, Plain(BASIS, MARK.signs, np.inf))
    change = plain.change(POOLED, goal(0.5))
    assert plain.cost(POOLED, 0.5) == pytest.approx(float(np.linalg.norm(change)))
    assert plain.steady
    assert "array" not in repr(Plain(BASIS, MARK.signs, 1.0))
