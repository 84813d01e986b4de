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
