"""Scores of single weights: they find carriers where these show, and nothing where they do not."""

from functools import cache
from itertools import product

import numpy as np
import pytest

from neuralmark import Key
from neuralmark.attacks.tools.grids import empty_bits, grid_depth, ranks
from neuralmark.attacks.tools.locating import (
    LOCATORS,
    NOTHING,
    erase,
    locate,
    low_rank,
    set_back,
    two_sided_auc,
)
from neuralmark.attacks.tools.tracing import Guess
from neuralmark.errors import ParameterError
from tests.support.checks import one_line
from tests.support.models import gaussian
from tests.support.published import (
    Weights,
    bits_of,
    carriers_of,
    key_where,
    marked,
    stream,
    truncated,
)

SHAPE = (256, 256, 3, 3)
GUESS = Guess(256, 512, (4,))
EACH = pytest.mark.parametrize("name", LOCATORS)


@cache
def layer() -> Weights:
    return gaussian(*SHAPE, seed=3)


@cache
def odd() -> Key:
    return key_where(lambda mark: int(mark.bits.sum()) % 2 == 1, SHAPE)


def found(name: str, w: Weights, beside: Weights | None = None, key: Key | None = None) -> float:
    """What a locator is worth on this mark."""
    at = carriers_of(key or odd(), w.shape).positions()
    return two_sided_auc(locate(name, w, beside, GUESS), at)


# every locator


@EACH
def test_one_finite_score_a_weight_and_the_tensors_stay(name: str) -> None:
    odd_ones = [
        gaussian(70, 50),
        gaussian(6, 5, 3, 3),
        gaussian(33),
        np.zeros((40, 40), np.float32),
        np.ones((3, 3), np.float32),
        gaussian(64, 64) * (np.arange(4096).reshape(64, 64) % 5 == 0),
    ]
    for w in odd_ones:
        beside, before = gaussian(*w.shape, seed=8), w.copy()
        scores = locate(name, w, beside)
        assert scores.shape == (w.size,)
        assert scores.dtype == np.float64
        assert np.isfinite(scores).all()
        assert np.array_equal(w, before)
        assert np.array_equal(scores, locate(name, w, beside))


@EACH
def test_what_it_needs_is_said_and_asked_for(name: str) -> None:
    assert LOCATORS[name].meaning
    if LOCATORS[name].needs != NOTHING:
        with pytest.raises(ParameterError, match=LOCATORS[name].needs) as caught:
            locate(name, gaussian(4, 4))
        one_line(caught.value)
    with pytest.raises(ParameterError, match="shape") as caught:
        locate(name, gaussian(4, 4), gaussian(4, 5))
    one_line(caught.value)


def test_an_unknown_locator_is_refused() -> None:
    with pytest.raises(ParameterError, match="there is no locator") as caught:
        locate("nonsense", gaussian(4, 4))
    one_line(caught.value)


@pytest.mark.parametrize("name", [n for n in LOCATORS if LOCATORS[n].needs == NOTHING])
def test_a_weak_mark_on_a_smooth_tensor_is_found_by_none(name: str) -> None:
    assert found(name, marked(layer(), odd(), budget=0.02)) < 0.53


@pytest.mark.parametrize("name", ["residues", "period"])
def test_a_strong_mark_under_a_keystream_has_no_place(name: str) -> None:
    key = stream(5)
    assert found(name, marked(layer(), key, budget=0.35), key=key) < 0.53


# what each is for


def test_residues_find_a_strong_mark() -> None:
    assert found("residues", marked(layer(), odd(), budget=0.35)) == 1


def test_the_period_finds_a_key_of_half_ones() -> None:
    key = key_where(lambda mark: int(mark.bits.sum()) == 128, SHAPE)
    w = marked(layer(), key, budget=0.24)
    assert found("period", w, key=key) > 0.8
    assert found("period", marked(layer(), odd(), budget=0.24)) < 0.6


@pytest.mark.parametrize("empty", [13, 16, 20])
def test_the_grid_finds_what_was_shifted_off_it(empty: int) -> None:
    assert found("grid", marked(truncated(layer(), empty), odd(), strength=1)) > 0.999
    assert found("grid", truncated(marked(truncated(layer(), empty), odd()), empty)) == 0.5


def test_low_bits_and_repeated_values_tell_the_grid_too() -> None:
    w = marked(truncated(layer()), odd(), strength=1)
    assert min(found(name, w) for name in ("low_bits", "repeated")) > 0.98


def test_scales_find_what_was_shifted_off_whole_steps() -> None:
    step = np.abs(layer()).max(axis=(1, 2, 3), keepdims=True) / 127
    whole = (np.rint(layer() / step) * step).astype(np.float32)
    assert found("scale", marked(whole, odd(), strength=1)) > 0.99


def test_filled_zeros_show_by_place_and_by_value() -> None:
    sparse = layer() * (np.random.default_rng(0).random(SHAPE) < 0.5)
    w = marked(sparse.astype(np.float32), odd(), strength=1)
    assert found("zeros", w) == pytest.approx(0.75, abs=0.01)
    assert found("repeated", w) == pytest.approx(0.75, abs=0.01)


def test_outliers_find_carriers_that_stick_out() -> None:
    strong = marked(layer(), odd(), budget=0.8)
    assert found("outliers", strong) > 0.75
    assert found("spectral", strong) > 0.75


def test_a_base_shows_the_mark_under_an_adapter() -> None:
    base, rng = gaussian(600, 600, seed=1), np.random.default_rng(1)
    adapter = rng.standard_normal((600, 16)) @ rng.standard_normal((16, 600))
    adapter *= 0.05 * np.linalg.norm(base) / np.linalg.norm(adapter)
    w = marked(base + adapter.astype(np.float32), odd(), strength=1)
    assert found("base", w, base) > 0.95
    assert found("moved", w, base) < 0.9


