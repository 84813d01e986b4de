"""Dividing a difference: the gain that is told is the gain there is."""

from collections.abc import Callable

import numpy as np
import pytest

from neuralmark.anchors import residue
from neuralmark.anchors.residue import Residue, divided, mean_square, untouched

SIDE = 192


def drawn(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def uneven_rows(shape: tuple[int, ...]) -> np.ndarray:
    sizes = np.exp(1.5 * drawn((shape[0], *[1] * (len(shape) - 1)), 1))
    return np.asarray(sizes * drawn(shape, 2), np.float32)


def uneven_columns(shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(uneven_rows((shape[1], shape[0], *shape[2:])).swapaxes(0, 1))


def directions(shape: tuple[int, ...]) -> np.ndarray:
    change = drawn((shape[0], 20), 1) @ drawn((20, int(np.prod(shape[1:]))), 2)
    return np.asarray(5 * change.reshape(shape), np.float32)


def outliers(shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(100 * drawn(shape, 1) * (np.abs(drawn(shape, 2)) > 2.3), np.float32)


def rows_and_directions(shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(uneven_rows(shape) + directions(shape), np.float32)


CHANGES = (uneven_rows, uneven_columns, directions, outliers, rows_and_directions)


def split(difference: np.ndarray) -> Residue:
    return divided(difference, np.zeros(difference.shape, np.bool_), 1.0, 1e-4)


@pytest.mark.parametrize("shape", [(SIDE, SIDE), (64, 48, 3, 3)])
@pytest.mark.parametrize("change", CHANGES)
def test_the_gain(change: Callable[[tuple[int, ...]], np.ndarray], shape: tuple[int, ...]) -> None:
    difference = np.asarray(change(shape) + 0.2 * drawn(shape, 5), np.float32)
    faint = np.asarray(0.01 * drawn(shape, 6), np.float32)
    found = split(difference)
    moved = split(difference + faint).left - found.left
    actual = float((moved * faint).sum() / np.square(faint).sum())
    assert actual == pytest.approx(found.gain, rel=0.25)
    assert found.cost(1e-4) < 0.5 * untouched(difference).cost(1e-4)
    alike, gain = found.alike()
    assert gain >= found.gain
    assert alike.shape == shape


def test_rows_that_stand_out_count_less() -> None:
    difference = drawn((SIDE, SIDE), 0)
    difference[:40] *= 3
    found = split(difference)
    assert [each.what for each in found.aside] == ["rows"]
    assert found.aside[0].kept == pytest.approx(1 - 40 / SIDE, abs=0.1)
    assert mean_square(found.left[:40]) < 0.2 * mean_square(found.left[40:])


def test_white_noise_is_trusted_whole() -> None:
    difference = drawn((SIDE, SIDE), 0)
    found = split(difference)
    assert found.left is difference
    assert (found.gain, found.aside, bool(found.away.any())) == (1.0, (), False)


def test_nothing_has_no_size() -> None:
    assert mean_square(np.zeros((0, 4), np.float32)) == 0.0


def test_of_a_large_tensor_the_likelier_start_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residue, "LARGE", SIDE)
    pruned = np.abs(drawn((SIDE, SIDE), 1)) < 1
    difference = np.where(pruned, 5 * drawn((SIDE, SIDE), 2), 0.2 * drawn((SIDE, SIDE), 3))
    found = divided(difference.astype(np.float32), pruned, 1.0, 1e-4)
    assert found.away[pruned].all()
    assert found.even == pytest.approx(1 - pruned.mean(), abs=0.02)
    assert mean_square(found.left) < 0.05
