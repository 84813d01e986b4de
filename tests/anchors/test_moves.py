"""How an axis of a suspect becomes the anchor's."""

import numpy as np
import pytest

from neuralmark.anchors.moves import GRID, MISSING, Move, moved


@pytest.fixture
def values() -> np.ndarray:
    return np.arange(24, dtype=np.float32).reshape(4, 3, 2)


def test_nothing_moves(values: np.ndarray) -> None:
    assert Move.same(4).is_same
    assert moved(values, (Move.same(4), Move.same(3))) is values


def test_gather_with_factors_and_a_missing_channel(values: np.ndarray) -> None:
    move = Move(np.array([2, MISSING, 0]), np.array([2, 5, -1], np.float32))
    out = move.of(values, 0)
    assert out.shape == (3, 3, 2)
    np.testing.assert_array_equal(out, np.stack([2 * values[2], 0 * values[0], -values[0]]))
    np.testing.assert_array_equal(move.found, [True, False, True])
    assert move.size == 3
    assert not move.is_same


def test_a_shorter_axis_is_no_identity(values: np.ndarray) -> None:
    assert moved(values, (Move.same(3),)).shape == (3, 3, 2)


def test_matrix_mixes_channels(values: np.ndarray) -> None:
    matrix = np.array([[0, 1, 1], [0, 0, 0]], np.float32)
    out = Move(matrix=matrix).of(values, 1)
    np.testing.assert_array_equal(out[:, 0], values[:, 1] + values[:, 2])
    np.testing.assert_array_equal(Move(matrix=matrix).found, [True, False])


def test_rounding_hides_what_another_blas_does_otherwise() -> None:
    factors = np.array([0.5, 1 / 3], np.float32)
    near = Move(np.arange(2), factors + np.float32(GRID / 8)).rounded()
    np.testing.assert_array_equal(Move(np.arange(2), factors).rounded().factor, near.factor)


def test_blocks_mix_the_gathered_channels(values: np.ndarray) -> None:
    blocks = np.array([[[0, 2], [1, 0]], [[1, 1], [0, 0]]], np.float32)
    move = Move(np.array([3, 0, MISSING, 2]), blocks=blocks)
    out = move.of(values, 0)
    np.testing.assert_array_equal(
        out, np.stack([2 * values[0], values[3], values[2], 0 * values[0]])
    )
    np.testing.assert_array_equal(move.found, [True, True, True, False])
    assert not Move(np.arange(4), blocks=np.stack([np.eye(2, dtype=np.float32)] * 2)).is_same


def test_factors_before_and_behind_a_matrix(values: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    matrix, before, factor = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3), 3, 2)
    )
    out = Move(None, factor, matrix, before=before).of(values, 1)
    whole = factor[:, None] * matrix * before
    np.testing.assert_allclose(out, Move(matrix=whole).of(values, 1), rtol=1e-5)
    gathered = Move(np.array([2, 0]), factor, before=before).of(values, 1)
    expected = np.stack(
        [values[:, 2] * before[2] * factor[0], values[:, 0] * before[0] * factor[1]], axis=1
    )
    np.testing.assert_allclose(gathered, expected, rtol=1e-6)


def test_parts_of_split_channels_are_added(values: np.ndarray) -> None:
    part = Move(np.array([MISSING, 2]), np.array([9, 0.5], np.float32))
    move = Move(np.array([0, 1]), also=(part,))
    out = move.of(values, 1)
    np.testing.assert_array_equal(out[:, 0], values[:, 0])
    np.testing.assert_array_equal(out[:, 1], values[:, 1] + 0.5 * values[:, 2])
    assert not Move(np.arange(3), also=(part,)).is_same
    np.testing.assert_array_equal(move.rounded().of(values, 1), out)


def test_a_part_without_factors_is_added_whole(values: np.ndarray) -> None:
    move = Move(np.array([0, 1]), also=(Move(np.array([2, MISSING])),))
    out = move.of(values, 1)
    np.testing.assert_array_equal(out[:, 0], values[:, 0] + values[:, 2])
    np.testing.assert_array_equal(out[:, 1], values[:, 1])
