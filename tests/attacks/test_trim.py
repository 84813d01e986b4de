"""Trimming takes what sticks out, exactly, and a mark that sticks out with it."""

import numpy as np
import numpy.typing as npt
import pytest

from neuralmark.attacks import Scene
from neuralmark.attacks.trim import Trim, Trimming, robust_deviation
from neuralmark.errors import ParameterError
from tests.support.checks import one_line
from tests.support.models import gaussian
from tests.support.published import NAME, bits_of, carriers_of, marked, tiled

Weights = npt.NDArray[np.float32]


def trimmed(w: Weights, reach: float, how: Trimming = "clip") -> Weights:
    outcome = Trim(reach, how).run(Scene({NAME: w}, (NAME,), np.random.default_rng(0)))
    assert outcome.weights is not None
    return outcome.weights[NAME]


def test_the_robust_deviation_is_a_gaussians_and_ignores_outliers() -> None:
    w = gaussian(400, 400)
    assert robust_deviation(w) == pytest.approx(0.05, rel=0.02)
    w[:20] = 100
    assert robust_deviation(w) == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("how", ["clip", "zero"])
@pytest.mark.parametrize("reach", [0.5, 2.0, 4.0])
def test_what_lies_within_stays_and_the_rest_goes(how: Trimming, reach: float) -> None:
    w = gaussian(200, 300) + np.float32(0.02)
    made = trimmed(w, reach, how)
    middle, far = float(np.median(w)), reach * robust_deviation(w)
    out = np.abs(w - middle) > far
    assert out.any()
    assert np.array_equal(made[~out], w[~out])
    if how == "zero":
        assert not made[out].any()
    else:
        assert np.allclose(np.abs(made[out] - middle), far, rtol=1e-5)
        assert np.array_equal(np.sign(made[out] - middle), np.sign(w[out] - middle))


def test_a_sparse_tensor_is_measured_by_what_is_not_zero() -> None:
    w = gaussian(300, 300) * (np.arange(90000).reshape(300, 300) % 4 == 0)
    assert robust_deviation(w) == pytest.approx(0.05, rel=0.03)
    made = trimmed(w, 3)
    assert 0 < (made != w).mean() < 0.003


@pytest.mark.parametrize("value", [0.0, 1.5])
@pytest.mark.parametrize("reach", [0.0, 1.0])
def test_a_constant_tensor_has_no_outliers(value: float, reach: float) -> None:
    w = np.full((5, 5), value, np.float32)
    assert np.array_equal(trimmed(w, reach, "zero"), w)


def test_a_mark_that_sticks_out_goes_and_one_within_the_spread_stays() -> None:
    """Carriers as far out as three times the others, as a strong trained mark puts them."""
    shape = (256, 256, 3, 3)
    w, key, carriers = gaussian(*shape, seed=1), tiled(3), carriers_of(tiled(3), shape)
    quiet = marked(w, key, strength=2)
    at, pool = carriers.positions(), carriers.pool_of(0, carriers.size)
    means = np.bincount(pool, quiet.reshape(-1)[at], 512)
    loud = w.copy()
    loud.reshape(-1)[at] = (0.15 * means / means.std())[pool]
    assert bits_of(quiet, key) == bits_of(loud, key) == 256
    assert bits_of(trimmed(quiet, 2.5), key) == 256
    assert bits_of(trimmed(quiet, 2.5, "zero"), key) > 250
    assert bits_of(trimmed(loud, 1.5, "zero"), key) < 200
    assert bits_of(trimmed(loud, 1.5), key) > 227


def test_the_share_of_outliers_is_told() -> None:
    w = np.array([[0.0, 1.0, -1.0, 2.0, -2.0, 50.0]], np.float32)
    outcome = Trim(4).run(Scene({NAME: w}, (NAME,), np.random.default_rng(0)))
    assert outcome.figures == {"outliers": pytest.approx(1 / 6)}


def test_both_ways_have_a_sweep_from_weak_to_strong() -> None:
    for how in ("clip", "zero"):
        reaches = [each.strength for each in Trim.sweep() if each.variant == how]
        assert len(reaches) > 4
        assert reaches == sorted(reaches, reverse=True)


@pytest.mark.parametrize("settings", [{"reach": -1}, {"reach": float("nan")}, {"how": "drop"}])
def test_bad_values_are_refused(settings: dict[str, float | str]) -> None:
    with pytest.raises(ParameterError, match=next(iter(settings))) as caught:
        Trim(**settings)  # type: ignore[arg-type]
    one_line(caught.value)
