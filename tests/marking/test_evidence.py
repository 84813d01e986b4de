"""What is said of anchors that are missing, wanting, or of no use."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import Claim, Key, VerifyOptions
from neuralmark.anchors.sealed import load_anchor
from neuralmark.errors import AnchorError, AnchorMismatchError
from neuralmark.marking import verification
from neuralmark.reports.verdict import verdict_page
from tests.support.commands import call
from tests.support.models import gaussian_model

LOST = "neither given nor found beside the claim"


def claim_of(path: Path) -> Path:
    return Path(f"{path}.claim.json")


def without_anchor(path: Path, key: Key) -> None:
    options = neuralmark.EmbedOptions(anchor=False)
    neuralmark.embed(path.with_name("model.safetensors"), key, path, options, overwrite=True)


def test_an_anchor_that_was_left_behind(marked: Path, key: Path) -> None:
    path, mine = marked, Key.load(key)
    kept = Path(f"{path}.anchor").rename(path.with_name("elsewhere.anchor"))
    renamed = {f"net.{i}": value for i, value in enumerate(load_file(path).values())}
    save_file(renamed, path)
    verdict = neuralmark.verify(path, mine, claim=claim_of(path))
    assert verdict.status == "unreadable"
    assert LOST in verdict.reason
    assert "VerifyOptions(anchor=...)" in verdict.reason
    assert neuralmark.verify(path, mine, options=VerifyOptions(anchor=kept)).verified
    given = VerifyOptions(anchor=kept)
    assert neuralmark.verify(path, mine, claim=claim_of(path), options=given).verified


def test_it_is_missed_too_where_names_are_as_they_were(marked: Path, key: Path) -> None:
    path, mine = marked, Key.load(key)
    Path(f"{path}.anchor").unlink()
    turned = {name: value[::-1].copy() for name, value in load_file(path).items()}
    save_file(turned, path)
    verdict = neuralmark.verify(path, mine)
    assert verdict.status == "not-verified"
    assert LOST in verdict.reason


def test_no_word_of_it_where_it_was_not_needed(marked: Path, key: Path) -> None:
    path, mine = marked, Key.load(key)
    Path(f"{path}.anchor").unlink()
    verdict = neuralmark.verify(path, mine)
    assert verdict.verified
    assert "anchor" not in verdict.reason


def test_a_damaged_anchor_beside_the_claim_does_not_hide_a_mark_in_its_place(
    marked: Path, key: Path
) -> None:
    path, mine = marked, Key.load(key)
    anchor = Path(f"{path}.anchor")
    data = bytearray(anchor.read_bytes())
    data[-40] ^= 1
    anchor.write_bytes(data)
    for given in (None, claim_of(path)):
        verdict = neuralmark.verify(path, mine, claim=given)
        assert verdict.verified
        assert "the anchor was not used (" in verdict.reason
    with pytest.raises(AnchorError):  # named, it must be good
        neuralmark.verify(path, mine, options=VerifyOptions(anchor=anchor))
    save_file({name: value[::-1].copy() for name, value in load_file(path).items()}, path)
    with pytest.raises(AnchorError):  # and where it is needed
        neuralmark.verify(path, mine)


def of_another_model(marked: Path, key: Key) -> Path:
    """The anchor of another mark of the same key."""
    other = gaussian_model(marked.with_name("another.safetensors"), seed=71)
    out = marked.with_name("another-marked.safetensors")
    neuralmark.embed(other, key, out)
    return Path(f"{out}.anchor")


def test_the_claim_beside_gainsays_the_anchor_of_another(marked: Path, key: Path) -> None:
    mine = Key.load(key)
    other = of_another_model(marked, mine)
    for given in (other, load_anchor(other, mine)):
        with pytest.raises(AnchorMismatchError, match="not the anchor of the claim beside the mo"):
            neuralmark.verify(marked, mine, options=VerifyOptions(anchor=given))
    told = call("verify", marked, "--key", key, "--anchor", other).failed(2, "AnchorMismatchError")
    assert str(claim_of(marked)) in told
    assert "name the claim of this one (--claim)" in told
    named = Path(f"{other.with_suffix('')}.claim.json")  # on purpose: it is looked for, not found
    found = neuralmark.verify(marked, mine, claim=named, options=VerifyOptions(anchor=other))
    assert not found.verified


def test_the_anchor_of_another_beside_a_claim_does_not_serve(marked: Path, key: Path) -> None:
    mine = Key.load(key)
    of_another_model(marked, mine).rename(f"{marked}.anchor")
    copy = rearranged(marked)
    verdict = neuralmark.verify(copy, mine, claim=claim_of(marked))
    assert f"{LOST} (that of another claim does not serve)" in verdict.reason


def test_a_mark_without_an_anchor(marked: Path, key: Path) -> None:
    path, mine = marked, Key.load(key)
    without_anchor(path, mine)
    save_file({f"net.{i}": v for i, v in enumerate(load_file(path).values())}, path)
    verdict = neuralmark.verify(path, mine)
    assert "renamed tensors are found only with an anchor" in verdict.reason
    assert "this mark has none" in verdict.reason
    assert LOST not in verdict.reason


@pytest.mark.parametrize("original", [False, True])
def test_a_claim_that_names_no_anchor(marked: Path, key: Path, original: bool) -> None:
    path, mine = marked, Key.load(key)
    anchor = Path(f"{path}.anchor").rename(path.with_name("old.anchor"))
    given = path.with_name("model.safetensors") if original else anchor
    without_anchor(path, mine)
    assert Claim.load(claim_of(path)).anchor is None
    with pytest.raises(AnchorMismatchError, match="the claim names no anchor"):
        neuralmark.verify(path, mine, claim=claim_of(path), options=VerifyOptions(anchor=given))


@pytest.mark.parametrize("content", [b"", b"not an anchor at all", None])
def test_neither_an_anchor_nor_a_model(marked: Path, key: Path, content: bytes | None) -> None:
    path, mine = marked, Key.load(key)
    anchor = Path(f"{path}.anchor")
    whole = anchor.read_bytes()
    anchor.write_bytes(bytes([whole[0] ^ 1]) + whole[1:] if content is None else content)
    with pytest.raises(AnchorError, match="neither an anchor nor a model"):
        neuralmark.verify(path, mine, claim=claim_of(path), options=VerifyOptions(anchor=anchor))


def test_quantised_integers_are_told(marked: Path, key: Path) -> None:
    path, mine = marked, Key.load(key)
    packed: dict[str, np.ndarray] = {}
    for name, value in load_file(path).items():
        scale = np.abs(value).max() / 127
        packed[name] = np.round(value / scale).astype(np.int8)
        packed[f"{name}_scale"] = np.ones(1, np.int32)  # of a type that no scale has
    save_file(packed, path)
    verdict = neuralmark.verify(path, mine, claim=claim_of(path))
    assert verdict.status == "unreadable"
    assert "holds quantised integers (I8) scaled by 'layer1.weight_scale'" in verdict.reason
    assert "dequantise it first" in verdict.reason


def rearranged(path: Path) -> Path:
    """A copy elsewhere, whose tensors have other names."""
    away = path.parent / "away" / "copy.safetensors"
    away.parent.mkdir()
    save_file({f"net.{i}": value for i, value in enumerate(load_file(path).values())}, away)
    return away


def test_a_file_is_digested_meanwhile_or_afterwards(
    marked: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, copy = Key.load(key), rearranged(marked)
    meanwhile = neuralmark.verify(copy, mine, claim=claim_of(marked))
    monkeypatch.setattr(verification, "MEANWHILE_UP_TO", 0)
    afterwards = neuralmark.verify(copy, mine, claim=claim_of(marked))
    whole = hashlib.sha256(copy.read_bytes()).hexdigest()
    assert meanwhile.checkpoint_digest == afterwards.checkpoint_digest
    assert meanwhile.checkpoint_digest.files == {copy.name: whole}


def test_a_claim_that_was_just_written_knows_its_anchor(
    model: Path, key: Path, tmp_path: Path
) -> None:
    mine, out = Key.load(key), tmp_path / "fresh.safetensors"
    result = neuralmark.embed(model, mine, out)
    copy = rearranged(out)
    assert neuralmark.verify(copy, mine, claim=result.claim).verified
    assert neuralmark.verify(load_file(copy), mine, claim=result.claim).verified
    changed = neuralmark.embed(model, mine, in_place=True)
    assert neuralmark.verify(copy, mine, claim=changed.claim).verified


def test_a_claim_that_was_loaded_knows_its_anchor(
    marked: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, copy = Key.load(key), rearranged(marked)
    monkeypatch.chdir(marked.parent)
    claim = Claim.load(claim_of(Path(marked.name)))
    monkeypatch.chdir("/")
    assert neuralmark.verify(load_file(copy), mine, claim=claim).verified
    assert neuralmark.verify(copy, mine, claim=claim).verified
    options = VerifyOptions(sandbox=neuralmark.SandboxLimits())
    assert neuralmark.verify(copy, mine, claim=claim, options=options).verified


def test_a_claim_without_a_file_has_no_anchor(marked: Path, key: Path) -> None:
    mine, copy = Key.load(key), rearranged(marked)
    claim = Claim.loads(claim_of(marked).read_text(), "a mail")
    assert LOST in neuralmark.verify(copy, mine, claim=claim).reason


def test_a_foreign_anchor_beside_a_claim_is_passed_over(marked: Path, key: Path) -> None:
    mine, copy = Key.load(key), rearranged(marked)
    claim = Claim.load(claim_of(marked))
    neuralmark.embed(marked.with_name("model.safetensors"), Key.new(), marked, overwrite=True)
    assert LOST in neuralmark.verify(copy, mine, claim=claim).reason


def test_the_original_stands_for_the_anchor_of_the_claim_beside(marked: Path, key: Path) -> None:
    path, mine = marked, Key.load(key)
    Path(f"{path}.anchor").unlink()
    turned = {name: value[::-1].copy() for name, value in load_file(path).items()}
    save_file(turned, path)
    options = VerifyOptions(anchor=path.with_name("model.safetensors"))
    verdict = neuralmark.verify(path, mine, options=options)
    assert verdict.verified
    assert "it followed the claim beside the model" in verdict.reason
    claim_of(path).unlink()
    with pytest.raises(AnchorMismatchError, match="give claim="):
        neuralmark.verify(path, mine, options=options)


def test_a_mark_without_an_anchor_says_so(marked: Path, key: Path) -> None:
    path, mine = marked, Key.load(key)
    without_anchor(path, mine)
    verdict = neuralmark.verify(path, mine)
    assert (verdict.verified, verdict.unanchored, verdict.trials) == (True, True, 2)
    assert "2 ways of looking (as stored, and with every row divided by its size)" in verdict.reason
    assert "this mark is read by position only" in verdict_page(verdict)
    told = call("verify", path, "--key", key)
    assert re.search(r"anchor: +none: this mark is read by position only", told.out)
    turned = {name: value[::-1].copy() for name, value in load_file(path).items()}
    save_file(turned, path)
    assert neuralmark.verify(path, mine).unanchored
    claim_of(path).unlink()
    assert not neuralmark.verify(path, mine).unanchored  # it may have one: nobody knows


def test_a_mark_with_an_anchor_does_not(marked: Path, key: Path) -> None:
    verdict = neuralmark.verify(marked, Key.load(key))
    assert not verdict.unanchored
    assert "read by position only" not in verdict_page(verdict)


def test_marked_weights_that_are_no_numbers_cannot_be_read(marked: Path, key: Path) -> None:
    tensors = {name: np.full_like(value, np.nan) for name, value in load_file(marked).items()}
    save_file(tensors, marked)
    found = call("verify", marked, "--key", key, "--json")
    assert (found.code, found.json["status"]) == (3, "unreadable")
    assert "2 with NaN or infinity" in found.json["reason"]
    live = neuralmark.verify(tensors, Key.load(key), claim=claim_of(marked))
    assert live.status == "unreadable"


def test_a_stray_nan_does_not_make_a_stranger_unreadable(tmp_path: Path, key: Path) -> None:
    mine, rng = Key.load(key), np.random.default_rng(3)
    names = [f"layer{i}.weight" for i in range(30)]
    model, out = tmp_path / "many.safetensors", tmp_path / "out.safetensors"
    save_file({n: rng.standard_normal((128, 128), np.float32) for n in names}, model)
    neuralmark.embed(model, mine, out)
    stranger = {n: rng.standard_normal((128, 128), np.float32) for n in names}
    stranger[names[0]][:] = np.nan
    save_file(stranger, model)
    verdict = neuralmark.verify(model, mine, claim=claim_of(out))
    assert verdict.status == "not-verified"
    assert verdict.coverage.unreadable == 0


def test_tensors_and_what_was_done_to_them_are_told_apart(marked: Path, key: Path) -> None:
    turned = {f"x.{n}": np.ascontiguousarray(v.T) for n, v in load_file(marked).items()}
    save_file(turned, marked)
    told = call("verify", marked, "--key", key)
    assert "x.layer1.weight, transposed; x.layer2.weight, transposed" in told.out


def test_what_was_found_elsewhere_is_told_of_strangers(
    marked: Path, key: Path, tmp_path: Path
) -> None:
    """Whichever of both readings gave more bits, the share that was found is in the reason."""
    table = load_file(marked)
    rng = np.random.default_rng(3)
    for number in range(3):
        other = tmp_path / f"other{number}.safetensors"
        save_file(
            {n: rng.standard_normal(v.shape).astype(v.dtype) for n, v in table.items()}, other
        )
        verdict = neuralmark.verify(other, Key.load(key), claim=claim_of(marked))
        assert not verdict.verified
        assert "of the marked weights" in verdict.reason
        assert verdict.alignment is not None
        assert all(not fate.source for fate in verdict.alignment.tensors if not fate.found)
