"""Registers and traces outlive the run, and are read back strictly."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuralmark import CopyRegister, Parameters, Trace
from neuralmark.core.bound import bound_log2, boundary
from neuralmark.errors import RecordError
from neuralmark.records import (
    Alignment,
    ClaimedAnchor,
    Digest,
    IssuedCopy,
    MarkRead,
    Record,
    TensorFate,
)
from neuralmark.reports.recorded import draw, drawn
from neuralmark.reports.trace import trace_page
from tests.support.checks import one_line
from tests.support.wrong import WRONG, changed, places

COPY = IssuedCopy("Äcme", "nm1-aa", "acme-aa.npz", {"acme-aa.npz": "0" * 64}, 7, 1.5, 0.02)
REGISTER = CopyRegister(
    "nm1-00",
    "11",
    Parameters(),
    (("w", (64, 64)),),
    ClaimedAnchor("ab" * 64, 8),
    Digest("22", {"w": "33"}),
    "owner.npz",
    (COPY, replace(COPY, buyer="Bolt", path="bolt-bb.npz", files={"b": "1" * 64})),
)
ALIGNMENT = Alignment("ab" * 64, 1, (TensorFate("w", "v", 0.1, 0.9, 1.0, ("permuted",)),))
TRACE = Trace(
    "suspect.npz",
    Parameters(),
    MarkRead("", "nm1-00", 256, 256),
    (
        MarkRead("Äcme", "nm1-aa", 131, 240),
        MarkRead("Bolt", "nm1-bb", 256, None),
        MarkRead("Coda", "nm1-cc", None, 120),
    ),
    2,
    "256 of 256 bits match",
    "Bolt",
    {"suspect.npz": "0" * 64},
    "ab" * 64,
    ALIGNMENT,
)
RECORDS = pytest.mark.parametrize("record", [REGISTER, TRACE], ids=["register", "trace"])


@RECORDS
def test_it_comes_back(record: Record, tmp_path: Path) -> None:
    assert type(record).from_dict(record.to_dict()) == record
    record.save(tmp_path / "record.json")
    assert type(record).load(tmp_path / "record.json") == record


@RECORDS
def test_wrong_types_everywhere(record: Record) -> None:
    whole = record.to_dict()
    refused = 0
    for at in places(whole):
        for wrong in (*WRONG, 0.5, -1, "..", "a/b", "</script>\u202e", "a\nb"):
            try:
                type(record).from_dict(changed(copy.deepcopy(whole), at, wrong))
            except RecordError as error:
                one_line(error)
                refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("at", "wrong", "said"),
    [
        (("copies", 0, "path"), "../acme", "beside the register"),
        (("copies", 0, "path"), "a\\b", "beside the register"),
        (("base",), "/etc/passwd", "beside the register"),
        (("base",), "..", "beside the register"),
        (("copies", 1, "buyer"), "ÄCME", "two copies of one buyer"),
        (("copies", 1, "buyer"), "a\u202eb", "invisible"),
        (("copies", 0, "files"), {"a": "0"}, "digest of a file"),
        (("anchor",), None, "anchor is missing"),
        (("format",), "neuralmark-copies/2", "unknown version"),
        (("extra",), 1, "not known"),
    ],
)
def test_registers_that_are_none(at: tuple[Any, ...], wrong: Any, said: str) -> None:
    data = copy.deepcopy(REGISTER.to_dict())
    place: Any = data
    for step in at[:-1]:
        place = place[step]
    place[at[-1]] = wrong
    with pytest.raises(RecordError, match=said):
        CopyRegister.from_dict(data)


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("named", ["Äcme"], "contradicts"),
        ("boundary", 3, "contradicts"),
        ("trials", 2, "contradicts"),
        ("bound_log2", -500.0, "contradicts"),
        ("buyers", [], "no buyers"),
        ("ways", 3, "one way or in two"),
    ],
)
def test_traces_that_are_none(name: str, wrong: Any, said: str) -> None:
    with pytest.raises(RecordError, match=said):
        Trace.from_dict(copy.deepcopy(TRACE.to_dict()) | {name: wrong})


def test_more_bits_than_there_are() -> None:
    data = copy.deepcopy(TRACE.to_dict())
    data["owner"]["aligned"] = 257
    with pytest.raises(RecordError, match="more bits"):
        Trace.from_dict(data)


def test_what_follows_from_a_trace() -> None:
    assert TRACE.trials == 6
    assert TRACE.boundary == boundary(256, 6)
    assert TRACE.named == ("Bolt", "Äcme")
    assert TRACE.bound_log2 == bound_log2(256, 256, 6)
    assert TRACE.bound_of(TRACE.buyers[0]) == bound_log2(256, 240, 6)
    assert TRACE.owned
    assert "“Bolt”, “Äcme”: 256 of 256" in str(TRACE)
    nobody = replace(TRACE, buyers=TRACE.buyers[2:])
    assert nobody.named == ()
    with pytest.raises(TypeError, match="more than a bool"):
        bool(TRACE)


def test_who_has_the_very_file() -> None:
    assert REGISTER.owner_of({"renamed.npz": "0" * 64}) == "Äcme"
    assert REGISTER.owner_of({"renamed.npz": "2" * 64}) is None
    assert REGISTER.owner_of({}) is None


def test_a_kept_trace_is_drawn(tmp_path: Path) -> None:
    TRACE.save(tmp_path / "trace.json")
    assert draw(tmp_path / "trace.json").page == trace_page(TRACE)
    with pytest.raises(RecordError, match="none of NeuralMark's records"):
        drawn(REGISTER.to_dict())
