"""What a notebook does first: slips in calls, and looking at what came back."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import neuralmark
from neuralmark import Claimant, Key
from neuralmark.errors import NeuralMarkError, ParameterError, RecordError, UnknownTensorError
from neuralmark.marking import verification
from tests.support.checks import one_line
from tests.support.models import QUICK, gaussian_model, sharded_model

BODY = "body.weight"


@pytest.fixture
def key() -> Key:
    return Key.new(QUICK)


@pytest.fixture
def marked(key: Key, tmp_path: Path) -> Path:
    plain = gaussian_model(tmp_path / "plain.safetensors")
    neuralmark.embed(plain, key, tmp_path / "marked.safetensors")
    return tmp_path / "marked.safetensors"


def claim_of(marked: Path) -> Path:
    return Path(f"{marked}.claim.json")


@pytest.mark.parametrize("wrong", [{}, {"format": "other"}, [], 7, b"{}"])
def test_claims_that_are_none(marked: Path, key: Key, wrong: Any) -> None:
    with pytest.raises((RecordError, ParameterError), match="claim") as caught:
        neuralmark.verify(marked, key, claim=wrong)
    one_line(caught.value)
    parties = [Claimant("a", key, marked, wrong), Claimant("b", Key.new(QUICK), marked)]
    with pytest.raises((RecordError, ParameterError), match="claim"):
        neuralmark.arbitrate(parties)


def test_a_parsed_claim_is_taken(marked: Path, key: Key) -> None:
    parsed = json.loads(claim_of(marked).read_text())
    verdict = neuralmark.verify(marked, key, claim=parsed)
    assert (verdict.verified, verdict.trials) == (True, 2)


def test_one_name_is_a_list_of_one(key: Key, tmp_path: Path) -> None:
    plain = gaussian_model(tmp_path / "plain.safetensors")
    name = max(load_file(plain).items(), key=lambda entry: entry[1].size)[0]
    out = tmp_path / "marked.safetensors"
    assert neuralmark.embed(
        plain, key, out, options=neuralmark.EmbedOptions(tensors=name)
    ).tensors == (name,)
    assert neuralmark.verify(out, key, tensors=name).verified
    assert neuralmark.embed(
        plain, key, options=neuralmark.EmbedOptions(tensors="auto")
    ) == neuralmark.embed(plain, key)
    assert neuralmark.verify(out, key, tensors="auto").trials > 1
    verdict, claim = neuralmark.rebuild_claim(out, key, tensors=name)
    assert verdict.verified
    assert claim is not None
    for wrong in ("wieght", [1], [name.encode()]):
        with pytest.raises((UnknownTensorError, ParameterError)) as caught:
            neuralmark.verify(out, key, tensors=wrong)  # type: ignore[arg-type]
        one_line(caught.value)


def test_a_state_dict_is_verified_and_not_trained(marked: Path, key: Key) -> None:
    torch = pytest.importorskip("torch")
    arrays = load_file(marked)
    state = {name: torch.from_numpy(value) for name, value in arrays.items()}
    claim = claim_of(marked)
    for given in (state, arrays):
        assert neuralmark.verify(given, key, claim=claim).verified
        searched = neuralmark.verify(given, key)
        assert not searched.verified
        assert "bound to an anchor" in searched.reason
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    for call in (
        lambda: neuralmark.attach(state, optimizer, key),  # type: ignore[arg-type]
        lambda: neuralmark.imprint(state, key),  # type: ignore[arg-type]
        lambda: neuralmark.embed(state, key, "x"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ParameterError, match=r"state_dict|state dict") as caught:
            call()
        one_line(caught.value)
    for wrong in (7, None, {"a": 3}, {}, [state]):
        with pytest.raises(NeuralMarkError) as found:
            neuralmark.verify(wrong, key)  # type: ignore[arg-type]
        one_line(found.value)


def test_a_verdict_shows_itself(marked: Path, key: Key) -> None:
    claim = claim_of(marked)
    verdict = neuralmark.verify(marked, key, claim=claim).with_owner("Acme <AI>")
    short = str(verdict)
    assert len(short) < 200
    assert "\n" not in short
    assert short.startswith("verified: ")
    assert f"{verdict.matched} of {verdict.bits} bits" in short
    page = verdict._repr_html_()
    whole = hashlib.sha256(marked.read_bytes()).hexdigest()  # as sha256sum prints it
    assert verdict.sha256 == {marked.name: whole}
    assert verdict.claim_digest == hashlib.sha256(claim.read_bytes()).hexdigest()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", verdict.date or "")
    assert verdict.owner == "Acme <AI>"
    assert set(verdict.versions) >= {"neuralmark", "numpy", "python"}
    for shown in (whole, verdict.claim_digest, verdict.date, "Acme &lt;AI&gt;", key.fingerprint):
        assert shown is not None
        assert shown in page
    assert "<script" not in page
    told = verdict.to_dict()
    assert (told["date"], told["owner"]) == (verdict.date, verdict.owner)
    assert (told["claim_digest"], told["versions"]) == (verdict.claim_digest, verdict.versions)
    plain = neuralmark.verify(
        marked, Key.new(QUICK), options=neuralmark.VerifyOptions(full_digest=False)
    )
    assert str(plain).startswith("not verified: ")
    assert (plain.sha256, plain.claim_digest, plain.owner) == (None, None, None)
    assert "sha256" not in plain._repr_html_()


def test_whole_files_are_digested_unless_they_are_large(
    key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sharded_model(tmp_path / "folder")
    shards = sorted(folder.glob("*.safetensors"))
    whole = {shard.name: hashlib.sha256(shard.read_bytes()).hexdigest() for shard in shards}
    assert len(whole) > 1
    size = sum(shard.stat().st_size for shard in shards)
    monkeypatch.setattr(verification, "WHOLE_UP_TO", size)
    assert neuralmark.verify(folder, key).sha256 == whole
    monkeypatch.setattr(verification, "WHOLE_UP_TO", size - 1)
    assert neuralmark.verify(folder, key).sha256 is None
    assert (
        neuralmark.verify(folder, key, options=neuralmark.VerifyOptions(full_digest=True)).sha256
        == whole
    )
    assert neuralmark.verify(load_file(shards[0]), key).sha256 is None  # no file at all


def test_owners_are_one_line(marked: Path, key: Key) -> None:
    for wrong in ("a\nb", "x" * 201, ""):
        with pytest.raises(ParameterError, match="owner"):
            neuralmark.verify(marked, key).with_owner(wrong)


def test_slips_in_calls_are_clear(marked: Path, key: Key, tmp_path: Path) -> None:
    for call in (
        lambda: neuralmark.verify(marked, key, tensors=[]),
        lambda: neuralmark.verify(marked, key, claim=""),
        lambda: neuralmark.embed(marked, key, options={"strength": 2}),  # type: ignore[arg-type]
        lambda: neuralmark.EmbedOptions(strength="2"),  # type: ignore[arg-type]
        lambda: neuralmark.EmbedOptions(budget="2"),  # type: ignore[arg-type]
    ):
        with pytest.raises((ParameterError, RecordError)) as caught:
            call()
        one_line(caught.value)


def test_the_public_view_shows_the_owner_who_wants_it(marked: Path, key: Key) -> None:
    told = neuralmark.verify(marked, key).with_owner("Acme Inc").public_dict()
    assert told["owner"] == "Acme Inc"
    assert told["date"]
    assert "smallest_margin" not in told
