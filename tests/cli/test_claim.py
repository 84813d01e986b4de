"""neuralmark claim, and verifying with claims: lost, foreign, edited, renamed, turned."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import Claim, Key
from tests.support.checks import content_of
from tests.support.commands import call
from tests.support.models import gaussian, plain_key, sharded_model


def claim_of(model: Path) -> Path:
    return Path(f"{model}.claim.json")


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_lost_claim_is_rebuilt(marked: Path, key: Path) -> None:
    file = claim_of(marked)
    before = Claim.load(file)
    file.unlink()
    result = call("claim", marked, "--key", key)
    assert result.code == 0
    assert "160 of 160 bits" in result.out
    after = Claim.load(file)
    assert (after.placement, after.marked_digest) == (before.placement, before.marked_digest)
    assert after.source_digest is None
    assert call("verify", marked, "--key", key, "--claim", file).code == 0


def test_rebuilt_for_a_folder(key: Path, tmp_path: Path) -> None:
    folder = sharded_model(tmp_path / "model")
    call("embed", folder, "--key", key, "--in-place")
    Path(f"{folder}.claim.json").unlink()
    told = call("claim", folder / "model.safetensors.index.json", "--key", key, "--json").json
    assert told["claim_file"] == f"{folder}.claim.json"
    assert told["claim"] == json.loads(Path(f"{folder}.claim.json").read_text())


def test_rebuilt_elsewhere_and_over(marked: Path, key: Path, tmp_path: Path) -> None:
    out = tmp_path / "other.json"
    assert call("claim", marked, "--key", key, "-o", out).code == 0
    for options in (("-o", out), ()):
        before = content_of(tmp_path)
        result = call("claim", marked, "--key", key, *options)
        assert "--force" in result.failed(2, "OutputError")
        assert content_of(tmp_path) == before
        assert call("claim", marked, "--key", key, *options, "--force").code == 0


def test_nothing_to_rebuild(model: Path, key: Path, tmp_path: Path) -> None:
    before = content_of(tmp_path)
    result = call("claim", model, "--key", key)
    assert result.code == 1
    assert result.err.startswith("neuralmark: no claim: ")
    told = call("claim", model, "--key", key, "--json")
    assert (told.code, told.json["claim_file"]) == (1, None)
    assert told.json["verdict"]["verified"] is False
    assert content_of(tmp_path) == before


def test_tensors_that_were_named(model: Path, key: Path, tmp_path: Path) -> None:
    tensors = load_file(model) | {"layer3.weight": gaussian(40, 40, seed=8)}
    save_file(tensors, model)
    names = ("--tensor", "layer2.weight", "--tensor", "layer3.weight")
    call("embed", model, "--key", key, "--in-place", "--no-anchor", *names)
    claim_of(model).unlink()
    assert call("claim", model, "--key", key).code == 1
    assert call("claim", model, "--key", key, *names).code == 0
    assert call("verify", model, "--key", key, "--claim", claim_of(model)).code == 0


def test_claim_of_another_key(marked: Path, tmp_path: Path) -> None:
    other = plain_key(tmp_path / "other.nmkey")
    result = call("verify", marked, "--key", other, "--claim", claim_of(marked))
    line = result.failed(2, "ClaimMismatchError")
    assert Key.load(other).fingerprint in line


@pytest.mark.parametrize(
    ("changes", "code", "error"),
    [
        ({"parameters": {"rounds": 2}}, 2, "ClaimMismatchError"),
        ({"parameters": {"pooling": "contiguous"}}, 2, "ClaimMismatchError"),
        ({"parameters": {"bits": 1 << 40}}, 3, "RecordError"),
        ({"parameters": {"more": 1}}, 3, "RecordError"),
        ({"commitment": "0" * 64}, 2, "ClaimMismatchError"),
        ({"fingerprint": "x\n" * 5000}, 2, "ClaimMismatchError"),
        ({"version": 2}, 3, "RecordError"),
        ({"version": True}, 3, "RecordError"),
        ({"format": "neuralmark-key"}, 3, "RecordError"),
        ({"scheme": "greedymark"}, 3, "RecordError"),
        ({"placement": []}, 3, "RecordError"),
        ({"placement": [["layer1.weight", [128, 128]]] * 2}, 3, "RecordError"),
        ({"placement": [["layer1.weight", [128, -128]]]}, 3, "RecordError"),
    ],
)
def test_edited(marked: Path, key: Path, changes: dict[str, Any], code: int, error: str) -> None:
    file = claim_of(marked)
    if "parameters" in changes:
        changes = {"parameters": Key.load(key).parameters.to_dict() | changes["parameters"]}
    edit(file, **changes)
    call("verify", marked, "--key", key, "--claim", file).failed(code, error)


@pytest.mark.parametrize("entry", [["layer1.weight", [1]], ["nowhere", [10**30]]])
def test_places_that_are_not_there_are_unreadable(
    marked: Path, key: Path, entry: list[Any]
) -> None:
    file = claim_of(marked)
    for placement in ([entry], [entry, ["layer2.weight", [10**9, 10**9]]]):
        edit(file, placement=placement)
        told = call("verify", marked, "--key", key, "--claim", file, "--json")
        assert (told.code, told.json["status"], told.json["trials"]) == (3, "unreadable", 0)


def test_truncated_and_missing(marked: Path, key: Path) -> None:
    file = claim_of(marked)
    text = file.read_bytes()
    for length in (0, 1, len(text) // 2, len(text) - 3):
        file.write_bytes(text[:length])
        call("verify", marked, "--key", key, "--claim", file).failed(3, "RecordError")
    file.unlink()
    call("verify", marked, "--key", key, "--claim", file).failed(3, "RecordError")


def test_a_claim_is_followed_never_trusted(marked: Path, model: Path, key: Path) -> None:
    # a false claim gains nothing: everything is derived from the key again
    file = claim_of(marked)
    verdict = call("verify", model, "--key", key, "--claim", file, "--json")
    assert (verdict.code, verdict.json["verified"]) == (1, False)


def test_renamed_tensors_are_not_found_without_the_anchor(marked: Path, key: Path) -> None:
    Path(f"{marked}.anchor").unlink()
    tensors = load_file(marked)
    save_file({f"net.{i}": array for i, array in enumerate(tensors.values())}, marked)
    assert call("verify", marked, "--key", key).code == 3  # by the claim beside it
    told = call("verify", marked, "--key", key, "--claim", claim_of(marked), "--json")
    assert (told.code, told.json["status"], told.json["tensors"]) == (3, "unreadable", [])
    assert "neither given nor found beside the claim" in told.json["reason"]
    assert "give it (--anchor)" in call("verify", marked, "--key", key).out
    assert {gap["name"] for gap in told.json["missing"]} == {"layer1.weight", "layer2.weight"}


def test_transposed(marked: Path, key: Path) -> None:
    tensors = load_file(marked)
    del tensors["layer1.bias"], tensors["layer1.weight"]
    save_file(tensors, marked)
    call(*("embed", marked, "--key", key, "--in-place"))
    Path(f"{marked}.anchor").unlink()
    turned = np.ascontiguousarray(load_file(marked)["layer2.weight"].T)
    save_file({"layer2.weight": turned}, marked)
    told = call("verify", marked, "--key", key, "--claim", claim_of(marked), "--json")
    assert (told.code, told.json["orientation"]) == (0, "transposed")
    assert told.json["tensors"][0]["shape"] == [128, 96]
    panel = call("verify", marked, "--key", key, "--claim", claim_of(marked))
    assert "(transposed)" in panel.out


def test_wrapped_names_are_the_same(marked: Path, key: Path) -> None:
    tensors = load_file(marked)
    save_file({f"module._orig_mod.{name}": array for name, array in tensors.items()}, marked)
    assert call("verify", marked, "--key", key).code == 0
    told = call("verify", marked, "--key", key, "--claim", claim_of(marked), "--json").json
    assert told["mapping"] == "names"


def test_too_small_for_the_claim(marked: Path, key: Path) -> None:
    Path(f"{marked}.anchor").unlink()
    save_file({"other": gaussian(64, 64)}, marked)
    told = call("verify", marked, "--key", key, "--claim", claim_of(marked))
    assert told.code == 3
    assert "COULD NOT BE READ" in told.out
    assert "too few are in this model" in told.out
