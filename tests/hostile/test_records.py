"""Claims of the wrong form in every place: named errors, one line."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from neuralmark import Claim
from neuralmark.errors import RecordError
from tests.support.checks import one_line
from tests.support.wrong import WRONG, changed, places


@pytest.fixture
def claim(marked: Path) -> Path:
    return Path(f"{marked}.claim.json")


def attempt(path: Path, content: bytes | str) -> Claim | None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    try:
        return Claim.load(path)
    except RecordError as error:
        one_line(error)
        return None


def form(value: Any) -> Any:
    """The kind of a value, as far as claims tell kinds apart."""
    return type(value).__name__


def test_wrong_types_everywhere(claim: Path, tmp_path: Path) -> None:
    whole = json.loads(claim.read_text())
    number = loaded = 0
    for at in places(whole):
        original = whole
        for name in at:
            original = original[name]
        for wrong in WRONG:
            got = attempt(tmp_path / "c.json", json.dumps(changed(whole, at, wrong)))
            number += 1
            if got is not None:
                loaded += 1
                # only another value of the right kind, or what may be null, passes
                both = (at, original, wrong)
                nullable = ("source_digest", "files", "anchor")
                assert form(wrong) == form(original) or at[-1] in nullable, both
                assert got.to_dict() != whole or wrong == original, both
    assert number > 300
    assert loaded < number / 4


def test_members_missing_or_added(claim: Path, tmp_path: Path) -> None:
    whole = json.loads(claim.read_text())
    for at in places(whole):
        parent = whole
        for name in at[:-1]:
            parent = parent[name]
        if isinstance(parent, dict) and at[-2:-1] != ("tensors",):
            less = copy.deepcopy(whole)
            part = less
            for name in at[:-1]:
                part = part[name]
            del part[at[-1]]
            got = attempt(tmp_path / "c.json", json.dumps(less))
            assert got is None or at[-1] in ("files", "algorithm", *whole["parameters"]), at
    for table in ("parameters", "marked_digest", "source_digest", "anchor"):
        more = changed(whole, (table, "surprise"), 1)
        assert attempt(tmp_path / "c.json", json.dumps(more)) is None


def test_truncated_at_every_byte(claim: Path, tmp_path: Path) -> None:
    whole = claim.read_bytes()
    for length in range(len(whole) - 1):
        assert attempt(tmp_path / "c.json", whole[:length]) is None
    assert attempt(tmp_path / "c.json", whole) == Claim.load(claim)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"format": "neuralmark-claim", "format": "neuralmark-claim"}',
        b'{"format": "neuralmark-claim", "version": NaN}',
        b'{"format": "neuralmark-claim", "version": Infinity}',
        b'{"format": "neuralmark-claim", "version": ' + b"1" * 5000 + b"}",
        b"PK\x03\x04",
    ],
)
def test_no_claim_at_all(tmp_path: Path, content: bytes) -> None:
    assert attempt(tmp_path / "c.json", content) is None


def test_huge_and_odd_files(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with path.open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(RecordError, match="larger than a claim"):
        Claim.load(path)
    for odd in (tmp_path, tmp_path / "no", path / "below"):
        with pytest.raises(RecordError, match="cannot be read"):
            Claim.load(odd)


def test_saved_claims_come_back(claim: Path, tmp_path: Path) -> None:
    loaded = Claim.load(claim)
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == claim.read_bytes()
    assert Claim.from_dict(loaded.to_dict()) == loaded
