"""What a verdict gives as its reason: zeros that stand for tensors, hints, and raw keys."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from neuralmark import Key, Parameters
from neuralmark.anchors import restoring
from neuralmark.checkpoints import TensorInfo
from neuralmark.core import bound
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Mark
from neuralmark.marking import verification
from neuralmark.marking.judging import (
    CHOSEN_REASON,
    RAW_REASON,
    Finding,
    Looked,
    _by_name,
    _filled,
    _histogram,
    _status,
    nothing_read,
)
from neuralmark.marking.placement import Tensor, catalogue_of
from neuralmark.marking.reading import Attempt, Reading
from neuralmark.records import Coverage, Digest, Gap
from neuralmark.records.alignment import Alignment, TensorFate

GAP = Gap("b", 6, "it is not there")


def attempt(mapping: str, *gaps: Gap) -> Attempt:
    placement = (("a", (3, 6)), ("b", (2, 3)))
    return Attempt(placement, (None, None), cast("Any", mapping), gaps=gaps)


def finding(attempt: Attempt, key: Key, margins: Any) -> Finding:
    parameters = key.parameters
    matrix = np.ones((parameters.pools, parameters.bits), np.float32)
    mark = Mark(parameters, matrix, np.ones(parameters.bits, np.uint8))
    carriers = Carriers.everything(2 * parameters.pools, parameters.pools)
    reading = Reading(carriers, np.zeros(parameters.pools), 1.0, 1.0, {})
    return Finding(attempt, mark, reading, margins)


def test_zeros_that_stand_for_tensors_are_told() -> None:
    assert _filled(attempt("names")) == ""
    told = _filled(attempt("names", GAP))
    assert told.startswith("; 1 of the 2 tensors of the claim (25 % of its weights)")


@pytest.mark.parametrize("mapping", ["names", "anchor", "search"])
@pytest.mark.parametrize("gaps", [(), (GAP,)])
def test_only_a_search_is_told_that_a_claim_would_help(mapping: str, gaps: tuple[Gap, ...]) -> None:
    key, way = Key.new(Parameters(160, 320)), attempt(mapping, *gaps)
    by_name = mapping != "search" or bool(gaps)
    assert _by_name(way) == by_name
    looked = Looked(1, Coverage(24, 24, 24))
    status, reason = _status(key, finding(way, key, -np.ones(160)), 150, looked)
    assert status == "not-verified"
    assert ("only a claim" in reason) != by_name


def test_keys_that_prove_nothing_say_why() -> None:
    own = Key.raw(np.ones((320, 160), np.float32), 1, "strided")
    looked = Looked(1, Coverage(24, 24, 24))
    for gaps in ((), (GAP,)):
        way = attempt("names", *gaps)
        status, reason = _status(own, finding(way, own, np.ones(160)), 150, looked)
        assert (status, reason) == ("matches-unproven", RAW_REASON + _filled(way))
    other = replace(own.parameters, scheme="vanillamark")
    chosen = cast("Any", SimpleNamespace(parameters=other, kind="raw"))
    _, reason = _status(chosen, finding(attempt("names"), chosen, np.ones(160)), 150, looked)
    assert reason.startswith(f"{CHOSEN_REASON} (vanillamark: ")


def test_bars_of_margins_begin_at_zero_where_all_are_on_one_side() -> None:
    zero = _histogram(np.zeros(5))
    assert (zero.edges, zero.matched, zero.missed) == ((0.0, 0.05), (0,), (5,))
    right = _histogram(np.array([0.5, 1.0, 2.0]))
    assert (right.edges[0], right.edges[-1], len(right.matched)) == (0.0, 2.0, 20)
    assert (sum(right.matched), sum(right.missed)) == (3, 0)
    left = _histogram(np.array([-0.5, -2.0, 0.0]))
    assert (left.edges[0], left.edges[-1], len(left.missed)) == (-2.0, 0.0, 20)
    assert (sum(left.matched), sum(left.missed)) == (0, 3)


def test_bars_of_margins_are_as_wide_on_both_sides() -> None:
    for margins, bars in (([-0.55, 0.3, 2.0], range(-6, 21)), ([-2.0, 0.3, 0.55], range(-20, 7))):
        edges = _histogram(np.array(margins)).edges
        assert edges == pytest.approx([0.1 * bar for bar in bars])


@pytest.mark.parametrize(
    ("placed", "aligned", "reading", "looked"),
    [(150, 0, "names", False), (149, 148, "names", True), (149, 149, "anchor", True)],
)
def test_weights_are_put_in_order_where_their_place_is_not_enough(
    placed: int, aligned: int, reading: str, looked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where 150 bits are needed: at 150 nothing more is read; as many bits count in order."""
    key, asked = Key.new(Parameters(160, 320)), []

    def found(mapping: str, matched: int) -> Finding:
        return finding(attempt(mapping), key, np.where(np.arange(160) < matched, 1.0, -1.0))

    def restored(*_: Any) -> Any:
        asked.append(1)
        record = Alignment("00" * 64, 1, (TensorFate("a", "a", 1.0, 1.0, 1.0),), found=1.0)
        return SimpleNamespace(record=lambda: record, kinships=lambda: ())

    def judged(finding: Finding, *_: Any, **__: Any) -> Any:
        return replace(verdict, mapping=finding.attempt.mapping)

    verdict = nothing_read(cast("Any", Nothing()), key, (), (), full_digest=False)
    monkeypatch.setattr(bound, "boundary", lambda *_: 150)
    monkeypatch.setattr(verification, "by_position", lambda *_: (found("names", placed), ""))
    monkeypatch.setattr(restoring, "restore", restored)
    monkeypatch.setattr(verification, "_restored", lambda *_: found("anchor", aligned))
    monkeypatch.setattr(verification, "judge", judged)
    monkeypatch.setattr(verification, "judge_aligned", judged)
    anchor = cast("Any", SimpleNamespace(placement=(("a", (3, 6)),), entries=()))
    made = verification.examine_anchored(cast("Any", Nothing()), key, anchor)
    assert made.mapping == reading
    assert bool(asked) == looked
    assert made.readings[0].matched == placed


class Nothing:
    """A suspect without tensors."""

    label = "nothing"
    known: list[Tensor]

    def __init__(self) -> None:
        self.known = []

    def tensors(self) -> list[Tensor]:
        return self.known

    def weights(self) -> Any:
        return None

    def digest(self, tensors: dict[str, str], *, full: bool = False) -> Digest:
        return Digest("", tensors)


def test_where_nothing_is_read_the_claim_or_the_model_is_what_was_wanted() -> None:
    known = catalogue_of([TensorInfo("a.weight", "F32", (4, 5))])
    suspect = Nothing()
    suspect.known = known
    key = Key.new(Parameters(160, 320))
    claimed = nothing_read(cast("Any", suspect), key, (("b", (2, 3)),), (GAP,), full_digest=False)
    assert (claimed.coverage.wanted, claimed.mapping) == (6, "names")
    searched = nothing_read(cast("Any", suspect), key, (), (), full_digest=False)
    assert (searched.coverage.wanted, searched.mapping) == (20, "search")
