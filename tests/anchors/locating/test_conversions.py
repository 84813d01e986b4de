"""Every conversion of every kind of network: each marked tensor is found where it went."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.anchors.anchor import Anchor  # noqa: E402
from neuralmark.anchors.locating import locate  # noqa: E402
from neuralmark.anchors.locating.suspect import TableWeights  # noqa: E402
from neuralmark.attacks.convert import WAYS  # noqa: E402
from neuralmark.errors import AttackError  # noqa: E402
from tests.support import architectures, families  # noqa: E402
from tests.support.anchored import Table, anchor_of, arrays, converted, found_in  # noqa: E402

MAKERS: dict[str, Callable[[], Any]] = {
    "resnet": lambda: architectures.lived_in(architectures.CifarResNet(2)),
    "vgg": lambda: architectures.lived_in(architectures.Vgg(norm=True)),
    "gpt2": architectures.gpt2,
    "llama": architectures.llama,
    "bert": lambda: families.encoder("BertForMaskedLM"),
    "vit": lambda: families.vision("ViTForImageClassification"),
}
HEADS = {"gpt2": 4, "llama": 8, "bert": 8, "vit": 8}
CONVOLUTIONS = ("resnet", "vgg")
ALSO = {
    "rotary, fused by heads, stacked": ("rotary", "fuse-heads", "stack-layers", "rename"),
    "fused, turned": ("fuse-qkv", "transpose", "rename"),
    "folded, sharded": ("fold-norms", "shard-rows", "rename"),
    "masked, kernels last": ("hwio", "prune-mask"),
}
Each = tuple[str, tuple[str, ...]]
EVERY: list[Each] = [(name, (how,)) for name in MAKERS for how in WAYS]
EVERY += [(name, hows) for name in ("llama", "vgg") for hows in ALSO.values()]
LOST = {"drop"}
"""Conversions after which not all is there."""


@cache
def network(name: str) -> tuple[Table, Anchor]:
    weights = arrays(MAKERS[name]())
    return weights, anchor_of(weights, HEADS.get(name, 0))


@pytest.mark.parametrize(("name", "hows"), EVERY)
def test_found(name: str, hows: tuple[str, ...]) -> None:
    weights, anchor = network(name)
    try:
        suspect = converted(weights, *hows, heads=HEADS.get(name, 0))
    except AttackError:
        assert (name, hows) in REFUSED or any((name, (how,)) in REFUSED for how in hows)
        return
    found = found_in(suspect, anchor)
    sought = [n for n, shape in anchor.placement if min(shape) > 2]
    if hows[0] in LOST:
        direct = {n for n in sought if n in found and found[n].direct}
        assert len(sought) / 2 < len(direct) < len(sought)
        return
    assert {n for n in sought if n not in found or not found[n].direct} == set()
    assert all(found[n].cosine > 0.9 for n in sought)
    assert all(found[n].view.read(TableWeights(suspect)).shape == weights[n].shape for n in sought)


def refused() -> set[Each]:
    """What a network has nothing for."""
    attention = ("fuse-qkv", "fuse-heads", "rotary", "split-qkv", "lora", "lora-merged")
    gates = ("fuse-gate-up", "fuse-up-gate")
    out: set[Each] = {(name, (how,)) for name in CONVOLUTIONS for how in (*attention, *gates)}
    out -= {("vgg", ("lora",)), ("vgg", ("lora-merged",))}
    out |= {(name, (how,)) for name in ("gpt2", "bert", "vit") for how in gates}
    out |= {(name, (how,)) for name in ("gpt2", "llama", "bert") for how in ("ohwi", "flatten")}
    out |= {(name, ("rotary",)) for name in ("gpt2", "bert", "vit")}
    out |= {("gpt2", (how,)) for how in ("fuse-qkv", "fuse-heads")}
    out |= {(name, ("split-qkv",)) for name in ("llama", "bert", "vit")}
    out |= {("bert", ("fold-norms",)), ("vgg", ("stack-layers",))}
    return out


REFUSED = refused()

WORDS = {
    "prefix": {"renamed"},
    "transpose": {"transposed"},
    "flatten": {"reshaped"},
    "ohwi": {"axes reordered"},
    "stack-layers": {"one of a stack"},
    "fuse-qkv": {"slice of fused tensor"},
    "shard-rows": {"4 pieces joined"},
    "rotary": {"rotary order changed"},
    "prune-mask": {"pruning mask applied"},
    "weight-norm": {"weight norm applied"},
    "factor": {"factored into two"},
}


@pytest.mark.parametrize("how", WORDS)
def test_what_was_done_is_told(how: str) -> None:
    name = "llama" if how in ("fuse-qkv", "rotary") else "vit"
    weights, anchor = network(name)
    suspect = converted(weights, how, heads=8)
    found = found_in(suspect, anchor)
    assert WORDS[how] <= {change for each in found.values() for change in each.changes}
    changed = [each for each in found.values() if each.view.changes]
    assert all(each.view.describe() not in weights for each in changed)


def test_nothing_done_is_nothing_told() -> None:
    weights, anchor = network("bert")
    assert {each.changes for each in found_in(weights, anchor).values()} == {()}


def test_adapters_stay_beside_unless_the_anchor_has_them_in() -> None:
    weights, anchor = network("llama")
    suspect = converted(weights, "lora", heads=8)
    found = found_in(suspect, anchor)
    assert not any("adapter added" in each.changes for each in found.values())
    layer = "model.layers.0.mlp.up_proj.weight"
    stem = "base_model.model.model.layers.0.mlp.up_proj"
    update = suspect[f"{stem}.lora_B.default.weight"] @ suspect[f"{stem}.lora_A.default.weight"]
    merged = weights | {layer: weights[layer] + 5 * update}
    found = found_in(suspect, anchor_of(merged, 8))
    assert found[layer].changes == ("renamed", "adapter added")
    assert found[layer].cosine > 0.97


@pytest.mark.parametrize("how", ["fuse-qkv", "fuse-heads", "stack-layers", "rotary", "renumber"])
def test_vectors_are_found_where_their_layers_went(how: str) -> None:
    weights, anchor = network("llama")
    suspect = converted(weights, how, heads=8)
    found = locate(TableWeights(suspect), anchor)
    for name in weights:
        if name.endswith("bias"):
            read = found[name].view.read(TableWeights(suspect))
            assert abs(read - weights[name]).max() == 0, name


def test_names_can_be_chosen() -> None:
    weights, anchor = network("vgg")
    names = {"features.0.weight", "classifier.1.weight"}
    assert locate(TableWeights(weights), anchor, names).keys() == names
