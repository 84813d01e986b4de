"""Claims as callers give them."""

import json
from pathlib import Path
from typing import Any

import pytest

from neuralmark import Claim, Key, verify
from neuralmark.errors import ParameterError, RecordError
from neuralmark.records.parts import triggers_from
from tests.support.checks import one_line
from tests.support.models import QUICK, gaussian, gaussian_model


@pytest.mark.parametrize("odd", [{"a": object()}, {"a": {1, 2}}, {1: "a", "b": 2}])
def test_what_no_file_can_hold_is_no_claim(odd: Any) -> None:
    with pytest.raises(RecordError) as caught:
        Claim.given(odd)
    one_line(caught.value)


@pytest.mark.parametrize("odd", [3, "", " ", b"claim.json", ["claim.json"]])
def test_what_is_neither_a_claim_nor_its_path_is_refused(odd: Any) -> None:
    with pytest.raises(ParameterError, match="claim must be a Claim, the path of one") as caught:
        Claim.given(odd)
    assert type(odd).__name__ in one_line(caught.value)


def test_a_raw_key_has_no_chance_to_show(tmp_path: Path) -> None:
    """A match of a matrix that may have been fitted says nothing about luck."""
    model = gaussian_model(tmp_path / "m.safetensors")
    native = verify(model, Key.new(QUICK))
    raw = verify(model, Key.raw(gaussian(64, 32), 1, "strided"))
    assert "by luck" in str(native)
    assert "by luck" not in str(raw) + raw._repr_html_()


@pytest.mark.parametrize("odd", ["", "abc", "G" * 64, 7, ["0" * 64]])
def test_a_digest_of_triggers_is_one(odd: Any) -> None:
    with pytest.raises(ValueError, match="the digest of the triggers is none"):
        triggers_from(odd)
    assert triggers_from(None) is None


def test_a_placement_is_a_list_of_at_least_one_tensor(marked: Path) -> None:
    text = Path(f"{marked}.claim.json").read_text()
    for placement, said in (([], "placement is empty"), ({}, "placement is not a list")):
        edited = json.dumps({**json.loads(text), "placement": placement})
        with pytest.raises(RecordError, match=said) as caught:
            Claim.loads(edited, "a mail")
        one_line(caught.value)


def test_where_it_lies_is_no_part_of_a_claim(marked: Path, tmp_path: Path) -> None:
    path = Path(f"{marked}.claim.json")
    claim = Claim.load(path)
    loose = Claim.loads(path.read_text(), "a mail")
    assert (claim.file, loose.file) == (path.absolute(), None)
    assert (claim, claim.digest) == (loose, loose.digest)
    assert claim.to_json() == loose.to_json() == path.read_text()
    assert repr(claim) == repr(loose)
    for each in (claim, loose):  # the first place is kept
        each.save(tmp_path / "copy.claim.json", overwrite=True)
    assert (claim.file, loose.file) == (path.absolute(), tmp_path / "copy.claim.json")
