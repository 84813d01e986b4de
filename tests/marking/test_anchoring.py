"""Marks that are bound to an anchor: written together, found together, and not without."""

import json
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import EmbedOptions, Key, VerifyOptions, attacks, embed, rebuild_claim, verify
from neuralmark.anchors import header
from neuralmark.anchors.building import anchor_from_original
from neuralmark.anchors.sealed import load_anchor
from neuralmark.attacks.noise import Noise
from neuralmark.errors import (
    AnchorError,
    AnchorMismatchError,
    CheckFailedError,
    OutputError,
    ParameterError,
)
from neuralmark.marking.anchoring import HEADS_UNKNOWN
from neuralmark.records import ClaimedAnchor
from tests.support import architectures
from tests.support.checks import content_of
from tests.support.models import (
    QUICK,
    gaussian,
    gaussian_model,
    plain_key,
    saved,
    sharded_model,
)


@pytest.fixture
def secret(key: Path) -> Key:
    return Key.load(key)


def test_an_anchor_lies_beside_the_copy_and_the_claim_names_it(
    model: Path, secret: Key, tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    done = embed(model, secret, out)
    assert done.anchor_file == f"{out}.anchor"
    assert stat.S_IMODE(Path(done.anchor_file).stat().st_mode) == 0o600
    assert done.claim is not None
    assert done.verdict is not None
    anchor = load_anchor(done.anchor_file, secret)
    assert done.claim.anchor == ClaimedAnchor(anchor.digest.hex(), 4, 0)
    assert done.claim.anchor_digest == anchor.digest
    assert done.verdict.anchor_digest == anchor.digest.hex()
    assert anchor.placement == done.claim.placement
    for name, weights in load_file(model).items():
        near = anchor[name]  # of the model as it was
        assert np.linalg.norm(near - weights) < 0.2 * np.linalg.norm(weights)
    assert anchor_from_original(model, done.claim).digest == anchor.digest
    with pytest.raises(AnchorMismatchError):
        anchor_from_original(out, done.claim)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_model_of_too_many_tensors_is_left_as_it_was(
    in_place: bool, model: Path, secret: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header, "MAX_HEADER", 300)
    before = content_of(tmp_path)
    with pytest.raises(AnchorError, match=r"too many tensors for an anchor \(3\).*anchor=False"):
        embed(model, secret, None if in_place else tmp_path / "out", in_place=in_place)
    assert content_of(tmp_path) == before


def test_the_mark_is_bound_to_it(model: Path, secret: Key, tmp_path: Path) -> None:
    done = embed(model, secret, tmp_path / "out.safetensors")
    assert done.claim is not None
    assert verify(tmp_path / "out.safetensors", secret, claim=done.claim).matched == 160
    other = ClaimedAnchor("0" * 128, 4)
    for wrong in (None, other):
        claim = replace(done.claim, anchor=wrong)
        assert not verify(tmp_path / "out.safetensors", secret, claim=claim).verified


def test_without_an_anchor(model: Path, secret: Key, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    done = embed(model, secret, out, EmbedOptions(anchor=False))
    assert done.claim is not None
    assert (done.anchor_file, done.claim.anchor) == (None, None)
    assert not Path(f"{out}.anchor").exists()
    Path(f"{out}.claim.json").unlink()
    assert verify(out, secret).mapping == "search"
    assert verify(out, secret).verified


def test_finer_anchors(model: Path, secret: Key, tmp_path: Path) -> None:
    sizes = {}
    for bits in (4, 8):
        out = tmp_path / f"{bits}.safetensors"
        done = embed(model, secret, out, EmbedOptions(anchor_bits=bits))
        assert done.claim is not None
        assert done.claim.anchor is not None
        assert done.claim.anchor.bits == bits
        sizes[bits] = Path(f"{out}.anchor").stat().st_size
        options = VerifyOptions(anchor=model)
        assert verify(out, secret, claim=done.claim, options=options).verified
    assert 1.7 < sizes[8] / sizes[4] < 2.1


def test_a_later_release_gets_the_same_mark(model: Path, secret: Key, tmp_path: Path) -> None:
    first = embed(model, secret, tmp_path / "first.safetensors")
    assert first.anchor_file is not None
    rng = np.random.default_rng(5)
    later = {
        name: (value + 0.05 * value.std() * rng.standard_normal(value.shape)).astype(np.float32)
        for name, value in load_file(model).items()
    }
    plain, out = tmp_path / "later.safetensors", tmp_path / "second.safetensors"
    save_file(later, plain)
    second = embed(plain, secret, out, EmbedOptions(anchor=first.anchor_file))
    assert first.claim is not None
    assert second.claim is not None
    assert second.claim.anchor == first.claim.anchor
    assert second.warnings == first.warnings
    assert Path(f"{out}.anchor").read_bytes() == Path(first.anchor_file).read_bytes()
    assert stat.S_IMODE(Path(f"{out}.anchor").stat().st_mode) == 0o600
    moved = [
        load_file(path)["layer1.weight"] - load_file(before)["layer1.weight"]
        for path, before in ((first.output, model), (second.output, plain))
        if path is not None
    ]
    assert np.array_equal(moved[0] != 0, moved[1] != 0)  # the same weights carry it
    shuffled = {name: value[::-1].copy() for name, value in load_file(out).items()}
    save_file(shuffled, out, {"format": "pt"})
    assert verify(out, secret).verified


def test_the_anchor_of_another_model_is_refused(model: Path, secret: Key, tmp_path: Path) -> None:
    first = embed(model, secret, tmp_path / "first.safetensors")
    assert first.anchor_file is not None
    rng = np.random.default_rng(6)
    fresh = {
        n: rng.standard_normal(v.shape).astype(np.float32) for n, v in load_file(model).items()
    }
    save_file(fresh, tmp_path / "fresh.safetensors")
    options = EmbedOptions(anchor=first.anchor_file)
    with pytest.raises(AnchorMismatchError, match="another model"):
        embed(tmp_path / "fresh.safetensors", secret, tmp_path / "no.safetensors", options)
    assert not list(tmp_path.glob("no*"))
    narrow = replace(options, tensors=["layer1.weight"])
    with pytest.raises(AnchorMismatchError, match="other tensors"):
        embed(model, secret, tmp_path / "no.safetensors", narrow)


def test_a_dry_run_writes_none_and_tells_the_same(model: Path, secret: Key, tmp_path: Path) -> None:
    before = content_of(tmp_path)
    dry = embed(model, secret)
    assert content_of(tmp_path) == before
    assert dry.anchor_file is None
    done = embed(model, secret, tmp_path / "out.safetensors")
    assert (done.strength, done.change_relative) == (dry.strength, dry.change_relative)


def test_in_place_and_copy_are_bound_to_the_same(model: Path, secret: Key, tmp_path: Path) -> None:
    copy = embed(model, secret, tmp_path / "out.safetensors")
    own = embed(model, secret, in_place=True)
    assert own.anchor_file == f"{model}.anchor"
    assert own.claim == copy.claim
    assert model.read_bytes() == (tmp_path / "out.safetensors").read_bytes()
    assert verify(model, secret).verified
    assert stat.S_IMODE(Path(own.anchor_file).stat().st_mode) == 0o600


def test_beside_a_folder_never_in_it(secret: Key, tmp_path: Path) -> None:
    folder = sharded_model(tmp_path / "model")
    out = tmp_path / "marked"
    done = embed(folder, secret, out)
    assert done.anchor_file == f"{out}.anchor"
    assert not [path for path in out.rglob("*") if "anchor" in path.name]
    again = embed(out, Key.new(QUICK), tmp_path / "twice")
    assert again.anchor_file == f"{tmp_path / 'twice'}.anchor"
    in_place = embed(folder / "model.safetensors.index.json", secret, in_place=True)
    assert in_place.anchor_file == f"{folder}.anchor"


def test_an_anchor_in_a_folder_is_not_copied(secret: Key, tmp_path: Path) -> None:
    folder = sharded_model(tmp_path / "model")
    (folder / "old.anchor").write_bytes(b"secret")
    done = embed(folder, secret, tmp_path / "marked")
    assert not (tmp_path / "marked" / "old.anchor").exists()
    assert any("old.anchor" in warning for warning in done.warnings)


@pytest.mark.parametrize("in_place", [False, True])
def test_what_is_there_already_is_kept(
    model: Path, secret: Key, tmp_path: Path, in_place: bool
) -> None:
    out = model if in_place else tmp_path / "out.safetensors"
    file = Path(f"{out}.anchor")
    target = None if in_place else out
    foreign = Key.new(QUICK)
    embed(model, foreign, tmp_path / "other.safetensors")
    theirs = Path(f"{tmp_path / 'other.safetensors'}.anchor").read_bytes()
    for content in (b"", b"somebody's notes", theirs):
        file.write_bytes(content)
        before = content_of(tmp_path)
        with pytest.raises(OutputError, match="no anchor of this key"):
            embed(model, secret, target, in_place=in_place)
        assert content_of(tmp_path) == before
    done = embed(model, secret, target, in_place=in_place, overwrite=True)
    assert done.claim is not None
    assert load_anchor(file, secret).digest == done.claim.anchor_digest


def test_another_keys_claim_and_anchor_stay_together(
    model: Path, secret: Key, tmp_path: Path
) -> None:
    first = Key.new(QUICK)
    embed(model, first, in_place=True)
    done = embed(model, secret, in_place=True)
    short = secret.fingerprint.removeprefix("nm1-")[:8]
    assert done.claim_file == f"{model}.{short}.claim.json"
    assert done.anchor_file == f"{model}.{short}.anchor"
    assert verify(model, secret).verified
    assert verify(model, first).verified
    assert load_anchor(f"{model}.anchor", first)
    assert load_anchor(done.anchor_file, secret)


def test_ones_own_anchor_is_renewed(model: Path, secret: Key, tmp_path: Path) -> None:
    embed(model, secret, in_place=True)
    again = embed(model, secret, in_place=True)
    assert again.anchor_file == f"{model}.anchor"
    assert again.claim is not None
    assert load_anchor(again.anchor_file, secret).digest == again.claim.anchor_digest
    assert verify(model, secret).verified


def test_a_folder_where_the_anchor_belongs(model: Path, secret: Key, tmp_path: Path) -> None:
    Path(f"{tmp_path / 'out'}.anchor").mkdir()
    with pytest.raises(OutputError, match="is a folder"):
        embed(model, secret, tmp_path / "out")


@pytest.mark.parametrize("in_place", [False, True])
def test_what_fails_leaves_nothing(
    model: Path, secret: Key, tmp_path: Path, in_place: bool
) -> None:
    before = content_of(tmp_path)
    target = None if in_place else tmp_path / "out.safetensors"
    never = EmbedOptions(check=lambda _: False)
    with pytest.raises(CheckFailedError):
        embed(model, secret, target, never, in_place=in_place)
    assert content_of(tmp_path) == before


def test_heads_come_from_the_configuration_or_from_the_owner(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    network = architectures.llama()
    network.save_pretrained(folder)  # type: ignore[operator]
    secret = Key.new(QUICK)
    done = embed(folder, secret, tmp_path / "marked")
    assert done.claim is not None
    assert done.claim.anchor is not None
    assert done.claim.anchor.heads == 8
    assert HEADS_UNKNOWN not in done.warnings
    assert verify(tmp_path / "marked", secret).verified
    assert done.anchor_file is not None
    structure = load_anchor(done.anchor_file, secret).skeleton.structure
    assert structure is not None
    assert structure.pairs
    (folder / "config.json").unlink()
    unknown = embed(folder, secret)
    assert HEADS_UNKNOWN in unknown.warnings
    with pytest.raises(ParameterError, match="7 attention heads do not fit"):
        embed(folder, secret, tmp_path / "wrong", EmbedOptions(heads=7))
    assert not list(tmp_path.glob("wrong*"))
    told = embed(folder, secret, tmp_path / "told", EmbedOptions(heads=8))
    assert told.claim == done.claim
    assert HEADS_UNKNOWN not in told.warnings


def test_a_configuration_whose_heads_do_not_fit(tmp_path: Path) -> None:
    folder, secret = tmp_path / "llama", Key.new(QUICK)
    architectures.llama().save_pretrained(folder)  # type: ignore[operator]
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"num_attention_heads": 8', '"n_heads": 7'))
    done = embed(folder, secret, tmp_path / "marked")
    assert any("7 attention heads, as its configuration says" in each for each in done.warnings)
    assert done.claim is not None
    assert done.claim.anchor is not None
    assert done.claim.anchor.heads == 0
    assert verify(tmp_path / "marked", secret).verified
    again = VerifyOptions(anchor=folder)  # the original serves as well
    assert verify(tmp_path / "marked", secret, claim=done.claim, options=again).verified


@pytest.mark.parametrize(
    "options",
    [{"heads": -1}, {"heads": 5000}, {"anchor": 1}, {"anchor_bits": 1}, {"anchor_bits": 9}],
)
def test_options_out_of_range(options: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        EmbedOptions(**options)  # type: ignore[arg-type]


def test_a_lost_claim_is_made_again_of_the_anchor(
    marked: Path, secret: Key, tmp_path: Path
) -> None:
    claim = neuralmark.Claim.load(f"{marked}.claim.json")
    Path(f"{marked}.claim.json").unlink()
    assert not verify(marked, secret).verified
    verdict, again = rebuild_claim(marked, secret)
    assert verdict.verified
    assert again is not None
    assert (again.anchor, again.placement) == (claim.anchor, claim.placement)
    elsewhere = Path(f"{marked}.anchor").rename(tmp_path / "kept")
    assert rebuild_claim(marked, secret)[1] is None
    assert rebuild_claim(marked, secret, anchor=elsewhere)[1] == again
    with pytest.raises(AnchorMismatchError):
        rebuild_claim(marked, Key.new(QUICK), anchor=elsewhere)
    with pytest.raises(AnchorError):
        rebuild_claim(marked, secret, anchor=marked)


def test_a_lost_claim_is_made_again_of_a_copy_that_was_rearranged(
    marked: Path, secret: Key, tmp_path: Path
) -> None:
    claim = neuralmark.Claim.load(f"{marked}.claim.json")
    tensors = {f"net.{i}": v.T.copy() for i, v in enumerate(load_file(marked).values())}
    save_file(tensors, tmp_path / "moved.safetensors")
    given = f"{marked}.anchor"
    verdict, again = rebuild_claim(tmp_path / "moved.safetensors", secret, anchor=given)
    assert verdict.verified
    assert again is not None
    assert (again.anchor, again.placement) == (claim.anchor, claim.placement)
    assert verify(marked, secret, claim=again, options=VerifyOptions(anchor=given)).verified


def test_an_anchor_of_another_mark_does_not_hide_this_one(
    model: Path, secret: Key, tmp_path: Path
) -> None:
    """A loose mark with an anchor of the same key beside it is still found."""
    out, other = tmp_path / "out.safetensors", gaussian_model(tmp_path / "n.safetensors", seed=8)
    embed(model, secret, out, EmbedOptions(anchor=False))
    Path(f"{out}.claim.json").unlink()
    embed(other, secret, tmp_path / "other.safetensors")
    Path(f"{tmp_path / 'other.safetensors'}.anchor").rename(f"{out}.anchor")
    verdict, claim = rebuild_claim(out, secret)
    assert verdict.verified
    assert claim is not None
    assert claim.anchor is None


def test_a_lost_claim_of_named_tensors_is_made_again_of_their_names(
    secret: Key, tmp_path: Path
) -> None:
    tensors = {f"l{i}.weight": gaussian(128, 128, seed=i) for i in range(3)}
    model = saved(tmp_path / "m.safetensors", **tensors)
    out, names = tmp_path / "out.safetensors", ["l0.weight", "l2.weight"]
    embed(model, secret, out, EmbedOptions(tensors=names, anchor=False))
    claim = neuralmark.Claim.load(f"{out}.claim.json")
    Path(f"{out}.claim.json").unlink()
    assert rebuild_claim(out, secret)[1] is None
    verdict, again = rebuild_claim(out, secret, tensors=names)
    assert verdict.verified
    assert again is not None
    assert again.placement == claim.placement


def test_a_claim_beside_is_rebuilt_as_it_is(marked: Path, secret: Key) -> None:
    claim = neuralmark.Claim.load(f"{marked}.claim.json")
    Path(f"{marked}.anchor").unlink()
    _, again = rebuild_claim(marked, secret)
    assert again is not None
    assert again.anchor == claim.anchor


def test_a_live_module_is_verified_by_its_claim(marked: Path, secret: Key) -> None:
    state = {name: torch.from_numpy(value) for name, value in load_file(marked).items()}
    verdict = verify(state, secret, claim=f"{marked}.claim.json")
    assert verdict.verified
    assert verdict.anchor_digest is not None


def test_attacks_know_the_claim_beside_the_model(marked: Path, secret: Key) -> None:
    noise = Noise(0.1)
    found = attacks.launch(noise, marked, secret)
    assert found.before is not None
    assert found.after is not None
    assert found.before.verified
    assert found.survived
    assert found.after.anchor_digest == found.before.anchor_digest is not None
    options = attacks.SuiteOptions(only=["shift"], jobs=1)
    assert attacks.suite(marked, secret, options).rows
    weights = load_file(marked)
    claim = f"{marked}.claim.json"
    assert attacks.launch(noise, weights, secret, claim=claim).survived


def test_progress_tells_of_the_anchor(model: Path, secret: Key, tmp_path: Path) -> None:
    told = set()

    def progress(what: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        told.add(what)

    embed(model, secret, tmp_path / "out.safetensors", progress=progress)
    assert "making the anchor" in told


def test_the_claim_file_is_strict(marked: Path, tmp_path: Path) -> None:
    whole = json.loads(Path(f"{marked}.claim.json").read_text())
    anchor = whole["anchor"]
    wrong = [
        {},
        {**anchor, "bits": 1},
        {**anchor, "bits": 9},
        {**anchor, "bits": True},
        {**anchor, "heads": -1},
        {**anchor, "heads": 10**9},
        {**anchor, "digest": anchor["digest"].upper()},
        {**anchor, "digest": anchor["digest"][2:]},
        {**anchor, "more": 1},
        {"digest": anchor["digest"], "bits": 4},
        anchor["digest"],
        [anchor],
    ]
    for each in wrong:
        (tmp_path / "c.json").write_text(json.dumps({**whole, "anchor": each}))
        with pytest.raises(neuralmark.errors.RecordError):
            neuralmark.Claim.load(tmp_path / "c.json")
    del whole["anchor"]
    (tmp_path / "c.json").write_text(json.dumps(whole))
    with pytest.raises(neuralmark.errors.RecordError, match="anchor"):
        neuralmark.Claim.load(tmp_path / "c.json")


def test_two_parties_with_anchored_marks(marked: Path, secret: Key, tmp_path: Path) -> None:
    thief = Key.load(plain_key(tmp_path / "thief.nmkey"))
    stolen = tmp_path / "stolen.safetensors"
    embed(marked, thief, stolen)
    parties = [
        neuralmark.Claimant("Acme", secret, marked),
        neuralmark.Claimant("Bandit", thief, stolen),
    ]
    assert neuralmark.arbitrate(parties).owner == "Acme"


@pytest.mark.parametrize(
    ("alike", "taken", "warned"),
    [(0.19, False, True), (0.2, True, True), (0.89, True, True), (0.9, True, False)],
)
def test_an_earlier_anchor_is_taken_from_a_likeness_of_a_fifth_on(
    marked: Path,
    secret: Key,
    alike: float,
    taken: bool,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("neuralmark.marking.anchoring._likeness", lambda *_: alike)
    options = EmbedOptions(anchor=f"{marked}.anchor")
    if not taken:
        with pytest.raises(AnchorMismatchError, match="another model"):
            embed(marked, secret, options=options)
        return
    told = embed(marked, secret, options=options).warnings
    assert any("not much like the anchor" in each for each in told) == warned
