"""Does a verdict still hold? Point by point, for every way of looking and every kind of change."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import (
    Claim,
    EmbedOptions,
    Key,
    Recheck,
    Verdict,
    VerifyOptions,
    embed,
    recheck,
    verify,
)
from neuralmark.errors import MalformedError, ParameterError, RecordError
from neuralmark.marking import verification
from neuralmark.marking.rechecking import Way, compared, not_this_key, way_of
from neuralmark.records import Gap
from tests.support.models import QUICK, gaussian_model

WHOLE = VerifyOptions(full_digest=True)


def broken(result: Recheck) -> set[str]:
    return {point.name for point in result.broken}


def point(result: Recheck, name: str) -> Any:
    return next(point for point in result.points if point.name == name)


@pytest.fixture
def secret(key: Path) -> Key:
    return Key.load(key)


@pytest.fixture
def claim(marked: Path) -> Path:
    return Path(f"{marked}.claim.json")


@pytest.fixture
def unbound(model: Path, secret: Key, tmp_path: Path) -> Path:
    """Marked without an anchor, and no claim beside it: what is found by search."""
    path = tmp_path / "unbound.safetensors"
    embed(model, secret, path, EmbedOptions(anchor=False))
    Path(f"{path}.claim.json").unlink()
    return path


def ways(claim: Path) -> dict[str, dict[str, Any]]:
    """Ways to come to a verdict."""
    return {
        "nothing": {},
        "claim": {"claim": claim, "options": WHOLE},
        "names": {"tensors": ["layer2.weight", "layer1.weight"]},
        "one name": {"tensors": ["layer1.weight"]},
    }


def test_it_holds_for_every_way_of_looking(
    marked: Path, unbound: Path, claim: Path, secret: Key
) -> None:
    statuses, mappings = set(), set()
    for path in (marked, unbound):
        for name, options in ways(claim).items():
            verdict = verify(path, secret, **options)
            result = recheck(verdict, path, secret, claim=options.get("claim"))
            assert result.holds, (name, result.broken)
            assert result.again is not None
            assert result.again.trials == verdict.trials
            statuses.add(verdict.status)
            mappings.add(verdict.mapping)
    assert statuses == {"verified", "not-verified"}  # a verdict against the mark holds as well
    assert mappings == {"names", "search", "anchor"}


def test_a_search_is_searched_again_though_a_claim_lies_there_now(
    unbound: Path, claim: Path, secret: Key
) -> None:
    verdict = verify(unbound, secret)
    Path(f"{unbound}.claim.json").write_bytes(claim.read_bytes())
    assert recheck(verdict, unbound, secret).holds


def test_it_holds_for_odd_readings(marked: Path, claim: Path, secret: Key, tmp_path: Path) -> None:
    weights = load_file(marked)
    turned, fewer, none = (tmp_path / f"{name}.safetensors" for name in ("t", "f", "n"))
    save_file({name: np.ascontiguousarray(w.T) for name, w in weights.items()}, turned)
    save_file({name: w for name, w in weights.items() if name != "layer2.weight"}, fewer)
    save_file({"other.weight": weights["layer1.weight"]}, none)
    Path(f"{marked}.anchor").unlink()
    for model in (turned, fewer, none):
        verdict = verify(model, secret, claim=claim)
        assert verdict.orientation == "transposed" or verdict.missing
        result = recheck(verdict, model, secret, claim=claim)
        assert result.holds, result.broken
        assert point(result, "claim").holds is True
        assert recheck(replace(verdict, claim_digest=None), model, secret).holds


def test_a_renamed_copy_is_the_same_model(marked: Path, secret: Key, tmp_path: Path) -> None:
    verdict = verify(marked, secret, options=WHOLE)
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(marked.read_bytes())
    result = recheck(verdict, copy, secret)
    assert result.holds
    assert point(result, "whole files").holds is True


def test_one_changed_bit_of_an_unread_tensor(marked: Path, secret: Key, tmp_path: Path) -> None:
    """Only the digest of whole files can tell; then it does."""
    weights = load_file(marked)
    weights["layer1.bias"][0] += 1
    other = tmp_path / "other.safetensors"
    save_file(weights, other)
    options: dict[str, Any] = {"tensors": ["layer1.weight"]}
    told = verify(marked, secret, options=VerifyOptions(full_digest=False), **options)
    assert recheck(told, other, secret).holds
    result = recheck(verify(marked, secret, options=WHOLE, **options), other, secret)
    assert broken(result) == {"whole files"}


def test_changed_weights(marked: Path, claim: Path, secret: Key, tmp_path: Path) -> None:
    weights = load_file(marked)
    rng = np.random.default_rng(5)
    noisy = {n: w + rng.normal(0, 0.005, w.shape).astype(w.dtype) for n, w in weights.items()}
    other = tmp_path / "tuned.safetensors"
    save_file(noisy, other)
    verdict = verify(marked, secret, claim=claim)
    result = recheck(verdict, other, secret, claim=claim)
    assert not result.holds
    assert {"tensor digests", "median margin"} <= broken(result)
    for name in ("key", "parameters", "claim", "headers", "tensors", "trials", "boundary"):
        assert point(result, name).holds is True, name
    assert "tensor digests" in str(result)


def test_an_unmarked_model(model: Path, marked: Path, secret: Key) -> None:
    result = recheck(verify(marked, secret), model, secret)
    assert {"status", "bits matched", "bound", "tensor digests"} <= broken(result)
    assert result.again is not None
    assert result.again.status == "not-verified"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bits matched", {"matched": 159}),
        ("boundary", {"boundary": 140}),
        ("trials", {"trials": 1}),
        ("bound", {"bound_log2": -160.0}),
        ("certified radius", {"certified_radius": 9.0}),
        ("median margin", {"median_margin": 9.0}),
        ("placement", {"placement": (("layer1.weight", (128, 128)),)}),
        ("way of reading", {"scaling": "rows"}),
        ("parameters", {"parameters": replace(QUICK, rounds=2)}),
        ("kind of key", {"key_kind": "raw"}),
    ],
)
def test_an_edited_verdict(unbound: Path, secret: Key, name: str, change: dict[str, Any]) -> None:
    verdict = verify(unbound, secret)
    assert recheck(verdict, unbound, secret).holds
    assert broken(recheck(replace(verdict, **change), unbound, secret)) == {name}


def test_an_edited_anchor(marked: Path, secret: Key) -> None:
    verdict = verify(marked, secret)
    assert verdict.anchor_digest is not None
    result = recheck(replace(verdict, anchor_digest="0" * 128), marked, secret)
    assert {"bits matched", "status"} <= broken(result)
    assert point(recheck(verdict, marked, secret), "anchor").holds is True


def test_an_edited_alignment(marked: Path, claim: Path, secret: Key, tmp_path: Path) -> None:
    moved = tmp_path / "moved.safetensors"
    save_file({f"{n}x": v[::-1].copy() for n, v in load_file(marked).items()}, moved)
    verdict = verify(moved, secret, claim=claim)
    told = verdict.alignment
    assert told is not None
    assert verdict.lineage is not None

    def again(edited: Verdict) -> set[str]:
        return broken(recheck(edited, moved, secret, claim=claim))

    assert again(verdict) == set()
    assert again(replace(verdict, lineage=verdict.lineage - 0.01)) == {"lineage"}
    assert again(replace(verdict, lineage=None)) == set()
    slower = replace(told, seconds=told.seconds + 9)
    assert again(replace(verdict, alignment=slower)) == set()
    first, *rest = told.tensors
    edits: list[dict[str, Any]] = [
        {"likeness": 0.1},
        {"found": 0.5},
        {"notes": ("a note",)},
        {"tensors": (replace(first, source="evil.weight"), *rest)},
        {"tensors": (replace(first, changes=("rotated",)), *rest)},
        {"tensors": (*rest, first)},
        {"tensors": tuple(rest)},
    ]
    for edit in edits:
        assert again(replace(verdict, alignment=replace(told, **edit))) == {"alignment"}, edit
    assert again(replace(verdict, alignment=None)) == {"alignment"}
    less = VerifyOptions(effort=0.5)
    other = recheck(verdict, moved, secret, claim=claim, options=less)
    assert point(other, "alignment").holds is None


def test_a_lineage_in_place_is_checked_too(marked: Path, secret: Key) -> None:
    verdict = verify(marked, secret)
    assert point(recheck(verdict, marked, secret), "lineage").holds is None  # without the anchor
    options = VerifyOptions(anchor=f"{marked}.anchor")
    again = recheck(verdict, marked, secret, options=options)
    assert point(again, "lineage").holds is True
    again = recheck(replace(verdict, lineage=0.2), marked, secret, options=options)
    assert broken(again) == {"lineage"}


def test_another_key_is_not_tried(marked: Path, secret: Key, tmp_path: Path) -> None:
    result = recheck(verify(marked, secret), tmp_path / "need not exist", Key.new(QUICK))
    assert broken(result) == {"key"}
    assert result.again is None
    assert "is of the key nm1-" in result.reason


def test_another_claim(
    model: Path, marked: Path, unbound: Path, claim: Path, secret: Key, tmp_path: Path
) -> None:
    embed(
        model, secret, tmp_path / "one.safetensors", options=EmbedOptions(tensors=["layer1.weight"])
    )
    other = Claim.load(tmp_path / "one.safetensors.claim.json")
    result = recheck(verify(marked, secret, claim=claim), marked, secret, claim=other)
    assert {"claim", "placement", "status", "anchor"} <= broken(result)
    searched = recheck(verify(unbound, secret), unbound, secret, claim=claim)
    assert {"claim", "trials"} <= broken(searched)


def test_tensors_that_are_gone(unbound: Path, secret: Key, tmp_path: Path) -> None:
    verdict = verify(unbound, secret, tensors=["layer1.weight", "layer2.weight"])
    weights = load_file(unbound)
    other = tmp_path / "renamed.safetensors"
    save_file({f"x{name}": value for name, value in weights.items()}, other)
    result = recheck(verdict, other, secret)
    assert broken(result) == {"tensors"}
    assert "there is no tensor" in result.reason
    assert not result.holds


def test_a_live_model(marked: Path, claim: Path, secret: Key) -> None:
    """Files are not compared, what was read is."""
    verdict = verify(marked, secret, claim=claim, options=WHOLE)
    state = {name: torch.from_numpy(value) for name, value in load_file(marked).items()}
    result = recheck(verdict, state, secret)
    assert result.holds, result.broken
    assert point(result, "whole files").holds is None
    state["layer1.weight"][0, 0] += 1
    assert "tensor digests" in broken(recheck(verdict, state, secret))


def test_versions_are_told_not_held_against(marked: Path, secret: Key) -> None:
    result = recheck(replace(verify(marked, secret), version="0.0.9"), marked, secret)
    assert result.holds
    told = point(result, "library version")
    assert (told.then, told.now, told.holds) == ("0.0.9", neuralmark.__version__, None)


def test_from_a_file(marked: Path, secret: Key, tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    verify(marked, secret).save(path)
    result = recheck(path, marked, secret)
    assert result.holds
    assert Verdict.from_dict(result.to_dict()["verdict"]) == Verdict.load(path)
    with pytest.raises(TypeError, match=r"recheck\.holds"):
        bool(result)


def test_what_cannot_be_checked(marked: Path, secret: Key, tmp_path: Path) -> None:
    verdict = verify(marked, secret)
    bad = gaussian_model(tmp_path / "bad.safetensors")
    bad.write_bytes(bad.read_bytes()[:-100])
    with pytest.raises(MalformedError):
        recheck(verdict, bad, secret)
    with pytest.raises(RecordError):
        recheck(bad, marked, secret)
    for wrong in (None, 7, verdict.to_dict()):
        with pytest.raises(ParameterError, match="expected a Verdict"):
            recheck(wrong, marked, secret)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="expected a Key"):
        recheck(verdict, marked, "key")  # type: ignore[arg-type]


def test_a_recheck_shows_itself(marked: Path, secret: Key) -> None:
    verdict = verify(marked, secret)
    result = recheck(verdict, marked, secret)
    assert str(result) == f"the verdict holds: {verdict}"
    assert json.loads(result.to_json()) == result.to_dict()


def test_numbers_and_files_are_compared_where_both_are_known(marked: Path, key: Path) -> None:
    verdict = verify(marked, Key.load(key))
    assert verdict.certified_radius is not None
    files = {"m.safetensors": "00"}

    def holds(name: str, then: Verdict, now: Verdict) -> bool | None:
        found: bool | None = point(compared(then, now, None), name).holds
        return found

    radius = verdict.certified_radius
    for other, same in ((None, False), (radius * 1.1, False), (radius * (1 + 1e-9), True)):
        changed = replace(verdict, certified_radius=other)
        assert holds("certified radius", verdict, changed) == same
        assert holds("certified radius", changed, verdict) == same
        assert holds("certified radius", changed, changed)
    digest = verdict.checkpoint_digest
    bare = replace(verdict, checkpoint_digest=replace(digest, files=None))
    whole = replace(verdict, checkpoint_digest=replace(digest, files=files))
    renamed = replace(verdict, checkpoint_digest=replace(digest, files={"n": "00"}))
    assert holds("whole files", bare, whole) is None
    assert holds("whole files", whole, bare) is None
    assert holds("whole files", whole, renamed)
    again = compared(verdict, whole, None).to_dict()["again"]
    assert again == whole.to_dict()
    assert not_this_key(verdict, Key.new()).to_dict()["again"] is None


def test_tensors_that_were_turned_or_missing_are_looked_for_by_a_claim(
    marked: Path, key: Path
) -> None:
    mine = Key.load(key)
    tensors = ["layer1.weight", "layer2.weight"]
    plain = verification.verify(marked, mine, tensors=tensors, beside=False)
    assert (plain.claim_digest, plain.mapping) == (None, "names")
    names = [name for name, _ in plain.placement]
    assert way_of(plain, mine) == Way(tensors=names)
    for other in (
        replace(plain, orientation="transposed"),
        replace(plain, missing=(Gap("layer1.weight", 1, "gone"),)),
        replace(plain, claim_digest="00"),
    ):
        way = way_of(other, mine)
        assert way.tensors is None
        assert way.claim is not None
        assert way.claim.placement == plain.placement
    assert way_of(replace(plain, mapping="search"), mine) == Way()
