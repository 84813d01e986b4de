"""`neuralmark anchor show`, and what the other commands say of anchors."""

import json
from pathlib import Path

import pytest

from neuralmark import Claim
from neuralmark.anchors.anchor import ALIGNER_VERSION
from tests.support import architectures
from tests.support.checks import content_of
from tests.support.commands import call
from tests.support.models import plain_key


@pytest.fixture
def anchor(marked: Path) -> Path:
    return Path(f"{marked}.anchor")


def test_show(anchor: Path, marked: Path, key: Path) -> None:
    short = call("anchor", "show", anchor, "--key", key)
    assert "2 tensors (layer1.weight to layer2.weight)" in short.out
    assert "128x128" not in short.out
    told = call("anchor", "show", anchor, "--key", key, "--all")
    assert told.code == 0
    digest = Claim.load(f"{marked}.claim.json").anchor_digest.hex()
    assert digest in told.out
    assert "as secret as the key" in told.err
    lines = [line.split() for line in told.out.splitlines()]
    assert ["layer1.weight", "marked", "128x128", "whole", "8,448"] in lines
    assert ["layer1.bias", "partner", "128", "whole", "256"] in lines


def test_show_as_json(anchor: Path, marked: Path, key: Path) -> None:
    told = call("anchor", "show", anchor, "--key", key, "--json").json
    claim = Claim.load(f"{marked}.claim.json")
    assert told["digest"] == claim.anchor_digest.hex()
    assert told["fingerprint"] == claim.fingerprint
    assert (told["bits"], told["heads"], told["aligner"]) == (4, 0, ALIGNER_VERSION)
    assert told["bytes"] == anchor.stat().st_size
    assert [e["name"] for e in told["entries"]] == ["layer1.weight", "layer2.weight", "layer1.bias"]
    assert {e["role"] for e in told["entries"]} == {"marked", "partner"}
    assert "judge" in told["secret"]


def test_the_family_is_told(key: Path, tmp_path: Path) -> None:
    architectures.llama().save_pretrained(tmp_path / "model")  # type: ignore[operator]
    out = tmp_path / "marked"
    assert call("embed", tmp_path / "model", "--key", key, "-o", out).code == 0
    told = call("anchor", "show", f"{out}.anchor", "--key", key)
    assert "Llama, 29 tensors, 8 heads" in told.out
    assert call("anchor", "show", f"{out}.anchor", "--key", key, "--json").json["family"] == "Llama"
    wrong = call("embed", tmp_path / "model", "--key", key, "-o", out, "--heads", 7, "--force")
    wrong.failed(2, "ParameterError")
    assert "7 attention heads do not fit the shapes of this model" in " ".join(wrong.err.split())
    assert "--heads" in wrong.err


def test_what_cannot_be_opened(anchor: Path, key: Path, tmp_path: Path) -> None:
    other = plain_key(tmp_path / "other.nmkey")
    call("anchor", "show", anchor, "--key", other).failed(2, "AnchorMismatchError")
    call("anchor", "show", key, "--key", key).failed(3, "AnchorError")
    call("anchor", "show", tmp_path / "none", "--key", key).failed(3, "AnchorError")
    whole = anchor.read_bytes()
    anchor.write_bytes(whole[:-1])
    call("anchor", "show", anchor, "--key", key).failed(3, "AnchorError")


def test_an_anchor_is_no_model(anchor: Path, key: Path) -> None:
    line = call("verify", anchor, "--key", key).failed(3, "UnknownFormatError")
    assert "is an anchor, not a model" in line
    assert "--anchor" in line


def test_claim_and_anchor_are_for_their_owner_only(anchor: Path, marked: Path, key: Path) -> None:
    claim = Path(f"{marked}.claim.json")
    assert [path.stat().st_mode & 0o777 for path in (anchor, claim)] == [0o600, 0o600]
    anchor.unlink()
    assert call("embed", marked, "--in-place", "--key", key, "--no-anchor").code == 0
    assert claim.stat().st_mode & 0o777 == 0o600
    Claim.load(claim).save(marked.with_name("copy.json"))
    assert marked.with_name("copy.json").stat().st_mode & 0o777 == 0o600


def test_embedding_says_what_the_files_are_for(model: Path, key: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    told = call("embed", model, "--key", key, "-o", out)
    assert f"{out}.anchor" in told.out
    assert "claim and anchor are for you and a judge only" in told.out
    again = call("embed", model, "--key", key, "-o", out, "--force", "--json").json
    assert again["anchor_file"] == f"{out}.anchor"


def test_without_an_anchor(model: Path, key: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    told = call("embed", model, "--key", key, "-o", out, "--no-anchor")
    assert ".anchor" not in told.out
    assert "the claim is for you and a judge only" in told.out
    assert Claim.load(f"{out}.claim.json").anchor is None
    Path(f"{out}.claim.json").unlink()
    assert call("verify", out, "--key", key).code == 0
    told = call("embed", model, "--key", key, "-o", out, "--no-anchor", "--force", "--json")
    assert told.json["anchor_file"] is None


def test_heads(model: Path, key: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert call("embed", model, "--key", key, "-o", out, "--heads", 12).code == 0
    assert json.loads(Path(f"{out}.claim.json").read_text())["anchor"]["heads"] == 12
    call("embed", model, "--key", key, "--dry-run", "--heads", -1).failed(2, "ParameterError")


def test_bits_of_the_anchor(model: Path, key: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert call("embed", model, "--key", key, "-o", out, "--anchor-bits", 6).code == 0
    assert json.loads(Path(f"{out}.claim.json").read_text())["anchor"]["bits"] == 6
    refused = call("embed", model, "--key", key, "--dry-run", "--anchor-bits", 1)
    assert "2 to 8 bits" in refused.failed(2, "ParameterError")


def test_the_anchor_of_an_earlier_release(model: Path, key: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    assert call("embed", model, "--key", key, "-o", first).code == 0
    options = ("--key", key, "-o", second, "--anchor", f"{first}.anchor")
    assert call("embed", model, *options).code == 0
    claims = [json.loads(Path(f"{out}.claim.json").read_text()) for out in (first, second)]
    assert claims[0]["anchor"] == claims[1]["anchor"]
    refused = call("embed", model, *options, "--force", "--no-anchor")
    assert "not both" in refused.failed(2, "UsageError")


def test_somebody_elses_anchor_is_kept(model: Path, key: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    Path(f"{out}.anchor").write_text("mine")
    before = content_of(tmp_path)
    refused = call("embed", model, "--key", key, "-o", out)
    assert "--force" in refused.failed(2, "OutputError")
    assert content_of(tmp_path) == before


def test_a_search_that_finds_nothing_says_what_is_missing(marked: Path, key: Path) -> None:
    Path(f"{marked}.claim.json").unlink()
    told = call("verify", marked, "--key", key)
    assert told.code == 1
    assert "bound to an anchor is found only with its claim" in told.out
    assert call("claim", marked, "--key", key).code == 0
    assert call("verify", marked, "--key", key).code == 0


def test_a_lost_claim_from_an_anchor_elsewhere(
    marked: Path, anchor: Path, key: Path, tmp_path: Path
) -> None:
    Path(f"{marked}.claim.json").unlink()
    kept = anchor.rename(tmp_path / "kept.anchor")
    assert call("claim", marked, "--key", key).code == 1
    assert call("claim", marked, "--key", key, "--anchor", kept).code == 0
    assert call("verify", marked, "--key", key).code == 0
