"""What is said of anchors that are missing, wanting, or of no use."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import Claim, Key, VerifyOptions
from neuralmark.errors import AnchorError, AnchorMismatchError

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