def test_a_release_before_the_mark_shows_it_at_once() -> None:
    w = marked(layer(), odd(), strength=1)
    assert found("moved", w, layer()) == found("unison", w, layer()) == 1
    tuned = layer() + 0.3 * gaussian(*SHAPE, seed=7)
    assert found("unison", marked(tuned, odd(), strength=1), layer()) < 0.52


def test_local_statistics_see_a_mark_in_one_place() -> None:
    w = layer().copy().reshape(-1)
    w[1024 * 100 : 1024 * 120] *= np.random.default_rng(0).choice([0.1, 3.0], 20480)
    here = np.arange(1024 * 100, 1024 * 120)
    for name in ("kurtosis", "ks"):
        assert two_sided_auc(locate(name, w), here) > 0.99


def test_margins_are_means_of_rows_and_columns() -> None:
    w = np.array([[1.0, -1.0], [3.0, 1.0]], np.float32)
    rows, columns = np.abs([0.0, 2.0]), np.abs([2.0, 0.0])
    expected = [(r + c) * np.sqrt(2) for r, c in product(rows, columns)]
    assert np.allclose(locate("margins", w), expected)


# the parts


def test_the_auc_counts_pairs_and_takes_the_better_side() -> None:
    rng = np.random.default_rng(0)
    scores, at = rng.integers(0, 5, 40).astype(float), np.arange(0, 40, 3)
    others = np.setdiff1d(np.arange(40), at)
    naive = np.mean([(a > b) + 0.5 * (a == b) for a, b in product(scores[at], scores[others])])
    assert two_sided_auc(scores, at) == pytest.approx(max(naive, 1 - naive))
    assert two_sided_auc(-scores, at) == two_sided_auc(scores, at)
    scores = rng.standard_normal(200_000)
    scores[:40_000] += 0.5
    whole = two_sided_auc(scores, np.arange(40_000))
    part = two_sided_auc(scores, np.arange(40_000), sample=10_000)
    assert part == pytest.approx(whole, abs=0.01)
    assert part != whole


def test_empty_bits_are_counted_one_by_one() -> None:
    w = np.concatenate([gaussian(500), truncated(gaussian(500), 9), np.zeros(3, np.float32)])
    for value, count in zip(w, empty_bits(w), strict=True):
        raw = int(value.view(np.uint32)) & 0x7FFFFF | 0x800000
        assert count == (24 if value == 0 else (raw & -raw).bit_length() - 1)


@pytest.mark.parametrize("empty", [8, 13, 16, 20])
def test_the_grid_is_known_even_if_half_have_left_it(empty: int) -> None:
    w = truncated(gaussian(300, 300), empty)
    assert grid_depth(w) == empty
    w[::2] = gaussian(150, 300, seed=5)
    assert grid_depth(w) == empty
    assert grid_depth(gaussian(300, 300)) == 0


def test_gaps_are_found_where_carriers_are_missing() -> None:
    rng = np.random.default_rng(0)
    pool = np.arange(40 * 64) % 64
    angles = np.exp(2j * np.pi * rng.random(64))[pool]
    kept = np.delete(np.arange(len(pool)), [700, 1300, 1301, 2000])
    order = ranks(angles[kept], 64)
    assert (order % 64 == kept % 64).mean() > 0.97
    assert np.array_equal(ranks(angles, 64), np.arange(len(pool)))
    nothing = np.exp(2j * np.pi * rng.random(len(pool)))
    assert np.array_equal(ranks(nothing, 64), np.arange(len(pool)))


def test_erasing_takes_pool_means_out_and_nothing_else() -> None:
    w = gaussian(40, 50)
    at = np.sort(np.random.default_rng(0).choice(2000, 605, replace=False))
    made, flat = erase(w, at, 10).reshape(-1), w.reshape(-1)
    rest = np.setdiff1d(np.arange(2000), at)
    assert np.array_equal(made[rest], flat[rest])
    for pool in range(10):
        mine = at[pool::10]
        assert np.allclose(made[mine], flat[mine] - flat[mine].mean() + flat[at].mean(), atol=1e-6)
    assert np.allclose(erase(w, at, 10, np.arange(605)), made.reshape(w.shape))
    assert np.array_equal(erase(w, at[:0], 10), w)


def test_with_the_true_carriers_erasing_needs_no_more_than_the_mark() -> None:
    w = marked(layer(), odd(), strength=2)
    at = carriers_of(odd(), SHAPE).positions()
    assert bits_of(erase(w, at, 512), odd()) < 165
    assert bits_of(set_back(w, layer(), at), odd()) == bits_of(layer(), odd())
    assert np.array_equal(set_back(w, layer(), at), layer())


@pytest.mark.parametrize("shape", [(90, 40), (30, 4, 3, 3), (700, 800)])
def test_low_rank_is_the_closest(shape: tuple[int, ...]) -> None:
    """The last shape is large enough for the quick way; the difference must have a rank to find."""
    rng = np.random.default_rng(0)
    rows, columns = shape[0], int(np.prod(shape[1:]))
    part = rng.standard_normal((rows, 5)) @ rng.standard_normal((5, columns))
    w = (part + 0.1 * rng.standard_normal(part.shape)).astype(np.float32).reshape(shape)
    u, s, v = np.linalg.svd(w.reshape(rows, -1).astype(np.float64), full_matrices=False)
    exact = ((u[:, :5] * s[:5]) @ v[:5]).reshape(shape)
    assert np.abs(low_rank(w, 5) - exact).max() < 1e-3 * np.abs(exact).max()
    assert not low_rank(w, 0).any()
    assert not low_rank(w.reshape(-1), 3).any()
