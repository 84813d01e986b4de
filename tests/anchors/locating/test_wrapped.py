"""Weights that wrappers keep in parts: found whole, and what lies beside them too."""

import numpy as np
import pytest

from neuralmark.anchors.locating import Located, locate
from neuralmark.anchors.locating.combined import Masked, Product, WeightNormed
from neuralmark.anchors.locating.kinship import beside
from neuralmark.anchors.locating.seeking import Candidate, Quest, begin
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.locating.views import Shaped, Stored, View
from tests.support.anchored import Table, anchor_of
from tests.support.models import gaussian

WEIGHT, SQUARE, BIAS = gaussian(40, 24), gaussian(32, 32, seed=1), gaussian(40, seed=2)
ANCHOR = anchor_of({"a.weight": WEIGHT, "a.bias": BIAS, "s.weight": SQUARE})
LENGTHS = np.linalg.norm(WEIGHT, axis=1, keepdims=True)


def found_in(suspect: Table, name: str = "a.weight") -> Located:
    return locate(TableWeights(suspect), ANCHOR)[name]


def test_a_parametrization_of_torch_is_seen_through() -> None:
    stem = "a.parametrizations.weight.original"
    found = found_in({f"{stem}0": LENGTHS, f"{stem}1": WEIGHT / LENGTHS})
    assert found.direct
    assert found.changes == ("renamed", "weight norm applied")
    np.testing.assert_allclose(
        found.view.read(TableWeights({f"{stem}0": LENGTHS, f"{stem}1": WEIGHT / LENGTHS})),
        WEIGHT,
        rtol=1e-5,
    )
    found = found_in({stem: WEIGHT})
    assert found.direct
    assert found.view.describe() == stem


def test_an_adapter_that_adds_nothing_is_left_out() -> None:
    adapter = {"a.lora_A.weight": gaussian(4, 24), "a.lora_B.weight": np.zeros((40, 4), "f4")}
    found = found_in({"a.weight": WEIGHT} | adapter)
    assert found.direct
    assert found.changes == ()
    assert found.view.describe() == "a.weight"


def test_an_adapter_of_a_weight_that_was_turned_is_left_out() -> None:
    adapter = {"s.lora_A.weight": gaussian(4, 32), "s.lora_B.weight": gaussian(32, 4)}
    found = found_in({"s.weight": np.ascontiguousarray(SQUARE.T)} | adapter, "s.weight")
    assert found.direct
    assert found.changes == ("transposed",)


def test_a_piece_that_is_lost_leaves_a_gap() -> None:
    shards = {f"rank{i}.a.weight": WEIGHT[10 * i : 10 * i + 10] for i in (0, 1, 3)}
    found = found_in(shards)
    assert found.changes == ("renamed", "4 pieces joined", "a part is missing")
    values = found.view.read(TableWeights(shards))
    np.testing.assert_array_equal(values[20:30], 0)
    np.testing.assert_array_equal(np.delete(values, range(20, 30), 0)[:20], WEIGHT[:20])


WRAPPED: dict[str, tuple[View, str]] = {
    "masked": (Masked(Stored("x.weight_orig"), Stored("x.weight_mask")), "x.weight_orig"),
    "normed": (WeightNormed(Stored("x.weight_v"), Stored("x.weight_g")), "x.weight_v"),
    "factored": (Product(Stored("x.weight"), Stored("y.weight")), "x.weight"),
}


@pytest.mark.parametrize("how", WRAPPED)
def test_the_bias_of_a_wrapped_weight_is_beside_it(how: str) -> None:
    view, stored = WRAPPED[how]
    table = {stored: WEIGHT[:, :24] if how != "factored" else gaussian(40, 5), "x.bias": BIAS}
    table |= {"x.weight_mask": WEIGHT, "x.weight_g": LENGTHS, "y.weight": gaussian(5, 24)}
    quest = Quest(TableWeights(table), ANCHOR, [])
    wanted = next(begin(quest, {"a.bias"}))
    weight = Candidate("a.weight", view, 1.0)
    assert beside(quest, wanted, {"a.weight": weight}) == Stored("x.bias")
    flat = Candidate("a.weight", Shaped(view, (40 * 24,)), 1.0)
    assert beside(quest, wanted, {"a.weight": flat}) is None
    shorter = Quest(TableWeights(table | {"x.bias": BIAS[:9]}), ANCHOR, [])
    assert beside(shorter, wanted, {"a.weight": weight}) is None
