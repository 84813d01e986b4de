"""The anchor of a real network: what it keeps, how much that is, and the same from every source."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_model
from torch import nn

from neuralmark import Claim, Key
from neuralmark.anchors.anchor import MARKED, Anchor, AnchorEntry
from neuralmark.anchors.building import AnchorRecipe, anchor_from_original, build
from neuralmark.anchors.choosing import LEAST_ROWS
from neuralmark.anchors.heads import heads_of
from neuralmark.anchors.opening import open_anchor
from neuralmark.anchors.originals import OriginalArrays, OriginalCheckpoint
from neuralmark.anchors.sealed import write_anchor
from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.core.key import Placement
from neuralmark.errors import (
    AnchorMismatchError,
    NonFiniteError,
    ParameterError,
    UnknownTensorError,
    UnsuitableTensorError,
)
from neuralmark.records import ClaimedAnchor, Digest
from neuralmark.structures.structure import Array, Indices
from tests.support import architectures, families
from tests.support.models import gaussian, saved


def arrays(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def placement(weights: dict[str, np.ndarray], *names: str) -> Placement:
    return tuple((name, weights[name].shape) for name in names)


def anchor(weights: dict[str, Any], *names: str, heads: int = 0, bits: int = 4) -> Anchor:
    recipe = AnchorRecipe(placement(weights, *names), heads, bits)
    return build(OriginalArrays(weights), recipe)


def partners(found: Anchor) -> set[str]:
    return {entry.name for entry in found.entries if entry.role != MARKED}


def test_a_llama_keeps_the_partners_of_what_is_marked() -> None:
    weights = arrays(architectures.llama())
    layer = "model.layers.0"
    found = anchor(weights, f"{layer}.mlp.up_proj.weight", heads=8)
    assert found.skeleton.structure is not None
    assert found.skeleton.structure.family == "Llama"
    assert {f"{layer}.mlp.{n}_proj.weight" for n in ("gate", "down")} <= partners(found)
    assert "model.layers.1.mlp.up_proj.weight" not in partners(found)
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= partners(found)
    found = anchor(weights, f"{layer}.self_attn.q_proj.weight", heads=8)
    assert {f"{layer}.self_attn.{n}_proj.weight" for n in "kvo"} <= partners(found)
    assert not {n for n in partners(found) if ".mlp." in n and ".1." in n}


def test_all_vectors_and_small_tensors_are_kept() -> None:
    weights = arrays(architectures.CifarResNet())
    found = anchor(weights, "layer3.0.conv2.weight")
    small = {n for n, v in weights.items() if v.dtype.kind == "f" and (v.ndim < 2 or v.size < 8192)}
    assert small <= partners(found)
    assert "layer3.0.conv1.weight" in partners(found)  # makes what conv2 reads
    assert "layer3.1.conv1.weight" not in partners(found)
    assert not {n for n in found if n.endswith("num_batches_tracked")}


def test_marked_tensors_come_first_and_in_order() -> None:
    weights = arrays(architectures.Vgg(norm=True))
    names = ("features.4.weight", "classifier.1.weight", "features.8.weight")
    found = anchor(weights, *names)
    assert tuple(e.name for e in found.entries[:3]) == names
    assert found.placement == placement(weights, *names)
    rest = [e.name for e in found.entries[3:]]
    assert rest.index("features.0.weight") < rest.index("features.5.weight")


def test_of_a_vocabulary_an_even_sample_is_kept() -> None:
    rng = np.random.default_rng(0)
    weights = arrays(architectures.llama())
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = rng.standard_normal((5000, 64)).astype(np.float32)
    found = anchor(weights, "model.layers.0.mlp.up_proj.weight", heads=8)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        entry = found.entry(name)
        assert entry.rows == LEAST_ROWS == len(found[name])
        original = weights[name][entry.kept_rows]
        near = found[name]
        assert float((original * near).sum()) > 0.98 * np.linalg.norm(original) * np.linalg.norm(
            near
        )


def test_a_sample_is_the_same_from_pieces_of_a_file(tmp_path: Path) -> None:
    weights = {"wte.weight": gaussian(9000, 300), "w.weight": gaussian(128, 128)}
    marks = AnchorRecipe(placement(weights, "w.weight"))
    file = saved(tmp_path / "m.safetensors", **weights)
    stored = build(OriginalCheckpoint(open_checkpoint(file)), marks)
    assert stored.entry("wte.weight").rows == LEAST_ROWS
    assert stored.digest == build(OriginalArrays(weights), marks).digest


def test_tied_tensors_are_kept_once(tmp_path: Path) -> None:
    model = architectures.gpt2()
    weights = arrays(model)
    name = "transformer.h.0.mlp.c_fc.weight"
    for given in (weights, {n: v.copy() for n, v in weights.items()}):
        found = anchor(given, name, heads=4)
        assert found.skeleton.tied == (("lm_head.weight", "transformer.wte.weight"),)
        assert "transformer.wte.weight" in found
        assert "lm_head.weight" not in found
    torch.save(model.state_dict(), tmp_path / "m.bin")
    recipe = AnchorRecipe(placement(weights, name), 4)
    file = OriginalCheckpoint(open_checkpoint(tmp_path / "m.bin"))
    assert build(file, recipe).digest == anchor(weights, name, heads=4).digest


def test_unknown_networks_keep_vectors_and_embeddings() -> None:
    weights = {
        "odd.first": gaussian(128, 128),
        "odd.second": gaussian(128, 128),
        "odd.bias": gaussian(128),
        "token_embed.table": gaussian(4000, 64),
    }
    found = anchor(weights, "odd.first")
    assert found.skeleton.structure is None
    assert partners(found) == {"odd.bias", "token_embed.table"}
    assert found.entry("token_embed.table").rows == LEAST_ROWS


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_float_is_taken(tmp_path: Path, dtype: type) -> None:
    given = {"w": gaussian(128, 128), "b": gaussian(4)}
    weights: dict[str, np.ndarray] = {name: value.astype(dtype) for name, value in given.items()}
    save_file(weights, tmp_path / "m.safetensors")
    recipe = AnchorRecipe((("w", (128, 128)),))
    found = build(OriginalCheckpoint(open_checkpoint(tmp_path / "m.safetensors")), recipe)
    assert found.digest == build(OriginalArrays(weights), recipe).digest
    assert float(np.abs(found["b"] - weights["b"]).max()) < 1e-3


def test_a_mask_of_infinities_is_left_out_and_a_marked_one_refused() -> None:
    weights = {"w": gaussian(128, 128), "mask": np.full(10, -np.inf, np.float32)}
    assert partners(anchor(weights, "w")) == set()
    weights["w"][3, 4] = np.nan
    with pytest.raises(NonFiniteError, match="'w'"):
        anchor(weights, "w")


def test_what_is_not_there_or_cannot_be_read() -> None:
    weights = {"w": gaussian(128, 128), "ids": np.zeros((128, 128), np.int32)}
    with pytest.raises(UnknownTensorError):
        build(OriginalArrays(weights), AnchorRecipe((("v", (128, 128)),)))
    with pytest.raises(UnknownTensorError):
        build(OriginalArrays(weights), AnchorRecipe((("w", (128, 64)),)))
    with pytest.raises(UnsuitableTensorError):
        build(OriginalArrays(weights), AnchorRecipe((("ids", (128, 128)),)))


@pytest.mark.parametrize("heads", [-1, 1025, True, 2.0])
def test_absurd_heads(heads: Any) -> None:
    with pytest.raises(ParameterError):
        AnchorRecipe((("w", (2, 2)),), heads)


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"num_attention_heads": 12}, 12),
        ({"n_head": 4}, 4),
        ({"text_config": {"num_attention_heads": 32}}, 32),
        ({"num_attention_heads": "12"}, 0),
        ({"num_attention_heads": -3}, 0),
        ({"num_attention_heads": True}, 0),
        ({"num_attention_heads": 10**9}, 0),
        ([], 0),
        ({}, 0),
    ],
)
def test_heads_from_a_configuration(tmp_path: Path, config: Any, heads: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert heads_of(Checkpoint(tmp_path, "folder", {})) == heads
    assert heads_of(Checkpoint(tmp_path / "model.safetensors", "safetensors", {})) == heads


@pytest.mark.parametrize(("told", "heads"), [(8, 8), (0, 12), (-1, 12), (10**9, 12)])
def test_heads_that_the_file_tells_of_come_first(tmp_path: Path, told: int, heads: int) -> None:
    (tmp_path / "config.json").write_text('{"n_head": 12}')
    checkpoint = Checkpoint(tmp_path / "model.gguf", "gguf", {})
    checkpoint.heads = told
    assert heads_of(checkpoint) == heads


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a": ' + " " * (1 << 20) + "1}"])
def test_an_unusable_configuration(tmp_path: Path, text: str) -> None:
    checkpoint = Checkpoint(tmp_path, "folder", {})
    assert heads_of(checkpoint) == 0
    (tmp_path / "config.json").write_text(text)
    assert heads_of(checkpoint) == 0


def claim_for(found: Anchor) -> Claim:
    key = Key.new()
    named = ClaimedAnchor(found.digest.hex(), found.bits, found.skeleton.heads)
    blank = Digest("", {})
    return Claim(
        key.fingerprint, key.commitment, key.parameters, found.placement, blank, anchor=named
    )


def test_the_original_serves_as_well(tmp_path: Path) -> None:
    model = architectures.llama()
    save_model(model, str(tmp_path / "m.safetensors"))
    weights = arrays(model)
    found = anchor(weights, "model.layers.0.mlp.up_proj.weight", heads=8, bits=3)
    again = anchor_from_original(tmp_path / "m.safetensors", claim_for(found))
    assert again.digest == found.digest
    for name in found:
        np.testing.assert_array_equal(found[name], again[name])


def test_another_original_is_refused(tmp_path: Path) -> None:
    weights = {"w": gaussian(128, 128), "b": gaussian(4)}
    claim = claim_for(anchor(weights, "w"))
    file = tmp_path / "m.safetensors"
    others = [
        {**weights, "b": gaussian(4, seed=9)},
        {**weights, "w": gaussian(128, 128, seed=1)},
        {**weights, "w": gaussian(128, 64)},
        {"b": weights["b"]},
    ]
    for other in others:
        with pytest.raises(AnchorMismatchError):
            anchor_from_original(saved(file, **other), claim)
    unnamed = Claim(**{**claim.__dict__, "anchor": None})
    with pytest.raises(AnchorMismatchError, match="names no anchor"):
        anchor_from_original(saved(file, **weights), unnamed)
    assert anchor_from_original(file, claim).digest == claim.anchor_digest


def test_large_patches_at_the_edge_of_a_stream_are_not_kept() -> None:
    patches = "vit.embeddings.patch_embeddings.projection.weight"
    weights = arrays(families.vision("ViTForImageClassification"))
    marked = next(n for n in weights if n.endswith("layer.0.attention.output.dense.weight"))
    assert patches in partners(anchor(weights, marked, heads=8))
    weights[patches] = gaussian(64, 3, 32, 32)
    assert patches not in partners(anchor(weights, marked, heads=8))


def test_what_was_decoded_is_kept_as_long_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a.weight", "b.weight", "c.weight"]
    weights = {name: gaussian(64, 32, seed=place) for place, name in enumerate(names)}
    found = anchor(weights, *names)
    decoded: list[str] = []
    decode = found._decode

    def counted(entry: AnchorEntry, rows: Indices | None) -> Array:
        decoded.append(entry.name)
        return decode(entry, rows)

    monkeypatch.setattr(found, "_decode", counted)
    monkeypatch.setattr("neuralmark.anchors.anchor.KEPT_BYTES", 2 * weights["a.weight"].nbytes)
    first = {name: found[name].copy() for name in names}
    rows = np.array([3, 5])
    assert np.array_equal(found["c.weight"], first["c.weight"])
    assert np.array_equal(found.part("c.weight", (rows, None)), first["c.weight"][rows])
    assert decoded == names
    assert np.array_equal(found.part("a.weight", (rows, None)), first["a.weight"][rows])
    assert np.array_equal(found["a.weight"], first["a.weight"])
    assert decoded == [*names, "a.weight", "a.weight"]
    with pytest.raises(ValueError, match="read-only"):
        found["a.weight"][0] = 0


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    weights = {"w": gaussian(128, 128), "b": gaussian(4)}
    recipe = AnchorRecipe(placement(weights, "w"))
    build(OriginalArrays(weights), recipe, None, lambda *now: told.append(now))
    size = 4 * (128 * 128 + 4)
    assert told[-1] == ("making the anchor", size, size)


def test_a_claims_anchor_is_opened_from_its_file_or_from_the_original(tmp_path: Path) -> None:
    weights = {"w": gaussian(128, 128), "b": gaussian(4)}
    key = Key.new()
    original = saved(tmp_path / "m.safetensors", **weights)
    recipe, source = AnchorRecipe(placement(weights, "w")), OriginalArrays(weights)
    file = tmp_path / "m.anchor"
    made = write_anchor(file, key, lambda sink: build(source, recipe, sink))
    claim = claim_for(made)
    for path in (file, original):
        assert open_anchor(path, key, claim).digest == made.digest
    other = replace(claim, anchor=ClaimedAnchor("0" * 128, 4))
    elsewhere = replace(claim, placement=(("b", (4,)),))
    for wrong in (other, elsewhere, replace(claim, anchor=None)):
        for path in (file, original):
            with pytest.raises(AnchorMismatchError):
                open_anchor(path, key, wrong)
