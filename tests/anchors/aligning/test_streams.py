"""Turns of a stream that suit rows which belong together."""

import numpy as np
import pytest

from neuralmark.anchors.aligning.streams import Moments, nearest_rotation
from neuralmark.anchors.aligning.witnesses import backwards
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.structures.structure import Array

RNG = np.random.default_rng(1)


def _rows(count: int, width: int) -> Array:
    return RNG.standard_normal((count, width)).astype(np.float32)


def _turns(one: Array, two: Array) -> list[Move]:
    moments = Moments.empty(one.shape[1], two.shape[1])
    moments.add(one, two)
    return list(moments.turns())


def test_a_signed_permutation_is_found() -> None:
    one, order = _rows(200, 40), RNG.permutation(40)
    signs = RNG.choice([-1, 1], 40).astype(np.float32)
    two = (one * signs)[:, order] + 0.5 * _rows(200, 40)
    first, second = _turns(one, 7 * two)
    assert first.index is not None
    assert first.factor is not None
    np.testing.assert_array_equal(order[first.index], np.arange(40))
    np.testing.assert_array_equal(first.factor, signs)
    assert second.matrix is not None


def test_a_rotation_is_found_and_no_order() -> None:
    one = _rows(200, 40)
    turn = np.linalg.qr(RNG.standard_normal((40, 40)))[0].astype(np.float32)
    (found,) = _turns(one, one @ turn)
    assert found.matrix is not None
    np.testing.assert_allclose(found.matrix, turn, atol=1e-4)
    np.testing.assert_allclose(found.of(one @ turn, 1), one, atol=1e-3)
    np.testing.assert_allclose(backwards(found, one, 40), one @ turn, atol=1e-3)


def test_a_narrower_stream() -> None:
    one = _rows(300, 40)
    kept = np.sort(RNG.permutation(40)[:30])
    first, second = _turns(one, one[:, kept])
    assert first.index is not None
    there = first.index != MISSING
    np.testing.assert_array_equal(kept[first.index[there]], np.flatnonzero(there))
    assert second.matrix is not None
    assert second.matrix.shape == (40, 30)
    np.testing.assert_array_equal(backwards(first, one, 30)[:, first.index[there]], one[:, there])


@pytest.mark.parametrize("rows", [0, 5])
def test_nothing_is_made_of_nothing(rows: int) -> None:
    assert _turns(_rows(rows, 8), np.zeros((rows, 8), np.float32)) == []


@pytest.mark.parametrize("shape", [(12, 12), (12, 9)])
def test_the_nearest_rotation(shape: tuple[int, int]) -> None:
    matrix = RNG.standard_normal(shape)
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    np.testing.assert_allclose(nearest_rotation(matrix), left @ right, atol=1e-9)
