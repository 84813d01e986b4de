"""Likeness: factors and layouts do not hide it, and what is unrelated has none."""

import numpy as np
import pytest

from neuralmark.anchors.locating.likeness import (
    CONVINCING,
    convincing,
    even,
    likeness,
    matrix,
    sample_of,
    scattered,
    taken,
)
from tests.support.models import gaussian

SHAPES = [(64, 64), (16, 16, 3, 3), (200, 30), (8, 3, 7), (500,), (300, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tensor_is_like_itself_and_unlike_others(shape: tuple[int, ...]) -> None:
    one, two = gaussian(*shape, seed=1), gaussian(*shape, seed=2)
    assert likeness(one, one).cosine == pytest.approx(1, abs=1e-5)
    assert likeness(one, one).direct
    assert likeness(one, two).cosine < 0.25
    assert not likeness(one, two).direct


@pytest.mark.parametrize("axis", [0, 1])
def test_factors_of_rows_or_columns_hide_nothing(axis: int) -> None:
    one = gaussian(48, 64)
    factors = np.exp(np.random.default_rng(3).normal(0, 2, 48 if axis == 0 else 64))
    factors *= np.where(np.arange(len(factors)) % 5, 1, -1)
    scaled = (one * (factors[:, None] if axis == 0 else factors)).astype(np.float32)
    assert likeness(scaled, one).cosine == pytest.approx(1, abs=1e-5)
    assert likeness(scaled, one).direct


def test_a_few_rows_in_other_places_are_left_to_align() -> None:
    one = gaussian(64, 64)
    order = np.arange(64)
    order[:4] = [3, 2, 1, 0]
    moved = likeness(one[order], one)
    assert moved.cosine > 0.9
    assert moved.stray > 0.04
    assert not moved.direct


def test_rows_that_were_removed_are_not_in_other_places() -> None:
    one = gaussian(64, 64)
    pruned = one.copy()
    pruned[:20] = 0
    seen = likeness(pruned, one)
    assert seen.cosine == pytest.approx(np.sqrt(44 / 64), abs=0.05)
    assert seen.direct


def test_noise_lowers_it_evenly() -> None:
    one = gaussian(64, 64)
    noisy = one + gaussian(64, 64, seed=5)
    assert likeness(noisy, one).cosine == pytest.approx(np.sqrt(0.5), abs=0.03)
    assert likeness(noisy, one).direct


@pytest.mark.parametrize("shape", SHAPES)
def test_the_table_of_all_pairs_is_that_of_single_ones(shape: tuple[int, ...]) -> None:
    ones = [gaussian(*shape, seed=i) for i in range(3)]
    others = [ones[2] * 2, ones[0] + 0.5 * gaussian(*shape, seed=9)]
    single = [[likeness(one, other).cosine for one in ones] for other in others]
    np.testing.assert_allclose(matrix(ones, others), single, atol=2e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0, 3e38])
def test_what_is_no_number_counts_as_nothing(bad: float) -> None:
    one = gaussian(32, 32)
    broken = one.copy()
    broken[3] = bad
    assert 0.9 < likeness(broken, one).cosine <= 1
    assert likeness(np.full((32, 32), bad, np.float32), one).cosine < CONVINCING
    assert likeness(one, np.zeros((32, 32), np.float32)).cosine == 0


def test_a_constant_vector_is_like_nothing() -> None:
    ones = np.ones(64, np.float32)
    assert likeness(ones, ones).cosine == 0
    assert likeness(gaussian(64) + 1, gaussian(64) + 1).direct


def test_small_tensors_must_be_more_alike() -> None:
    assert convincing(10**6) == CONVINCING
    assert convincing(64) == 0.75
    assert convincing(4) == 0.95


@pytest.mark.parametrize("shape", [(5,), (10_000,), (3, 4), (500, 700), (9, 80, 7, 7), (4, 5, 40)])
def test_samples_are_bounded_and_inside(shape: tuple[int, ...]) -> None:
    index = sample_of(shape, 64, b"secret")
    part = taken(np.zeros(shape, np.float32), index)
    assert part.ndim == len(shape)
    assert part.size <= 64 * 64 * 16
    for places, length in zip(index, shape, strict=True):
        assert places is not None
        assert len(set(places.tolist())) == len(places)
        assert places.max() < length


def test_only_the_secret_tells_where_samples_lie() -> None:
    places = scattered(4096, 256, b"one")
    np.testing.assert_array_equal(places, scattered(4096, 256, b"one"))
    assert (places // 16 == np.arange(256)).all()  # one in each stretch
    assert len(np.intersect1d(places, scattered(4096, 256, b"two"))) < 64
    np.testing.assert_array_equal(scattered(5, 8, b"one"), np.arange(5))


def test_even_places_are_those_of_an_anchor() -> None:
    np.testing.assert_array_equal(even(10, 4), [0, 2, 5, 7])
    np.testing.assert_array_equal(even(3, 4), [0, 1, 2])
