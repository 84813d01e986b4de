"""What a fine-tuned tensor shows to somebody who has its base."""

import numpy as np
import numpy.typing as npt
import pytest

from neuralmark.core.update import auc, low_rank, update_of
from neuralmark.errors import ParameterError


def product(rows: int, columns: int, rank: int, seed: int = 0) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    left, right = rng.standard_normal((rows, rank)), rng.standard_normal((rank, columns))
    return (left @ right).astype(np.float32)


@pytest.mark.parametrize(("rows", "columns"), [(60, 200), (200, 60), (64, 64)])
def test_the_low_rank_part_is_that_of_the_svd(rows: int, columns: int) -> None:
    rng = np.random.default_rng(1)
    matrix = product(rows, columns, 3) + 0.01 * rng.standard_normal((rows, columns))
    u, s, v = np.linalg.svd(matrix)
    best = (u[:, :3] * s[:3]) @ v[:3]
    left, right = low_rank(matrix, 3)
    assert np.abs(left @ right - best).max() < 1e-3 * np.abs(best).max()
    np.testing.assert_allclose(right @ right.T, np.eye(3), atol=1e-6)


def test_nothing_has_no_low_rank_part() -> None:
    left, right = low_rank(np.zeros((8, 9), np.float32), 4)
    assert left.shape == (8, 0)
    assert right.shape == (0, 9)


def test_an_adapter_is_explained_and_its_rounding_is_left() -> None:
    rng = np.random.default_rng(2)
    adapter = product(256, 512, 8)
    noise = 0.01 * rng.standard_normal(adapter.shape).astype(np.float32)
    found = update_of((adapter + noise).reshape(-1), 256)
    assert found.explained > 0.99
    assert 0.005 < found.residual < 0.011
    assert found.size == pytest.approx(float(np.sqrt(np.mean((adapter + noise) ** 2))), rel=1e-5)
    places = rng.integers(0, adapter.size, 500)
    np.testing.assert_allclose(
        found.smooth_part(places), adapter.reshape(-1)[places], atol=0.05 * adapter.std()
    )


def test_plain_fine_tuning_is_not_explained() -> None:
    rng = np.random.default_rng(3)
    found = update_of(rng.standard_normal(512 * 512).astype(np.float32), 512)
    assert found.explained < 0.4
    assert not found.sparse


@pytest.mark.parametrize("shape", [(64, 2048), (256, 256), (1024, 700)])
def test_noise_has_no_part_of_low_rank(shape: tuple[int, int]) -> None:
    noise = np.random.default_rng(3).standard_normal(shape)
    assert update_of(noise.reshape(-1), shape[0]).explained < 0.01


def test_weights_that_stayed_are_counted() -> None:
    difference = np.zeros(10_000, np.float32)
    difference[:3000] = 1.0
    found = update_of(difference, 100)
    assert found.unmoved == 0.7
    assert found.sparse


@pytest.mark.parametrize(("one", "two"), [([], [1.0]), ([1.0], []), ([np.nan], [1.0])])
def test_scores_of_one_kind_only_are_refused(one: list[float], two: list[float]) -> None:
    with pytest.raises(ParameterError):
        auc(one, two)
