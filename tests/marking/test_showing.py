"""What a judge is shown of one buyer, and what that gives away."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import CopyRegister, Key, VerifyOptions
from neuralmark.anchors.sealed import load_anchor
from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.errors import (
    AnchorMismatchError,
    BuyersError,
    ClaimMismatchError,
    OutputError,
    RecordError,
)
from neuralmark.marking.showing import buyer_key, show_anchor
from tests.support.checks import one_line
from tests.support.market import LABELS, Sold, owners_key, sold


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Sold:
    return sold(tmp_path_factory.mktemp("market"))


def test_a_saved_sub_key_and_its_claim_verify_as_any_others(market: Sold, tmp_path: Path) -> None:
    sub, claim = buyer_key(market.key, "ACME ltd.", market.folder)
    sub.save(tmp_path / "acme.nmkey", None)
    claim.save(tmp_path / "acme.claim.json")
    key = Key.load(tmp_path / "acme.nmkey")
    verdict = neuralmark.verify(market.path(LABELS[0]), key, claim=tmp_path / "acme.claim.json")
    assert (verdict.verified, verdict.matched) == (True, 256)
    assert key.content == b"owner=me\nbuyer=acme ltd."


def test_it_holds_nothing_of_the_owners_key(market: Sold, tmp_path: Path) -> None:
    sub, claim = buyer_key(market.key, LABELS[0], market.folder)
    sub.save(tmp_path / "acme.nmkey", None)
    assert market.key.secret is not None
    told = (tmp_path / "acme.nmkey").read_text() + claim.to_json()
    assert sub.secret != market.key.secret
    assert market.key.fingerprint not in told
    assert market.key.commitment not in told
    for label in LABELS[1:]:
        assert label not in told
        assert neuralmark.verify(market.path(label), sub, claim=claim).verified is False


def test_whoever_holds_it_removes_that_mark_only(market: Sold, tmp_path: Path) -> None:
    """The means of its pools are taken out: that buyer is not named, the owner's mark is whole."""
    label = LABELS[0]
    sub, claim = buyer_key(market.key, label, market.folder)
    weights, names = market.weights(label), [name for name, _ in claim.placement]
    flat = np.concatenate([weights[name].reshape(-1) for name in names]).astype(np.float64)
    mark = sub.at(claim.placement, claim.anchor_digest)
    carriers = Carriers.of(mark, len(flat))
    at = carriers.positions(0, carriers.size)
    flat[at] -= np.tile(readout.pool(flat[at], carriers.pools), carriers.per_pool)
    start = 0
    for name in names:
        stop = start + weights[name].size
        weights[name] = flat[start:stop].reshape(weights[name].shape).astype(np.float32)
        start = stop
    save_file(weights, tmp_path / "erased.safetensors")
    erased = neuralmark.verify(tmp_path / "erased.safetensors", sub, claim=claim)
    assert not erased.verified
    owners = neuralmark.verify(tmp_path / "erased.safetensors", market.key, claim=market.claim)
    assert (owners.verified, owners.matched) == (True, 256)
    found = neuralmark.trace(tmp_path / "erased.safetensors", market.key, market.folder)
    assert found.owned
    assert found.named == ()


def test_with_the_anchor_the_judge_finds_rearranged_copies(market: Sold, tmp_path: Path) -> None:
    sub, claim = buyer_key(market.key, LABELS[1], market.folder)
    anchor = tmp_path / "judge.anchor"
    show_anchor(market.key, sub, market.folder, anchor)
    renamed = {f"net.{name}.x": value for name, value in market.weights(LABELS[1]).items()}
    save_file(renamed, tmp_path / "suspect.safetensors")
    suspect = tmp_path / "suspect.safetensors"
    assert not neuralmark.verify(suspect, sub, claim=claim).verified
    verdict = neuralmark.verify(suspect, sub, claim=claim, options=VerifyOptions(anchor=anchor))
    assert verdict.verified
    owners = market.folder / "owner.safetensors.anchor"
    assert load_anchor(anchor, sub).digest == load_anchor(owners, market.key).digest
    with pytest.raises(AnchorMismatchError):
        load_anchor(owners, sub)
    with pytest.raises(OutputError, match="exists already"):
        show_anchor(market.key, sub, market.folder / "copies.json", anchor)


def test_with_the_anchor_every_mark_can_be_taken_out(market: Sold, tmp_path: Path) -> None:
    """Why it is for a judge and never for a buyer: the anchor's own values have no mark."""
    sub, claim = buyer_key(market.key, LABELS[1], market.folder)
    show_anchor(market.key, sub, market.folder, tmp_path / "judge.anchor")
    anchor = load_anchor(tmp_path / "judge.anchor", sub)
    weights = market.weights(LABELS[1])
    coarse = {n: anchor[n] if n in dict(claim.placement) else v for n, v in weights.items()}
    save_file(coarse, tmp_path / "erased.safetensors")
    found = neuralmark.trace(tmp_path / "erased.safetensors", market.key, market.folder)
    assert (found.named, found.owned) == ((), False)
    original = load_file(market.model)
    error = [np.abs(coarse[n] - original[n]).max() / original[n].std() for n, _ in claim.placement]
    assert max(error) < 0.05


def test_what_cannot_be_shown(market: Sold, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    cases = [
        (market.key, "Nobody", market.folder, BuyersError, "none of the 4 buyers"),
        (owners_key(9), LABELS[0], market.folder, ClaimMismatchError, "not of this one"),
        (market.key, LABELS[0], tmp_path / "other.json", RecordError, "not a NeuralMark"),
        (market.key, LABELS[0], tmp_path, RecordError, "cannot be read"),
    ]
    for key, label, copies, kind, said in cases:
        with pytest.raises(kind, match=said) as caught:
            buyer_key(key, label, copies)
        one_line(caught.value)
    assert isinstance(market.register, CopyRegister)
