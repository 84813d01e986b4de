"""Kept records of the wrong form in every place: named errors, or a record that can be drawn."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from neuralmark import Ruling, Verdict
from neuralmark.attacks import Card, StandardReport
from neuralmark.errors import RecordError
from neuralmark.records import MAX_RECORD, PublicVerdict, Record
from neuralmark.reports.recorded import draw, drawn
from tests.support.checks import one_line
from tests.support.paths import RELEASE
from tests.support.wrong import WRONG, changed, places

KINDS: dict[str, type[Record]] = {
    "verdict": Verdict,
    "public": PublicVerdict,
    "card": Card,
    "standard": StandardReport,
    "ruling": Ruling,
}
ODD = [*WRONG, 1e99, -1e99, 1e-300, 0, 0.5, False, "</script><b>\u202e", "a\nb"]
OPEN = ("settings", "figures", "versions", "files", "tensors", "own")
"""Tables whose names are free."""


def golden(name: str) -> dict[str, Any]:
    """A record, cut to a few sweeps of one or two points so that trying every place is quick."""
    data: dict[str, Any] = json.loads((RELEASE / f"{name}.json").read_text())
    if name == "card":
        kinds = {row["kind"]: row for row in data["rows"]}
        data["rows"] = list(kinds.values())
        for row in data["rows"]:
            row["points"] = row["points"][:2]
            row |= told(row)
    if name == "standard":
        told_of = data["robustness"]
        for each in told_of["modifications"]:
            each["points"] = each["points"][:1]
        told_of |= {"marked": 2, "missed": 0, "error_rate": 0.0}
    return data


def told(row: dict[str, Any]) -> dict[str, Any]:
    """What follows from the points of a row."""
    held = [point["held"] for point in row["points"]]
    first = held.index(False) if False in held else len(held)
    strengths = [point["strength"] for point in row["points"]]
    return {
        "flip": None if all(held) else strengths[first],
        "largest_survived": strengths[first - 1] if first else None,
        "survived_all": all(held),
    }


def attempt(kind: type[Record], data: Any) -> Record | None:
    """The record, if it is one; then it can be drawn too, or says why not."""
    try:
        record = kind.from_dict(data)
    except RecordError as error:
        one_line(error)
        return None
    try:
        drawn(data).page.encode()
    except RecordError as error:
        one_line(error)
    return record


@pytest.mark.parametrize("name", KINDS)
def test_wrong_types_everywhere(name: str) -> None:
    whole, kind = golden(name), KINDS[name]
    assert kind.from_dict(whole).to_dict() == whole
    number = loaded = 0
    for at in places(whole):
        for wrong in ODD:
            data = changed(whole, at, wrong)
            record = attempt(kind, data)
            number += 1
            if record is not None:
                loaded += 1
                assert record.to_dict() == data, (at, wrong)  # nothing is bent into shape
    assert number > 300
    assert loaded < number / 3


@pytest.mark.parametrize("name", KINDS)
def test_members_missing_or_added(name: str) -> None:
    whole, kind = golden(name), KINDS[name]
    for at in places(whole):
        parent = whole
        for part in at[:-1]:
            parent = parent[part]
        if isinstance(parent, dict) and not (at[:-1] and at[-2] in OPEN):
            less = copy.deepcopy(whole)
            place: Any = less
            for part in at[:-1]:
                place = place[part]
            del place[at[-1]]
            assert attempt(kind, less) is None, at
            assert attempt(kind, changed(whole, (*at[:-1], "surprise"), 1)) is None, at


@pytest.mark.parametrize(
    ("name", "at", "value", "words"),
    [
        ("verdict", ("rate",), 0.5, "rate contradicts the rest"),
        ("verdict", ("verified",), 1, "verified contradicts"),
        ("verdict", ("matched",), 3, "its status contradicts its counts"),
        ("verdict", ("matched",), 257, "its counts contradict"),
        ("verdict", ("key_kind",), "raw", "bound_holds contradicts"),
        ("verdict", ("bound_log2",), 1.5, "a chance is above 1"),
        ("verdict", ("parameters", "scheme"), "nosuch", "no scheme 'nosuch'"),
        ("verdict", ("parameters", "bits"), 160, "not those of its parameters"),
        ("verdict", ("margin_histogram", "edges"), [1.0, 0.0], "margin_histogram"),
        ("verdict", ("format",), "neuralmark-verdict/2", "unknown version; update"),
        ("verdict", ("owner",), "two\nlines", "owner must be a line"),
        ("card", ("rows", 0, "survived_all"), None, "contradicts"),
        ("card", ("rows", 0, "points"), [], "has no points"),
        ("card", ("format",), "neuralmark-ruling/1", "not a NeuralMark card"),
        ("standard", ("robustness", "missed"), 1, "missed contradicts"),
        ("standard", ("payload",), 255, "payload contradicts"),
        ("standard", ("imperceptibility", "accuracy_marked"), 1.5, "is no share"),
        ("standard", ("robustness", "modifications", 0, "points", 0, "matched"), 257, "counts"),
        ("standard", ("robustness", "modifications", 2, "why"), "", "neither points nor"),
        ("standard", ("cost", "verify", "runs"), 0, "has no time"),
        ("standard", ("cost", "verify_ratio"), 1.0, "verify_ratio contradicts"),
        ("standard", ("format",), "neuralmark-standard/2", "unknown version; update"),
        ("ruling", ("owner",), "Thief", "whose case is complete"),
        ("ruling", ("owner",), None, "decided contradicts"),
        ("ruling", ("sightings",), [], "every key in every model"),
        ("ruling", ("set_aside",), ["Nobody"], "it does not have"),
        ("ruling", ("parties", 0, "stated_time"), "soon", "is not a time"),
        ("ruling", ("parties", 1, "name"), "Golden", "two of one name"),
    ],
)
def test_contradictions(name: str, at: tuple[Any, ...], value: Any, words: str) -> None:
    with pytest.raises(RecordError, match=words) as caught:
        KINDS[name].from_dict(changed(golden(name), at, value))
    one_line(caught.value)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"[]",
        b"null",
        b'{"format": "neuralmark-verdict/1"}',
        b'{"format": "neuralmark-card/1"}',
        b'{"format": "neuralmark-ruling/1"}',
        b'{"format": ["neuralmark-ruling/1"]}',
        b'{"format": "neuralmark-claim", "version": 1}',
        b'{"error": "RecordError", "message": "", "exit_code": 3}',
        b'{"format": "neuralmark-card/1", "seed": NaN}',
        b'{"format": "neuralmark-card/1", "format": "neuralmark-card/1"}',
        b"PK\x03\x04",
    ],
)
def test_no_record_at_all(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    for read in (KINDS[name].load, draw):
        with pytest.raises(RecordError) as caught:
            read(path)
        assert str(path) in one_line(caught.value)


def test_numbers_without_end(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    text = (RELEASE / "verdict.json").read_text()
    assert '"trials": 2,' in text
    for huge in ("1e999", "-1e999", "1" * 5000, "1e101"):
        path.write_text(text.replace('"trials": 2,', f'"trials": {huge},'))
        with pytest.raises(RecordError):
            Verdict.load(path)
    card = golden("card")
    deep: Any = 1
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(RecordError, match="nested too deeply"):
        Card.from_dict(card | {"skipped": deep})


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_huge_and_odd_files(tmp_path: Path, kind: type[Record]) -> None:
    path = tmp_path / "r.json"
    with path.open("wb") as file:
        file.truncate(MAX_RECORD + 1)
    with pytest.raises(RecordError, match=f"larger than a {kind.noun} may be"):
        kind.load(path)
    for odd in (tmp_path, tmp_path / "no", path / "below"):
        with pytest.raises(RecordError, match="cannot be read"):
            kind.load(odd)


def test_truncated_anywhere(tmp_path: Path) -> None:
    whole = (RELEASE / "verdict.json").read_bytes()
    for length in range(0, len(whole) - 2, 7):
        (tmp_path / "v.json").write_bytes(whole[:length])
        with pytest.raises(RecordError):
            Verdict.load(tmp_path / "v.json")
