"""Likeness that strangers with the same spectra do not have."""

import numpy as np
import pytest

from neuralmark.anchors.resembling import SIDE, resemblance, turned
from neuralmark.structures.structure import Array


def tensor(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (24, 16, 3, 3), (SIDE + 9, 40)])
def test_factors_and_signs_of_channels_hide_nothing(shape: tuple[int, ...]) -> None:
    one = tensor(0, *shape)
    rows, columns = np.exp(tensor(1, shape[0], 1)), np.exp(tensor(2, 1, shape[1]))
    rows[:5] *= -1
    factors = (rows * columns).reshape(shape[:2] + (1,) * (len(shape) - 2))
    assert resemblance(one, one) == pytest.approx(1)
    assert resemblance(one * factors, one) > 0.999
    assert resemblance(one + 0.3 * tensor(3, *shape), one) > 0.85


def test_a_direction_that_strangers_share_does_not_count() -> None:
    mean = 1.3 * tensor(0, 1, 40)
    one, two = tensor(1, 300, 40) + mean, tensor(2, 300, 40) + mean
    plain = float(np.sum(one * two) / np.sqrt(np.sum(one * one) * np.sum(two * two)))
    assert plain > 0.5
    assert abs(resemblance(one, two)) < 0.1


def test_what_cannot_be_compared_is_not_alike() -> None:
    one = tensor(0, 20, 30)
    hurt = one.copy()
    hurt[3, 4] = np.nan
    for other in (hurt, one.T, np.zeros_like(one), one[0]):
        assert resemblance(other, one) == 0
    assert resemblance(one, np.zeros_like(one)) == 0


def test_a_stranger_has_the_spectrum_and_nothing_else() -> None:
    one = tensor(0, 40, 30) + 2 * tensor(1, 1, 30)
    other = turned(one, 7)
    before, after = (np.linalg.svd(each, compute_uv=False) for each in (one, other))
    assert np.allclose(before, after, rtol=1e-3)
    assert abs(resemblance(other, one)) < 0.15
    assert np.array_equal(turned(one, 7), other)
    vector = tensor(2, 9)
    assert np.array_equal(turned(vector, 1), vector)
