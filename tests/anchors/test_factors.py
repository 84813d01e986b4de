"""Factors of rows and columns, regressed on the anchor."""

import numpy as np
import pytest

from neuralmark.anchors.factors import DRAWN_IN, RESCALED, likeness, rescaled
from tests.support.models import gaussian
from tests.support.rebuilt import coarse, trained


def scaled(values: np.ndarray, reach: float = 1.0, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = np.exp(rng.uniform(-reach, reach, (len(values), 1)))
    columns = np.exp(rng.uniform(-reach, reach, values.shape[1]))
    shape = (1, -1, *[1] * (values.ndim - 2))
    tall = rows.reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray(values * tall * columns.reshape(shape), np.float32)


@pytest.mark.parametrize("reach", [0.5, 3.0])
def test_factors_are_divided_out(reach: float) -> None:
    values = trained("residual")["layer1.1.conv1.weight"]
    back, changes = rescaled(scaled(values, reach), coarse(values))
    assert np.linalg.norm(back - values) < 0.05 * np.linalg.norm(values)
    assert changes == (RESCALED,)


def test_what_was_not_scaled_stays() -> None:
    values = gaussian(64, 80)
    back, changes = rescaled(values, coarse(values))
    assert np.linalg.norm(back - values) < 0.03 * np.linalg.norm(values)
    assert changes == ()


def test_the_mark_itself_is_not_regressed_away() -> None:
    values, anchor = gaussian(64, 80), gaussian(64, 80)
    mark = gaussian(64, 80, seed=1) / 10
    back, _ = rescaled(scaled(values + mark), anchor)
    kept = float(np.sum((back - anchor) * mark) / np.sum(mark * mark))
    assert 0.9 < kept < 1.1


def test_channels_without_likeness_stay_as_they_are() -> None:
    values = gaussian(32, 200)
    anchor = coarse(values)
    values = 3 * values
    values[5] = gaussian(200, seed=1)
    back, _ = rescaled(values, anchor)
    np.testing.assert_allclose(np.abs(back[5]).mean(), np.abs(values[5]).mean(), rtol=0.1)


def test_a_dead_channel_is_not_blown_up() -> None:
    values = gaussian(32, 200)
    anchor = coarse(values)
    anchor[7] *= 1e-6
    suspect = values.copy()
    suspect[7] = 5 * anchor[7] + 100 * gaussian(200, seed=3)
    back, changes = rescaled(suspect, anchor)
    assert DRAWN_IN in changes
    assert np.abs(back[7]).max() < np.abs(values).max()
    np.testing.assert_allclose(back[:7], values[:7], atol=0.02)


def test_noise_on_small_channels_counts_for_less() -> None:
    values = gaussian(64, 64)
    small = values.copy()
    small[:8] *= 0.1
    back, changes = rescaled(small + 0.3 * gaussian(64, 64, seed=1), values)
    assert DRAWN_IN in changes
    far = np.square(back - values).mean(axis=1)
    assert far[:8].max() < 3 * np.median(far)


def test_vectors_stay() -> None:
    vector = gaussian(20)
    back, changes = rescaled(3 * vector, vector)
    np.testing.assert_array_equal(back, 3 * vector)
    assert changes == ()


def test_what_is_not_finite_counts_as_nothing() -> None:
    values = gaussian(30, 40)
    spoilt = values.copy()
    spoilt[2] = np.nan
    spoilt[:, 3] = np.inf
    back, _ = rescaled(spoilt, values)
    assert np.isfinite(back).all()
    assert 0.9 < likeness(spoilt, values) < 1


def test_likeness_sees_through_factors_and_is_no_more_than_one() -> None:
    values = trained("chain")["features.4.weight"]
    assert likeness(scaled(values, 2.0), values) == pytest.approx(1, abs=1e-6)
    assert likeness(-values, values) == pytest.approx(1, abs=1e-6)
    assert likeness(gaussian(*values.shape), values) < 0.2
    assert likeness(np.zeros_like(values), values) == 0
    assert likeness(values, np.zeros_like(values)) == 0


def test_likeness_of_vectors_is_their_cosine() -> None:
    assert likeness(np.array([1, 0], np.float32), np.array([1, 1], np.float32)) == pytest.approx(
        np.sqrt(0.5)
    )
    assert likeness(np.zeros(2, np.float32), np.ones(2, np.float32)) == 0


@pytest.mark.parametrize("axis", [0, 1])
def test_signs_alone_are_noticed_and_undone(axis: int) -> None:
    rng = np.random.default_rng(0)
    anchor = rng.standard_normal((48, 40)).astype(np.float32)
    suspect = anchor + np.float32(0.1) * rng.standard_normal(anchor.shape).astype(np.float32)
    signs = rng.choice([-1, 1], anchor.shape[axis]).astype(np.float32)
    turned = suspect * np.expand_dims(signs, 1 - axis)
    found, noticed = rescaled(turned, anchor)
    assert noticed == ("flipped",)
    assert np.linalg.norm(found - suspect) < 0.1 * np.linalg.norm(suspect)
    assert rescaled(suspect, anchor)[1] == ()
