"""Every family of transformers is known well enough to be rebuilt with the same function."""

import numpy as np
import pytest

from neuralmark.errors import AttackError, UnknownFamilyError
from neuralmark.structures import structure_from_shapes, structure_of

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.attacks.engine.launch import launch  # noqa: E402
from neuralmark.attacks.engine.subject import subject_of  # noqa: E402
from neuralmark.attacks.restructure import Manner, Restructure  # noqa: E402
from tests.support import families  # noqa: E402

GATED = ("llama", "tied llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3")
FREE = ("llama", "mistral", "qwen2", "qwen3", "gemma")
"""Whose residual stream can be rotated."""
WAYS = ("permute", "rotate", "rescale", "flip")


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", families.FAMILIES)
def test_the_function_stays(name: str, how: Manner) -> None:
    model, given = families.FAMILIES[name](), families.inputs(name)
    if how in ("rescale", "flip") and name not in GATED:
        with pytest.raises(AttackError, match=f"{how} needs"):
            launch(Restructure(how), model)
        return
    before = families.outputs(model, given)
    result = launch(Restructure(how), model)
    assert result.model is not None
    for one, other in zip(before, families.outputs(result.model, given), strict=True):
        assert float((one - other).abs().max()) < 2e-4 * max(1.0, float(one.abs().max()))
    assert result.change > 0.1


@pytest.mark.parametrize("name", families.FAMILIES)
def test_the_map_is_whole(name: str) -> None:
    model = families.FAMILIES[name]()
    found = structure_of(subject_of(model).weights, model)
    assert len(found.attentions) == 2
    assert {layer.size for layer in found.attentions} <= {8, 16}
    assert (found.stream is not None) == (name in FREE)
    stream = found.groups[-1]
    assert stream.kind == "stream"
    assert stream.movable
    assert all(layer.tensors() & stream.tensors() for layer in found.attentions)
    gains = {gain for gain, _ in found.gains}
    assert gains <= stream.tensors()
    assert bool(gains) != (found.family == "BERT")
    assert (found.vocabulary is None) == (name in families.VISION)


def test_norms_inside_heads_tell_their_size() -> None:
    table = subject_of(families.FAMILIES["qwen3"]()).weights
    found = structure_of(table)
    assert [layer.size for layer in found.attentions] == [16, 16]
    assert all(layer.normed and layer.rotary for layer in found.attentions)
    assert not any("queries" in pair.name for pair in found.pairs)
    wide = {name: value.shape for name, value in table.items()}
    for layer in range(2):
        wide[f"model.layers.{layer}.self_attn.q_norm.weight"] = (128,)
    with pytest.raises(UnknownFamilyError, match="norm of single heads"):
        structure_from_shapes(wide)


@pytest.mark.parametrize("name", ["bert words", "vit", "gemma2", "torchvision vit"])
def test_something_more_is_refused(name: str) -> None:
    table = dict(subject_of(families.FAMILIES[name]()).weights)
    kept = dict(table)
    table["adapter.up.weight"] = np.ones((4, 4), np.float32)
    with pytest.raises(UnknownFamilyError, match=r"adapter\.up"):
        structure_of(table)
    last = next(n for n in kept if n.endswith(("output.dense.bias", "mlp.3.bias", "v_proj.weight")))
    del kept[last]
    with pytest.raises(UnknownFamilyError, match="only a part"):
        structure_of(kept)


@pytest.mark.parametrize("name", ["BertModel", "ViTModel"])
def test_a_model_without_its_head_keeps_its_stream(name: str) -> None:
    model = families.vision(name) if name == "ViTModel" else families.encoder(name)
    found = structure_of(subject_of(model).weights, model)
    assert not found.groups[-1].movable
    given = families.inputs("vit" if name == "ViTModel" else "bert words")
    before = families.outputs(model, given)
    result = launch(Restructure("permute"), model)
    assert result.model is not None
    for one, other in zip(before, families.outputs(result.model, given), strict=True):
        assert float((one - other).abs().max()) < 2e-4 * max(1.0, float(one.abs().max()))
