"""Subtracting a public base: the mark goes where it moved more than training did."""

from functools import cache

import numpy as np
import pytest

from neuralmark.attacks import Outcome, Scene
from neuralmark.attacks.engine.options import SuiteOptions
from neuralmark.attacks.engine.suite import suite
from neuralmark.attacks.subtract import Subtract
from neuralmark.errors import DataMismatchError, ParameterError
from tests.support.checks import one_line
from tests.support.models import gaussian
from tests.support.published import NAME, Weights, bits_of, change, marked, tiled

KEY = tiled(5)
SIDE = 768


@cache
def base() -> Weights:
    return gaussian(SIDE, SIDE, seed=9)


@cache
def adapter() -> Weights:
    """What a LoRA of rank 16 adds: 5 % of the base."""
    rng = np.random.default_rng(1)
    made = rng.standard_normal((SIDE, 16)) @ rng.standard_normal((16, SIDE))
    made *= 0.05 * float(np.linalg.norm(base())) / float(np.linalg.norm(made))
    return np.asarray(made, np.float32)


def run(w: Weights, public: Weights, share: float, rank: int = 0) -> tuple[Weights, Outcome]:
    scene = Scene({NAME: w}, (NAME,), np.random.default_rng(0), others=({NAME: public},))
    outcome = Subtract(share, rank).run(scene)
    assert outcome.weights is not None
    return outcome.weights[NAME], outcome


def test_a_mark_on_a_public_model_is_undone() -> None:
    w = marked(base(), KEY, strength=1)
    made, outcome = run(w, base(), 0.1)
    assert bits_of(w, KEY) == 256
    assert np.array_equal(made, base())
    assert outcome.figures["difference"] == pytest.approx(change(base(), w), rel=1e-4)
    assert outcome.figures["difference_left"] == 0


def test_an_adapter_is_kept_and_the_mark_is_not() -> None:
    tuned = base() + adapter()
    w = marked(tuned, KEY, strength=1)
    made, _ = run(w, base(), 0.1, 16)
    assert bits_of(made, KEY) < 165
    assert change(tuned, made) < 0.3 * change(tuned, w)
    blunt, _ = run(w, base(), 0.1, 0)
    assert change(tuned, blunt) > 3 * change(tuned, made)


def test_a_mark_that_moved_less_than_training_stays() -> None:
    """Full fine-tuning by 30 %: a twentieth of the largest differences are hardly carriers."""
    noise = 0.3 * gaussian(SIDE, SIDE, seed=2)
    key = tiled(5, rounds=1)
    w = marked(base() + noise, key, strength=2)
    made, _ = run(w, base(), 0.05)
    assert bits_of(made, key) > 227


@pytest.mark.parametrize("share", [0.0, 0.05, 0.333, 1.0])
@pytest.mark.parametrize("shape", [(40, 30), (8, 4, 3, 3), (50,)])
def test_exactly_the_largest_differences_are_set_back(share: float, shape: tuple[int, ...]) -> None:
    w, public = gaussian(*shape, seed=1), gaussian(*shape, seed=2)
    made, _ = run(w, public, share)
    back = made != w
    assert int(back.sum()) == round(share * w.size)
    assert np.array_equal(made[back], public[back])
    gap = np.abs(w - public)
    if back.any() and not back.all():
        assert gap[back].min() >= gap[~back].max()


def test_a_rank_beyond_the_matrix_keeps_everything() -> None:
    w, public = gaussian(20, 30, seed=1), gaussian(20, 30, seed=2)
    made, _ = run(w, public, 1.0, 500)
    assert np.allclose(made, w, atol=1e-6)


def test_a_base_that_does_not_fit_is_named() -> None:
    w = gaussian(20, 30)
    for other, words in (({"v": w}, "no tensor"), ({NAME: w.T}, r"shape \(30, 20\) in the base")):
        scene = Scene({NAME: w}, (NAME,), np.random.default_rng(0), others=(other,))
        with pytest.raises(DataMismatchError, match=words) as caught:
            Subtract().run(scene)
        one_line(caught.value)


def test_the_suite_runs_it_with_a_base_and_says_so_without() -> None:
    w = {NAME: marked(base(), KEY, strength=1)}
    card = suite(w, KEY, options=SuiteOptions(others=[{NAME: base()}], only=["subtract"], jobs=1))
    assert {row.variant for row in card.rows} == {"rank 0", "rank 16"}
    bare = suite(w, KEY, options=SuiteOptions(only=["subtract", "shift"], jobs=1))
    assert [each.attack for each in bare.skipped] == ["subtract"]
    assert "another checkpoint" in bare.skipped[0].why


@pytest.mark.parametrize("settings", [{"share": 1.5}, {"share": -0.1}, {"rank": -1}, {"rank": 1.5}])
def test_bad_values_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ParameterError, match=next(iter(settings))) as caught:
        Subtract(**settings)  # type: ignore[arg-type]
    one_line(caught.value)
