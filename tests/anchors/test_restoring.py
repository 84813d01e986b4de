"""A suspect in the anchor's coordinates: what cannot be used is filled, and it is said why."""

from typing import Any

import numpy as np
import pytest

from neuralmark.anchors import ordering
from neuralmark.anchors.aligning.contract import Aligned
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.effort import AlignOptions
from neuralmark.anchors.locating import LocatedWeights, locate
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.moves import Move
from neuralmark.anchors.restoring import restore
from neuralmark.records.alignment import Alignment
from tests.support.anchored import Table, anchor_of
from tests.support.models import gaussian

WEIGHTS: Table = {"a.weight": gaussian(48, 40), "b.weight": gaussian(40, 48, seed=1)}


@pytest.fixture(scope="module")
def anchor() -> Anchor:
    return anchor_of(WEIGHTS)


def restored(suspect: Table, anchor: Anchor, effort: float = 1.0) -> Alignment:
    restoration = restore(TableWeights(suspect), anchor, AlignOptions(effort=effort))
    for _, tensor in restoration.tensors():
        assert np.isfinite(tensor.fill).all()
        assert tensor.kept is None or np.isfinite(tensor.kept).all()
    return restoration.record()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_tensor_that_holds_no_numbers_is_filled(value: float, anchor: Anchor) -> None:
    broken = WEIGHTS["a.weight"].copy()
    broken[3, 4] = value
    record = restored(WEIGHTS | {"a.weight": broken}, anchor)
    first, second = record.tensors
    assert first.changes == ("filled from the anchor: it holds NaN or infinity",)
    assert (first.found, first.restored) == (0, 0)
    assert (second.found, second.changes) == (1, ())
    assert record.found == 0.5


MOVES: dict[str, tuple[Move, ...]] = {
    "too many axes": (Move.same(48), Move.same(40), Move.same(1)),
    "another length": (Move.same(47), Move.same(40)),
    "channels beyond the end": (Move(np.arange(48) + 1), Move.same(40)),
    "a matrix of another width": (Move(matrix=np.eye(48, 47, dtype=np.float32)), Move.same(40)),
}


@pytest.mark.parametrize("what", MOVES)
def test_moves_that_do_not_fit_fill_the_tensor(
    what: str, anchor: Anchor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(views: Any, _: Any, names: list[str], *rest: Any) -> dict[str, Aligned]:
        return {name: Aligned(MOVES[what], (), 1.0) for name in names}

    monkeypatch.setattr(ordering, "align", wrong)
    turned = WEIGHTS["a.weight"][np.random.default_rng(0).permutation(48)]
    record = restored(WEIGHTS | {"a.weight": turned}, anchor)
    assert record.tensors[0].changes == ("filled from the anchor: of another shape",)
    assert record.tensors[1].found == 1


def test_little_effort_looks_for_one_tensor_at_least() -> None:
    alone = {"a.weight": WEIGHTS["a.weight"]}
    record = restored(alone, anchor_of(alone), effort=0.01)
    assert (record.effort, record.found) == (0.01, 1)


def test_what_was_found_goes_by_the_names_of_the_anchor(anchor: Anchor) -> None:
    suspect = TableWeights({"x": WEIGHTS["b.weight"]})
    found = LocatedWeights(suspect, locate(suspect, anchor, ["b.weight"]))
    assert (list(found), len(found)) == (["b.weight"], 1)
    np.testing.assert_array_equal(found["b.weight"], WEIGHTS["b.weight"])
