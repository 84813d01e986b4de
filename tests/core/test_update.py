"""What a fine-tuned tensor shows to somebody who has its base."""

import numpy as np
import numpy.typing as npt
import pytest

from neuralmark.core.update import auc, low_rank, noise_law, noise_share, update_of
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


@pytest.mark.parametrize(
    ("rows", "columns", "rank", "exact"),
    [
        (512, 600, 20, True),
        (600, 512, 20, True),
        (513, 600, 20, False),
        (600, 620, 300, True),
        (600, 620, 299, False),
    ],
)
def test_small_matrices_and_high_ranks_are_decomposed_exactly(
    rows: int, columns: int, rank: int, exact: bool
) -> None:
    """Of noise, a few passes find the largest directions only nearly."""
    noise = np.random.default_rng(5).standard_normal((rows, columns))
    left, right = low_rank(noise, rank)
    sizes = np.linalg.svd(noise, compute_uv=False)[:rank]
    found = np.linalg.norm(left, axis=0)
    assert bool(np.allclose(found, sizes, rtol=1e-10)) == exact
    np.testing.assert_allclose(found, sizes, rtol=0.1)
    np.testing.assert_allclose(right @ right.T, np.eye(rank), atol=1e-10)


def test_a_zero_among_others_is_a_number_like_any() -> None:
    matrix = np.outer([1.0, 0.0, 3.0], [1.0, -1.0])
    left, right = low_rank(matrix, 1)
    np.testing.assert_allclose(left @ right, matrix, atol=1e-12)
    assert update_of(np.array([2.0]), 1).size == 2


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


def test_large_matrices_have_the_low_rank_part_of_the_svd_too() -> None:
    rng = np.random.default_rng(1)
    matrix = product(600, 700, 3) + 0.01 * rng.standard_normal((600, 700))
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    best = (u[:, :3] * s[:3]) @ v[:3]
    left, right = low_rank(matrix, 3)
    assert left.shape == (600, 3)
    assert np.abs(left @ right - best).max() < 1e-3 * np.abs(best).max()
    np.testing.assert_allclose(right @ right.T, np.eye(3), atol=1e-9)


@pytest.mark.parametrize("shape", [(120, 400), (400, 120)])
@pytest.mark.parametrize("energy", [0.25, 1.0, 4.0])
def test_what_is_explained_is_the_adapters_share_of_the_energy(
    shape: tuple[int, int], energy: float
) -> None:
    adapter, rng = product(*shape, 2).astype(np.float64), np.random.default_rng(4)
    adapter *= np.sqrt(energy) / np.sqrt(np.square(adapter).mean())
    found = update_of((adapter + rng.standard_normal(shape)).reshape(-1), shape[0])
    assert found.explained == pytest.approx(energy / (1 + energy), abs=0.04)


def test_an_eighth_of_the_directions_is_taken_and_64_at_most() -> None:
    rng = np.random.default_rng(0)
    for rows, columns, rank in ((80, 100, 10), (100, 87, 10), (7, 100, 0), (530, 600, 64)):
        found = update_of(rng.standard_normal(rows * columns), rows)
        assert found.left.shape == (rows, rank)
        assert found.right.shape == (rank, columns)


def test_what_is_left_is_what_the_low_rank_part_does_not_hold() -> None:
    difference = np.random.default_rng(0).standard_normal((80, 100))
    found = update_of(difference.reshape(-1), 80)
    rest = difference - found.left @ found.right
    assert found.residual == pytest.approx(np.sqrt(np.square(rest).mean()))
    places = np.arange(difference.size)
    np.testing.assert_allclose(found.smooth_part(places), (difference - rest).reshape(-1))


def test_nothing_is_explained_where_nothing_changed_or_no_rank_is_looked_for() -> None:
    nothing = update_of(np.zeros(6400), 80)
    assert (nothing.size, nothing.residual, nothing.unmoved, nothing.explained) == (0, 0, 1, 0)
    narrow = update_of(np.ones(60), 3)
    assert (narrow.size, narrow.residual, narrow.unmoved, narrow.explained) == (1, 1, 0, 0)
    assert narrow.smooth_part(np.array([3, 59])).tolist() == [0, 0]
    assert update_of(np.zeros(0), 1).size == 0
    assert "array" not in repr(update_of(np.ones(6400), 80))


@pytest.mark.parametrize(("unmoved", "sparse"), [(100, False), (101, True)])
def test_more_than_a_hundredth_at_the_bases_values_is_no_chance(unmoved: int, sparse: bool) -> None:
    difference = np.ones(10_000)
    difference[:unmoved] = 0
    assert update_of(difference, 100).sparse == sparse


@pytest.mark.parametrize("shape", [(300, 300), (300, 900)])
def test_the_law_of_noise_is_that_of_random_matrices(shape: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).standard_normal(shape)
    seen = np.sort(np.linalg.svd(noise, compute_uv=False) ** 2 / shape[1])
    squares, law = noise_law(shape[0] / shape[1])
    assert (law[0], law[-1]) == (0, 1)
    assert (np.diff(law) >= 0).all()
    assert (np.diff(squares) > 0).all()
    for share in (0.1, 0.5, 0.9):
        expected = float(np.interp(share, law, squares))
        assert float(np.quantile(seen, share)) == pytest.approx(expected, rel=0.05, abs=0.01)
    for rank in (1, 30, 150, 300):
        held = seen[::-1][:rank].sum() / seen.sum()
        assert noise_share(*shape, rank) == pytest.approx(held, abs=0.01)
        assert noise_share(*shape[::-1], rank) == noise_share(*shape, rank)


def test_an_auc_counts_pairs() -> None:
    assert auc([1.0], [0.0]) == 1
    assert auc([0.0], [1.0]) == 0
    assert auc([1.0, 1.0], [1.0]) == 0.5
    rng = np.random.default_rng(0)
    one, two = rng.integers(0, 9, 40).astype(float), rng.integers(3, 12, 30).astype(float)
    pairs = [(a > b) + (a == b) / 2 for a in one for b in two]
    assert auc(one, two) == pytest.approx(sum(pairs) / len(pairs))
    for clean in ([np.inf], [0.0, np.nan]):
        with pytest.raises(ParameterError):
            auc([1.0, 2.0], clean)
        with pytest.raises(ParameterError):
            auc(clean, [1.0, 2.0])


def test_an_unchanged_tensor_has_nothing_to_explain() -> None:
    found = update_of(np.zeros(64 * 64, np.float32), 64)
    assert (found.size, found.unmoved, found.explained) == (0.0, 1.0, 0.0)
    assert found.smooth_part(np.arange(5)).tolist() == [0.0] * 5
