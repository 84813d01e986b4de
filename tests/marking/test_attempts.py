"""The ways of looking, fixed from headers alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from neuralmark import Claim, Key
from neuralmark.checkpoints import TensorInfo
from neuralmark.core.key import Placement
from neuralmark.errors import ClaimMismatchError, TooFewCarriersError, UnsuitableTensorError
from neuralmark.marking.attempts import attempts_for, claimed, gaps_of, searched
from neuralmark.marking.placement import Tensor, catalogue_of
from neuralmark.records import Digest
from tests.support.models import QUICK

PLACEMENT: Placement = (("a.weight", (80, 100)), ("b.weight", (10, 20)), ("c.weight", (8, 100)))
"""8000, 200 and 800 weights."""


def headers(*entries: tuple[str, tuple[int, ...]], dtype: str = "F32") -> list[Tensor]:
    return catalogue_of([TensorInfo(name, dtype, shape) for name, shape in entries])


def test_a_claim_is_read_as_it_is_and_by_rows() -> None:
    ways = claimed(headers(*PLACEMENT), PLACEMENT)
    assert [(way.mapping, way.transposed, way.by_rows) for way in ways] == [
        ("names", False, False),
        ("names", False, True),
    ]
    assert all(way.gaps == () for way in ways)
    flat: Placement = (("a", (500,)), ("b", (600,)))
    assert [way.by_rows for way in claimed(headers(*flat), flat)] == [False]
    mixed: Placement = (*flat, ("c", (20, 30)))
    assert [way.by_rows for way in claimed(headers(*mixed), mixed)] == [False, True]


def test_turned_matrices_are_read_turned_only_if_that_finds_more() -> None:
    turned = [(name, shape[::-1]) for name, shape in PLACEMENT]
    assert [way.transposed for way in claimed(headers(*turned), PLACEMENT)] == [True, True]
    some = claimed(headers(PLACEMENT[0], turned[1], turned[2]), PLACEMENT)
    assert [way.transposed for way in some] == [False, False]
    two: Placement = (("a", (80, 100)), ("b", (20, 100)))
    most = claimed(headers(("a", (100, 80)), two[1]), two)
    assert [way.transposed for way in most] == [False, True, False, True]
    square: Placement = (("s", (90, 90)), ("t", (90, 90)))
    assert [way.transposed for way in claimed(headers(*square), square)] == [False, False]
    beside: Placement = (("a", (80, 100)), ("k", (30, 30, 30)))
    mixed = claimed(headers(("a", (100, 80)), beside[1]), beside)
    assert [way.transposed for way in mixed] == [False, False]
    kernel: Placement = (("k", (3, 4, 5)),)
    assert claimed(headers(("k", (5, 4, 3))), kernel) == []


@pytest.mark.parametrize(("there", "tried"), [(125, True), (124, False)])
def test_less_than_an_eighth_of_the_weights_is_not_tried(there: int, tried: bool) -> None:
    placement: Placement = (("a", (there,)), ("b", (1000 - there,)))
    ways = claimed(headers(("a", (there,))), placement)
    assert bool(ways) == tried
    for way in ways:
        (gap,) = way.gaps
        assert (gap.name, gap.weights, gap.stored) == ("b", 1000 - there, False)
        assert way.tensors[1] is None
        assert list(way.parts())[1][:2] == ("b", there)


def test_gaps_say_what_is_there_instead() -> None:
    known = [
        *headers(("a.weight", (80, 101))),
        *headers(("b.qweight", (10, 20)), dtype="I32"),
    ]
    shape, packed, gone = gaps_of(known, PLACEMENT)
    assert [gap.weights for gap in (shape, packed, gone)] == [8000, 200, 800]
    assert [gap.stored for gap in (shape, packed, gone)] == [False, True, False]
    assert "(80, 101) instead of (80, 100)" in shape.why
    assert "b.qweight" in packed.why
    assert gone.why == "it is not there"
    (alone,) = gaps_of(headers(("c.weight", (8, 100))), PLACEMENT[2:])
    assert "among too few" in alone.why


def test_scales_of_a_quantised_tensor_are_not_its_weights() -> None:
    known = headers(("b.weight_scale", (10, 20)))
    (gap,) = gaps_of(known, PLACEMENT[1:2])
    assert (gap.why, gap.stored) == ("it is not there", False)


def test_names_are_read_as_they_are_and_by_rows() -> None:
    known, key = headers(("a.weight", (200, 100)), ("b.weight", (200, 100))), Key.new(QUICK)
    ways = attempts_for(known, key, None, ["b.weight"])
    assert [way.placement for way in ways] == [(("b.weight", (200, 100)),)] * 2
    assert [(way.mapping, way.by_rows) for way in ways] == [("names", False), ("names", True)]
    with pytest.raises(UnsuitableTensorError):
        attempts_for(headers(("a", (200, 100)), dtype="I8"), key, None, ["a"])


def test_a_search_looks_at_lists_single_tensors_prefixes_and_rows() -> None:
    known, key = headers(("m.a.weight", (200, 100)), ("m.b.weight", (200, 100))), Key.new(QUICK)
    ways = searched(known, key)
    told = [(way.mapping, way.by_rows, [name for name, _ in way.placement]) for way in ways]
    assert told[:3] == [
        ("search", False, ["m.a.weight", "m.b.weight"]),
        ("search", False, ["m.a.weight"]),
        ("search", False, ["m.b.weight"]),
    ]
    assert told[3] == ("prefix", False, ["a.weight", "b.weight"])
    assert {way[2][0] for way in told[4:-1]} == {
        *("model.m.a.weight", "transformer.m.a.weight"),
        *("backbone.m.a.weight", "language_model.m.a.weight"),
    }
    assert told[-1] == ("search", True, ["m.a.weight", "m.b.weight"])
    assert len({way.reading_of for way in ways}) == len(ways)


def test_a_tensor_that_just_fills_the_pools_is_looked_at() -> None:
    key = Key.new(QUICK)  # 320 pools, one round
    assert [way.placement for way in searched(headers(("w", (640,))), key)] == [(("w", (640,)),)]
    with pytest.raises(TooFewCarriersError, match="640 weights at least"):
        searched(headers(("w", (639,))), key)
    assert searched(headers(("w", (100, 100)), dtype="I8"), key) == []


def test_a_claim_has_to_be_of_the_key(tmp_path: Path) -> None:
    key, known = Key.new(QUICK), headers(*PLACEMENT)
    claim = Claim(key.fingerprint, key.commitment, QUICK, PLACEMENT, Digest("0" * 64, {}))
    assert attempts_for(known, key, claim, None) == claimed(known, PLACEMENT)
    other = Key.new(QUICK)
    for wrong in (
        replace(claim, commitment=other.commitment),
        replace(claim, fingerprint=other.fingerprint),
        replace(claim, fingerprint=other.fingerprint, commitment=other.commitment),
        replace(claim, parameters=replace(QUICK, rounds=2)),
    ):
        with pytest.raises(ClaimMismatchError):
            attempts_for(known, key, wrong, None)


def test_a_search_without_room_says_how_much_is_needed() -> None:
    key = Key.new(replace(QUICK, rounds=3))
    known = headers(("a.weight", (10, 20)), ("b.bias", (30,)))
    known += headers(("n", (1,)), dtype="I64")
    with pytest.raises(TooFewCarriersError, match=r"2,560 weights at least; 2 of 3 tensors"):
        searched(known, key)
