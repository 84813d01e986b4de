"""Which channel is which, from how alike they are."""

import numpy as np
import pytest

from neuralmark.anchors.aligning import assigning
from neuralmark.anchors.aligning.assigning import assigned, matched
from neuralmark.anchors.moves import GRID, MISSING


@pytest.fixture
def similarity() -> np.ndarray:
    rng = np.random.default_rng(0)
    found = rng.uniform(0, 0.5, (40, 50))
    found[np.arange(40), rng.permutation(50)[:40]] = 0.9
    return found


def test_best_sum_not_best_first() -> None:
    found = assigned(np.array([[1.0, 0.9], [0.9, 0.0]]))
    np.testing.assert_array_equal(found.index, [1, 0])
    np.testing.assert_array_equal(found.alike, [0.9, 0.9])
    np.testing.assert_array_equal(found.sure, [False, False])


def test_fewer_places_than_channels() -> None:
    found = assigned(np.array([[0.1], [0.9], [0.2]]))
    np.testing.assert_array_equal(found.index, [MISSING, 0, MISSING])
    np.testing.assert_array_equal(found.sure, [False, True, False])
    np.testing.assert_array_equal(found.alike, [0, 0.9, 0])


def test_no_places_at_all() -> None:
    np.testing.assert_array_equal(assigned(np.zeros((2, 0))).index, [MISSING, MISSING])


def test_neighbours_find_what_an_assignment_finds(
    similarity: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = matched(lambda rows: similarity[rows], 40, 50)
    monkeypatch.setattr(assigning, "FULL", 8)
    monkeypatch.setattr(assigning, "_BLOCK", 150)
    blocks: list[int] = []

    def some(rows: np.ndarray) -> np.ndarray:
        blocks.append(len(rows))
        return np.asarray(similarity[rows])

    found = matched(some, 40, 50)
    np.testing.assert_array_equal(found.index, whole.index)
    np.testing.assert_allclose(found.alike, whole.alike)
    assert max(blocks) == 3


def test_noise_of_another_summation_decides_nothing() -> None:
    equal = np.full((6, 6), 0.5)
    noise = 0.2 * GRID * np.random.default_rng(1).standard_normal((6, 6))
    one = matched(lambda rows: equal[rows], 6, 6)
    two = matched(lambda rows: (equal + noise)[rows], 6, 6)
    np.testing.assert_array_equal(one.index, two.index)


def test_what_is_nobodys_best_gets_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    similarity = np.array([[0.2, 0.9, 0.1], [0.3, 0.8, 0.5], [0.0, 0.1, 0.4]])
    monkeypatch.setattr(assigning, "FULL", 2)
    found = matched(lambda rows: similarity[rows], 3, 3)
    np.testing.assert_array_equal(found.index, [1, 0, 2])
    np.testing.assert_array_equal(found.sure, [True, False, False])
    np.testing.assert_allclose(found.alike, [0.9, 0.3, 0.4], atol=GRID)
