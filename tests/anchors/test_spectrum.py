"""Shrinking directions, and how much of a faint signal is left."""

import numpy as np
import pytest

from neuralmark.anchors import spectrum
from neuralmark.anchors.spectrum import NOTHING, gram, least_noise, plan


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def low_rank(rows: int, columns: int, rank: int, size: float) -> np.ndarray:
    return np.asarray(size * noise((rows, rank), 1) @ noise((rank, columns), 2), np.float32)


@pytest.mark.parametrize(("rows", "columns"), [(96, 160), (160, 96), (128, 128)])
def test_the_gain_is_what_a_faint_signal_keeps(rows: int, columns: int) -> None:
    matrix = noise((rows, columns)) + low_rank(rows, columns, 12, 3.0)
    faint = 1e-2 * noise((rows, columns), 3)
    chosen = plan(matrix, 0.0)
    assert chosen.rank == 12
    moved = plan(matrix + faint, 0.0).of(matrix + faint) - chosen.of(matrix)
    kept = float((moved * faint).sum() / np.square(faint).sum())
    assert kept == pytest.approx(chosen.gain, abs=0.02)
    assert chosen.gain < 0.9
    left = float(np.square(chosen.of(matrix)).mean() / chosen.gain**2)
    assert left == pytest.approx(chosen.cost * np.square(matrix).mean(), rel=0.01)
    assert left < 1.5


def test_white_noise_is_left_alone() -> None:
    matrix = noise((128, 192))
    chosen = plan(matrix, 0.0)
    assert chosen.cost > 0.98
    assert chosen.gain > 0.8


def test_nothing_is_preferred_for_being_quieter_than_the_floor() -> None:
    matrix = np.asarray(0.1 * noise((64, 64)), np.float32)
    matrix[:4] *= 1e-3
    assert plan(matrix, 0.0).cost < 0.1
    assert plan(matrix, 0.01).cost > 0.9


@pytest.mark.parametrize("energies", [np.zeros(8), np.array([3.0]), np.array([-1e-9, 0.0])])
def test_nothing_to_shrink(energies: np.ndarray) -> None:
    assert least_noise(energies, 10, 0.0) == NOTHING


def test_nothing_shrunk_is_the_matrix_itself() -> None:
    matrix = np.ones((1, 5), np.float32)
    np.testing.assert_array_equal(plan(matrix, 0.0).of(matrix), matrix)


def test_a_tall_side_is_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = noise((100, 300)) + low_rank(100, 300, 2, 5.0)
    whole = plan(matrix, 0.0)
    monkeypatch.setattr(spectrum, "SIDE", 40)
    pieces = plan(matrix, 0.0)
    assert pieces.ends == ((0, 33), (33, 66), (66, 100))
    assert [each.rank for each in pieces.choices] == [2, 2, 2]
    assert 0.8 < np.corrcoef(whole.of(matrix).ravel(), pieces.of(matrix).ravel())[0, 1] < 1
    np.testing.assert_array_equal(plan(matrix.T, 0.0).of(matrix.T), pieces.of(matrix).T)


def test_inner_products_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = noise((20, 1000))
    whole = gram(matrix)
    monkeypatch.setattr(spectrum, "_BLOCK", 100)
    np.testing.assert_allclose(gram(matrix), whole, rtol=1e-12)
