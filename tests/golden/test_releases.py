"""Files of every release are read for ever."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import neuralmark
from neuralmark import Claim, Key, Ruling, Trace, Verdict
from neuralmark.anchors.sealed import load_anchor
from neuralmark.attacks import Card, StandardReport
from neuralmark.records import CopyRegister, PublicVerdict
from neuralmark.reports.recorded import draw

HERE = Path(__file__).parent
RELEASES = sorted(path.name for path in HERE.glob("release-*"))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ["plain.nmkey", "encrypted.nmkey"])
def test_keys_claims_and_marks(release: str, name: str) -> None:
    folder = HERE / release
    key = Key.load(folder / name, "golden passphrase")
    assert key.content == b"owner=Golden\nrelease 0.1"
    claim = Claim.load(folder / "marked.safetensors.claim.json")
    assert claim.fingerprint == key.fingerprint
    assert claim.commitment == key.commitment
    verdict = neuralmark.verify(folder / "marked.safetensors", key, claim=claim)
    assert verdict.matched == verdict.bits == 256
    assert verdict.checkpoint_digest.tensors == claim.marked_digest.tensors
    assert neuralmark.verify(folder / "marked.safetensors", key).verified
    anchor = load_anchor(folder / "marked.safetensors.anchor", key)
    assert anchor.digest == claim.anchor_digest
    assert anchor.placement == claim.placement
    near, weights = anchor["layer.weight"], load_file(folder / "marked.safetensors")["layer.weight"]
    assert np.linalg.norm(near - weights) < 0.3 * np.linalg.norm(near)


@pytest.mark.parametrize("release", RELEASES)
def test_raw_keys(release: str) -> None:
    key = Key.load(HERE / release / "raw.nmkey")
    assert (key.kind, key.parameters.pooling, key.content) == ("raw", "contiguous", b"raw")
    assert key.matrix is not None
    assert key.matrix.shape == (16, 24)
    assert np.isfinite(key.matrix).all()


@pytest.mark.parametrize("release", RELEASES)
def test_verdicts_hold(release: str) -> None:
    folder = HERE / release
    verdict = Verdict.load(folder / "verdict.json")
    assert (verdict.status, verdict.owner, verdict.bits) == ("verified", "Golden", 256)
    key = Key.load(folder / "plain.nmkey")
    model, claim = folder / "marked.safetensors", folder / "marked.safetensors.claim.json"
    assert neuralmark.recheck(verdict, model, key, claim=claim).broken == ()
    assert PublicVerdict.load(folder / "public.json").to_dict() == verdict.public_dict()


@pytest.mark.parametrize("release", RELEASES)
def test_cards_and_rulings(release: str) -> None:
    folder = HERE / release
    verdict, card = Verdict.load(folder / "verdict.json"), Card.load(folder / "card.json")
    assert card.fingerprint == verdict.fingerprint
    assert card.before.matched == verdict.matched
    assert card.certified_radius == verdict.certified_radius
    assert {row.kind for row in card.rows} == {"weights", "key", "test"}
    assert [each.attack for each in card.skipped] == ["finetune"]
    ruling = Ruling.load(folder / "ruling.json")
    assert (ruling.owner, len(ruling.parties), len(ruling.sightings)) == ("Golden", 2, 6)
    assert ruling.parties[0].exhibit.files == verdict.sha256


@pytest.mark.parametrize("release", RELEASES)
def test_copies_traces_and_sub_keys(release: str) -> None:
    folder = HERE / release
    key, copy = Key.load(folder / "plain.nmkey"), folder / "copy.safetensors"
    kept, register = Trace.load(folder / "trace.json"), CopyRegister.load(folder / "copies.json")
    assert kept.named == ("Bolt GmbH",)
    assert kept.identical == "Bolt GmbH"
    with_anchor = neuralmark.VerifyOptions(anchor=folder / "copies.anchor")
    found = neuralmark.trace(copy, key, folder / "copies.json", options=with_anchor)
    assert (found.owner, found.buyers) == (kept.owner, kept.buyers)
    sub, claim = neuralmark.buyer_key(key, "Bolt GmbH", register)
    kept_sub = Key.load(folder / "buyer.nmkey")
    assert (sub.fingerprint, sub.secret, sub.commitment) == (
        kept_sub.fingerprint,
        kept_sub.secret,
        kept_sub.commitment,
    )
    assert claim == Claim.load(folder / "buyer.claim.json")
    assert neuralmark.verify(copy, sub, claim=claim).verified


@pytest.mark.parametrize("release", RELEASES)
def test_reports_after_the_standard(release: str) -> None:
    folder = HERE / release
    verdict, report = (
        Verdict.load(folder / "verdict.json"),
        StandardReport.load(folder / "standard.json"),
    )
    assert (report.fingerprint, report.before.bits) == (verdict.fingerprint, verdict.bits)
    assert report.cost.verify is not None
    assert report.cost.verify.memory
    made = {each.name: len(each.points) for each in report.modifications}
    assert made == {"Gaussian noise addition": 6, "quantisation": 5, "fine-tuning": 0}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("verdict", ("<h1>Verified</h1>", "How clearly each bit was read", "Golden")),
        ("public", ("<h1>Verified</h1>", "This is the public view")),
        ("card", ("What this mark withstands", "forge-random", "finetune")),
        ("standard", ("IEEE 3304-2023", "Gaussian noise addition", "SHA-256", "fine-tuning")),
        (
            "aligned",
            ("<h1>Verified</h1>", "Where the weights went", "other.<wbr>weight", "permuted"),
        ),
        ("lineage", ("<h1>Related</h1>", "descent, not of ownership", "other.<wbr>weight")),
        ("trace", ("Bolt GmbH", "Acme Ltd.", "2 buyers")),
        ("ruling", ("<h1>Owner: Golden</h1>", "2026-01-01T00:00:00+00:00", "Thief")),
    ],
)
def test_pages_of_kept_records(release: str, name: str, words: tuple[str, ...]) -> None:
    page = draw(HERE / release / f"{name}.json").page
    for each in words:
        assert each in page
