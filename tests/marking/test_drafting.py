"""How strong a mark is made: what the owner asks for, and what a budget buys."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from neuralmark import Key, embed, schemes
from neuralmark.checkpoints import open_checkpoint
from neuralmark.core.carriers import Carriers
from neuralmark.core.imprint import LeastChange, strength_for
from neuralmark.core.key import Mark, Parameters, Terms, derive
from neuralmark.errors import InfeasibleError, ParameterError
from neuralmark.marking.drafting import Draft, _within_budget, choose_strength, draft, plan
from neuralmark.marking.options import check_effort
from neuralmark.marking.reading import Reading
from tests.support.models import QUICK, gaussian_model


@pytest.mark.parametrize(
    ("strength", "budget"),
    [(None, None), (1, None), (1e6, None), (1e-9, None), (None, 100), (None, 1e-9), (None, 0.5)],
)
def test_efforts_that_are_taken(strength: float | None, budget: float | None) -> None:
    check_effort(strength, budget)


@pytest.mark.parametrize(
    ("strength", "budget"),
    [
        *((1.0, 1.0), (0, None), (-1.0, None), (1.1e6, None), (True, None), ("1", None)),
        *((None, 0), (None, -1), (None, 100.5), (None, False), (None, "2"), (float("nan"), None)),
        (None, float("nan")),
    ],
)
def test_efforts_that_are_refused(strength: Any, budget: Any) -> None:
    with pytest.raises(ParameterError):
        check_effort(strength, budget)


def small_mark() -> Mark:
    return derive(bytes(32), Terms(Parameters(32, 64), (("w", (6400,)),)))


def reading(norm: float) -> Reading:
    pooled = np.random.default_rng(0).standard_normal(64)
    return Reading(Carriers.everything(6400, 64), pooled, 1.0, norm, {})


def test_a_named_strength_is_taken_as_it_is() -> None:
    solver = LeastChange(small_mark())
    assert choose_strength(solver, reading(1.0), 7.5, None) == 7.5


def test_a_budget_is_a_share_of_the_norm_in_percent() -> None:
    solver, given = LeastChange(small_mark()), reading(1000.0)
    for budget in (2.0, 5.0, 50.0):
        expected = strength_for(solver, given.pooled, 10 * budget)
        assert choose_strength(solver, given, None, budget) == expected > 0
    with pytest.raises(InfeasibleError, match="budget"):
        choose_strength(solver, given, None, 1e-6)


def test_without_wishes_two_percent_are_spent_between_strength_one_and_two() -> None:
    solver = LeastChange(small_mark())
    afforded = {
        norm: strength_for(solver, reading(norm).pooled, norm / 50)
        for norm in np.geomspace(10, 1e5, 60).tolist()
    }
    chosen = {norm: choose_strength(solver, reading(norm), None, None) for norm in afforded}
    for norm, strength in afforded.items():
        assert chosen[norm] == min(max(1.0, strength), 2.0)
    assert {min(chosen.values()), max(chosen.values())} == {1.0, 2.0}
    assert any(1 < strength < 2 for strength in chosen.values())


@dataclass(frozen=True)
class Coarse:
    """A draft whose change grows with its strength, and by what rounding adds."""

    strength: float
    reading: Reading
    added: float = 0.0
    tries: int = 0

    @property
    def change_norm(self) -> float:
        return self.strength + self.added

    def at(self, strength: float) -> "Coarse":
        return replace(self, strength=strength, tries=self.tries + 1)


def within(draft: Coarse, budget: float | None) -> Coarse:
    return cast("Coarse", _within_budget(cast("Draft", draft), budget))


def test_a_mark_within_its_budget_stays_as_it_is() -> None:
    for strength in (3.0, 5.0, 5.009):
        assert within(Coarse(strength, reading(100.0)), 5.0).tries == 0
    assert within(Coarse(2.0, reading(100.0)), None).tries == 0


def test_a_mark_above_its_budget_is_weakened_until_it_fits() -> None:
    for added in (0.02, 1.0, 3.0):
        fits = within(Coarse(5.0, reading(100.0), added), 5.0)
        assert 4.0 < fits.change_norm <= 5.01
        assert fits.tries > 0
    assert within(Coarse(2.5, reading(100.0)), None).change_norm <= 2.004


def test_without_a_budget_strength_one_is_never_undercut() -> None:
    assert within(Coarse(2.0, reading(1.0)), None).strength == 1.0
    assert within(Coarse(1.0, reading(1.0)), None).tries == 0
    assert within(Coarse(2.0, reading(10.0)), 1.0).strength < 1.0


def test_a_budget_that_rounding_alone_takes_is_infeasible() -> None:
    with pytest.raises(InfeasibleError, match="budget"):
        within(Coarse(5.0, reading(100.0), 20.0), 5.0)


@pytest.mark.parametrize(
    ("scheme", "words"), [("clean", "writes no mark"), ("deepsigns", "train it in")]
)
def test_schemes_that_write_nothing_into_a_file_are_refused(
    tmp_path: Path, scheme: str, words: str
) -> None:
    path = gaussian_model(tmp_path / "m.safetensors")
    key = Key.new(schemes.parameters(scheme))
    for refused in (lambda: plan(open_checkpoint(path), key), lambda: embed(path, key)):
        with pytest.raises(ParameterError, match=words):
            refused()


def test_a_draft_takes_a_strength_or_a_budget(tmp_path: Path) -> None:
    path = gaussian_model(tmp_path / "m.safetensors")
    planned = plan(open_checkpoint(path), Key.new(QUICK))
    with pytest.raises(ParameterError, match="not both"):
        draft(planned, strength=1.0, budget=1.0)
    assert draft(planned, strength=1.5).strength == 1.5


def test_a_plan_refuses_lengths_that_cannot_be_written_and_hides_its_noise(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(gaussian_model(tmp_path / "m.safetensors"))
    with pytest.raises(InfeasibleError):
        plan(checkpoint, Key.new(Parameters(64, 32)))
    assert "noise" not in repr(plan(checkpoint, Key.new(QUICK)))
