"""What lies beside a weight that was found in part: its bias, along the axis that it belongs to."""

import numpy as np
import pytest

from neuralmark.anchors.locating.combined import StackItem
from neuralmark.anchors.locating.kinship import vectors_beside
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.locating.views import Stored, Taken, Turned, View

WHOLE = Stored("up.weight")
SIDES = [Taken(WHOLE, 0, 8, 8), Taken(Turned(WHOLE, (1, 0)), 1, 8, 8)]
ACROSS = [Taken(WHOLE, 1, 4, 4), Taken(Turned(WHOLE, (1, 0)), 0, 8, 4)]


def table() -> TableWeights:
    """A layer of 24 outputs and 12 inputs, and its bias."""
    bias = np.arange(24, dtype=np.float32)
    return TableWeights({"up.weight": np.zeros((24, 12), np.float32), "up.bias": bias})


@pytest.mark.parametrize("weight", SIDES)
def test_some_outputs_and_their_bias(weight: View) -> None:
    suspect = table()
    parts = [view.read(suspect).tolist() for view in vectors_beside(weight, "bias", suspect.shapes)]
    assert list(range(8, 16)) in parts


@pytest.mark.parametrize("weight", ACROSS)
def test_some_inputs_have_no_part_of_a_bias(weight: View) -> None:
    """It would begin behind the end of the bias, or take a part that is not theirs."""
    suspect = table()
    beside = list(vectors_beside(weight, "bias", suspect.shapes))
    assert beside == [Stored("up.bias")]


@pytest.mark.parametrize(("count", "known"), [(3, True), (2, False)])
def test_one_of_a_stack(count: int, known: bool) -> None:
    """Of as many biases as there are weights."""
    biases = np.zeros((count, 4), np.float32)
    suspect = TableWeights({"a.weight": np.zeros((3, 4, 5), np.float32), "a.bias": biases})
    beside = list(vectors_beside(StackItem(Stored("a.weight"), 2), "bias", suspect.shapes))
    assert (StackItem(Stored("a.bias"), 2) in beside) == known
