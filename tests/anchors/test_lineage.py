"""Two models side by side: whichever names they bear, and what luck alone would give."""

import numpy as np

from neuralmark.anchors.lineage import ShuffledWeights, kinships
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.structures.structure import Array
from tests.support.models import gaussian
from tests.support.rebuilt import anchor_of

TABLE: dict[str, Array] = {"a.weight": gaussian(64, 48), "b.weight": gaussian(40, 64, seed=1)}


def test_a_model_under_a_wrapper_is_compared_all_the_same() -> None:
    skeleton = anchor_of(TABLE).skeleton
    wrapped = TableWeights({f"module.{name}": value for name, value in TABLE.items()})
    found, _ = kinships(wrapped, skeleton, TableWeights(TABLE))
    assert [(each.fate.name, each.score) for each in found] == [("a.weight", 1), ("b.weight", 1)]


def test_tensors_that_the_first_model_lacks_are_left_out() -> None:
    skeleton = anchor_of(TABLE).skeleton
    less = TableWeights({"a.weight": TABLE["a.weight"]})
    found, _ = kinships(less, skeleton, TableWeights(TABLE))
    assert [each.fate.name for each in found] == ["a.weight"]


def test_a_shuffled_model_has_the_same_values_in_other_places() -> None:
    shuffled = ShuffledWeights(TableWeights(TABLE))
    assert list(shuffled) == list(TABLE)
    assert len(shuffled) == 2
    for name, values in TABLE.items():
        np.testing.assert_array_equal(np.sort(shuffled[name], None), np.sort(values, None))
        assert (shuffled[name] == values).mean() < 0.01
        np.testing.assert_array_equal(shuffled[name], shuffled[name])
        rows = shuffled.read_rows(name, np.array([3, 1]))
        np.testing.assert_array_equal(rows, shuffled[name][[3, 1]])
