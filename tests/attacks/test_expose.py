"""What an attacker without the key finds of the published filter, and what he does not."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from neuralmark import Key
from neuralmark.attacks import Outcome, Scene
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.expose import Expose, Search
from neuralmark.attacks.tools.grids import off_grid
from neuralmark.attacks.tools.tracing import (
    Guess,
    best_split,
    levelled,
    periods,
    read_residues,
    refined,
    split,
)
from neuralmark.errors import ParameterError
from tests.support.checks import one_line
from tests.support.models import gaussian
from tests.support.published import (
    NAME,
    Weights,
    bits_of,
    carriers_of,
    change,
    key_where,
    mark_of,
    marked,
    stream,
    tiled,
    truncated,
)

SHAPE = (256, 256, 3, 3)
CHANCE = 165
"""Four deviations and a half above the mean of 256 coins, which is 128."""


@cache
def layer() -> Weights:
    return gaussian(*SHAPE, seed=3)


@cache
def odd() -> Key:
    """A key whose carriers repeat after far more weights than there are."""
    return key_where(lambda mark: int(mark.bits.sum()) % 2 == 1, SHAPE)


@cache
def half() -> Key:
    """A key with as many ones as zeros."""
    return key_where(lambda mark: int(mark.bits.sum()) == 128, SHAPE)


def scene(w: Weights, key: Key | None = None) -> Scene:
    """One tensor; with a key, the attacker knows its parameters and where it is."""
    frozen = w.view()
    frozen.flags.writeable = False
    known = None if key is None else key.parameters
    place = () if key is None else ((NAME, w.shape),)
    weights, rng = {NAME: frozen}, np.random.default_rng(0)
    return Scene(weights, (NAME,), rng, placement=place, parameters=known)


def exposed(w: Weights, by: Search, key: Key | None) -> tuple[Weights, Outcome]:
    outcome = Expose(by).run(scene(w, key))
    assert outcome.weights is not None
    return outcome.weights[NAME], outcome


# residues


@pytest.mark.parametrize("known", [True, False])
def test_a_strong_mark_is_read_off_the_residues_and_erased(known: bool) -> None:
    w = marked(layer(), odd(), budget=0.35)
    made, outcome = exposed(w, "residues", odd() if known else None)
    assert bits_of(w, odd()) == 256
    assert bits_of(made, odd()) < CHANCE
    assert outcome.note == "stood out: residues"
    assert outcome.figures["residue_ratio"] > 1.2
    assert min(outcome.figures["residue_z"], outcome.figures["pool_z"]) > 20


def test_doubtful_residues_are_turned_until_all_of_b_is_right() -> None:
    w, bits = marked(layer(), odd(), budget=0.24), mark_of(odd(), SHAPE).bits
    found = best_split(w.reshape(-1), levelled(w).reshape(-1), 256)
    assert found is not None
    right = int((found[0].ones == bits).sum())
    assert 230 <= right < 256
    guess = Guess(256, 512, (1, 4))
    reading = refined(w.reshape(-1), read_residues(w.reshape(-1), *found, guess), guess)
    assert np.array_equal(reading.ones, bits)
    assert reading.rounds == 4


@pytest.mark.parametrize("by", ["residues", "grid"])
def test_a_weak_mark_shows_nothing_and_stays(by: Search) -> None:
    w = marked(layer(), odd(), budget=0.02)
    made, outcome = exposed(w, by, odd())
    assert "guess" in outcome.note
    assert bits_of(made, odd()) == 256
    assert change(w, made) < 0.05


@pytest.mark.parametrize("rounds", [1, 4])
def test_a_filter_without_a_period_shows_nothing(rounds: int) -> None:
    """The same strong change under a keystream: no residue tells, and no period."""
    key = stream(5, rounds=rounds)
    w = marked(layer(), key, budget=0.35)
    made, outcome = exposed(w, "all", key)
    assert "nothing stood out" in outcome.note
    assert bits_of(made, key) == 256


def test_the_split_finds_two_clouds() -> None:
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.arange(200) < 90)
    found = split(rng.standard_normal(200) + 8 * truth + 20)
    assert np.array_equal(found.ones, truth)
    assert found.apart > 6
    assert found.ratio == pytest.approx(28 / 20, rel=0.05)
    assert split(rng.standard_normal(200)).apart < 4


def test_loud_rows_do_not_hide_the_residues() -> None:
    """Rows of very different size: levelled, every one counts."""
    w = marked(layer(), odd(), budget=0.35)
    loud = np.exp(np.random.default_rng(2).uniform(-2, 2, (256, 1, 1, 1))).astype(np.float32)
    plain = best_split(w.reshape(-1), levelled(w).reshape(-1), 256)
    uneven = best_split((w * loud).reshape(-1), levelled(w * loud).reshape(-1), 256)
    blind = best_split((w * loud).reshape(-1), (w * loud).reshape(-1), 256)
    assert plain is not None
    assert uneven is not None
    assert blind is not None
    assert uneven[1] == pytest.approx(plain[1], rel=0.2)
    assert blind[1] < uneven[1] / 2


# period


def test_a_key_of_half_ones_repeats_and_is_erased() -> None:
    at = carriers_of(half(), SHAPE).positions()
    assert np.array_equal(at[512:1024], at[:512] + 8192)
    w = marked(layer(), half(), strength=1)
    made, outcome = exposed(w, "period", half())
    assert bits_of(made, half()) < CHANCE
    assert outcome.figures["period"] == 8192
    assert change(w, made) < 0.15


def test_other_keys_do_not_repeat() -> None:
    w = marked(layer(), odd(), strength=1)
    made, outcome = exposed(w, "period", odd())
    assert bits_of(made, odd()) > 250
    assert "guess" in outcome.note


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("ones", [6, 7, 8, 10])
def test_periods_are_those_of_the_filter(rounds: int, ones: int) -> None:
    """Carriers and pools of a small key really are the same one period on."""
    key = key_where(
        lambda mark: int(mark.bits.sum()) == ones,
        (1024, 1024),
        lambda secret: tiled(secret, bits=16, pools=8, rounds=rounds),
    )
    total = 1 << 20
    carriers = carriers_of(key, (1024, 1024))
    at = carriers.positions()
    fits = [
        period
        for period in periods(Guess(16, 8, (rounds,)), total)
        if (step := carriers.rank(period)) % 8 == 0
        and np.array_equal(at[step : step + 4096], at[:4096] + period)
    ]
    assert fits


def test_traces_together_erase_what_one_guess_would() -> None:
    w = marked(layer(), half(), strength=1)
    made, outcome = exposed(w, "all", half())
    assert "guess" in outcome.note
    assert bits_of(made, half()) < CHANCE


# grid


@pytest.mark.parametrize(("empty", "rounds"), [(16, 4), (13, 4), (13, 1), (20, 1)])
def test_values_off_the_grid_are_the_carriers(empty: int, rounds: int) -> None:
    key = tiled(52, rounds=rounds)
    w = marked(truncated(layer(), empty), key, strength=0.75)
    at = carriers_of(key, SHAPE).positions()
    off = np.flatnonzero(off_grid(w))
    assert np.isin(off, at).all()
    assert len(off) > 0.999 * len(at)
    made, outcome = exposed(w, "grid", key)
    assert bits_of(w, key) == 256
    assert bits_of(made, key) < CHANCE
    assert change(w, made) < 0.06
    assert outcome.note == "stood out: grid"
    assert outcome.figures["off_grid"] == pytest.approx(len(at) / w.size, rel=1e-3)
    assert np.isin(np.flatnonzero((made != w).reshape(-1)), off).all()


def test_carriers_that_fell_on_the_grid_leave_gaps() -> None:
    """A few whole pools, and carriers here and there, do not show: the order still comes out."""
    key = tiled(52, rounds=1)
    base = truncated(layer(), 13)
    w = marked(base, key, strength=0.75)
    carriers = carriers_of(key, SHAPE)
    at = carriers.positions()
    quiet = carriers.pool_of(0, carriers.size) % 100 == 7
    quiet |= np.random.default_rng(0).random(len(at)) < 0.001
    w.reshape(-1)[at[quiet]] = base.reshape(-1)[at[quiet]]
    made, _ = exposed(w, "grid", key)
    assert bits_of(w, key) > 245
    assert bits_of(made, key) < CHANCE


def test_a_mark_on_the_grid_does_not_show() -> None:
    w = truncated(marked(truncated(layer()), odd(), strength=2))
    made, outcome = exposed(w, "grid", odd())
    assert outcome.figures["off_grid"] == 0
    assert "guess" in outcome.note
    assert np.array_equal(made, w)
    assert bits_of(made, odd()) > 250


def test_dequantised_rows_show_values_off_their_scale() -> None:
    plain = gaussian(512, 1024, seed=4)
    step = np.abs(plain).max(axis=1, keepdims=True) / 127
    w = marked((np.rint(plain / step) * step).astype(np.float32), tiled(7, rounds=1), strength=1)
    at = carriers_of(tiled(7, rounds=1), w.shape).positions()
    off = np.flatnonzero(off_grid(w))
    assert np.isin(off, at).all()
    assert len(off) > 0.999 * len(at)


# scenes


def test_tensors_are_laid_end_to_end_in_the_order_of_the_placement() -> None:
    w = marked(layer(), odd(), budget=0.35).reshape(256, -1)
    parts = {"a": w[100:].copy(), "b": w[:100].copy()}
    place = (("b", parts["b"].shape), ("a", parts["a"].shape))
    whole = Scene(
        parts, ("a", "b"), np.random.default_rng(0), placement=place, parameters=odd().parameters
    )
    made = Expose("residues").run(whole).weights
    assert made is not None
    assert bits_of(np.concatenate([made["b"], made["a"]]).reshape(SHAPE), odd()) < CHANCE
    narrow = Scene(parts, ("a",), whole.rng, placement=place, parameters=whole.parameters)
    alone = Expose("residues").run(narrow).weights
    assert alone is not None
    assert alone.keys() == {"a"}
    assert np.array_equal(alone["a"], made["a"])


@pytest.mark.parametrize("by", ["all", "residues", "period", "grid"])
def test_small_odd_and_constant_tensors_pass(by: Search) -> None:
    model = {
        "zeros": np.zeros((40, 40), np.float32),
        "ones": np.ones((300, 300), np.float32),
        "bias": gaussian(40),
        "scalar": gaussian(),
        "empty": np.zeros((0, 8), np.float32),
        "sparse": truncated(gaussian(200, 200)) * (np.arange(40000).reshape(200, 200) % 3 == 0),
    }
    outcome = Expose(by).run(Scene(model, tuple(model), np.random.default_rng(0)))
    assert outcome.weights is not None
    for name, value in outcome.weights.items():
        assert value.shape == model[name].shape
        assert value.dtype == np.float32
        assert np.isfinite(value).all()
        assert not np.shares_memory(value, model[name])
    assert np.isfinite(list(outcome.figures.values())).all()


def test_the_judge_sees_the_mark_gone() -> None:
    w = marked(truncated(layer()), odd(), strength=0.75)
    result = launch(Expose(), {NAME: w}, odd())
    assert result.before is not None
    assert result.before.matched == 256
    assert result.after is not None
    assert result.after.matched < CHANCE
    assert not result.survived
    assert result.change < 0.06


def test_an_unknown_trace_is_refused() -> None:
    slip: Any = "residue"
    with pytest.raises(ParameterError, match="did you mean 'residues'") as caught:
        Expose(slip)
    one_line(caught.value)
