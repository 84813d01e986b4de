"""Which tensors can carry a mark, and which auto takes."""

import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from neuralmark.checkpoints import TensorInfo
from neuralmark.core.key import Parameters
from neuralmark.errors import TooFewCarriersError, UnknownTensorError, UnsuitableTensorError
from neuralmark.placement import (
    auto,
    canonical_name,
    catalogue_of,
    fitting_parameters,
    natural,
    select,
)

LLAMA = [
    TensorInfo("model.embed_tokens.weight", "BF16", (32000, 4096)),
    *(
        TensorInfo(f"model.layers.{i}.{part}.weight", "BF16", shape)
        for i in range(12)
        for part, shape in {
            "self_attn.q_proj": (4096, 4096),
            "mlp.down_proj": (4096, 11008),
            "mlp.up_proj": (11008, 4096),
            "input_layernorm": (4096,),
        }.items()
    ),
    TensorInfo("model.norm.weight", "BF16", (4096,)),
    TensorInfo("lm_head.weight", "BF16", (32000, 4096)),
]
RESNET = [
    TensorInfo("module.conv1.weight", "F32", (16, 3, 3, 3)),
    *(
        TensorInfo(f"module.layer{i}.{j}.conv{c}.weight", "F32", (width, width, 3, 3))
        for i, width in ((1, 16), (2, 32), (3, 64))
        for j in range(3)
        for c in (1, 2)
    ),
    TensorInfo("module.linear.weight", "F32", (10, 64)),
]


def chosen(infos: list[TensorInfo], parameters: Parameters | None = None) -> list[str]:
    choice = auto(catalogue_of(infos), parameters or Parameters())
    return [tensor.name for tensor in choice.tensors]


def test_auto_takes_one_large_inner_tensor_where_one_is_enough() -> None:
    assert chosen(LLAMA) == ["model.layers.0.mlp.down_proj.weight"]


def test_auto_takes_all_that_are_worth_it_in_a_small_network() -> None:
    names = chosen(RESNET)
    assert names == [
        f"layer{i}.{j}.conv{c}.weight" for i in (2, 3) for j in range(3) for c in (1, 2)
    ]


def test_auto_depends_on_neither_order_nor_precision_nor_wrappers() -> None:
    shuffled = random.Random(1).sample(RESNET, len(RESNET))
    halved = [TensorInfo(i.name.removeprefix("module."), "F16", i.shape) for i in RESNET]
    assert chosen(shuffled) == chosen(RESNET) == chosen(halved)


def test_auto_leaves_outputs_embeddings_norms_and_adapters_alone() -> None:
    shape = (2048, 2048)
    edges = [
        "transformer.wte.weight",
        "transformer.wpe.weight",
        "bert.embeddings.word_embeddings.weight",
        "classifier.1.weight",
        "fc.weight",
        "model.decoder.embed_positions.weight",
        "encoder.layers.0.norm1.weight",
        "layers.0.q_proj.lora_A.default.weight",
    ]
    inner = ["h.0.mlp.fc1.weight", "encoder.layer.0.output.dense.weight", "blocks.0.linear.weight"]
    infos = [TensorInfo(name, "F32", shape) for name in edges + inner]
    assert sorted(chosen(infos)) == sorted(inner)
    assert chosen([TensorInfo("linear.weight", "F32", shape)]) == ["linear.weight"]


def test_wrapper_prefixes_are_dropped() -> None:
    assert canonical_name("module.module.a.weight") == "a.weight"
    assert canonical_name("base_model.model.model.layers.0.q.base_layer.weight") == (
        "model.layers.0.q.weight"
    )
    assert canonical_name("_fsdp_wrapped_module.x._checkpoint_wrapped_module.w") == "x.w"
    assert canonical_name("module.") == "module."


def test_names_that_would_collide_keep_their_stored_form() -> None:
    infos = [TensorInfo("a", "F32", (3,)), TensorInfo("module.a", "F32", (3,))]
    assert [tensor.name for tensor in catalogue_of(infos)] == ["a", "module.a"]


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (TensorInfo("a.qweight", "I32", (512, 4096)), "dequantise"),
        (TensorInfo("a.weight", "U8", (4096, 4096)), "dequantise"),
        (TensorInfo("mask", "BOOL", (10,)), "BOOL"),
        (TensorInfo("a.scales", "F16", (512, 4096)), "scales"),
        (TensorInfo("a.weight_scale_inv", "F32", (64, 64)), "scales"),
        (TensorInfo("empty", "F32", (0, 7)), "no elements"),
        (TensorInfo("b.weight", "F8_E4M3", (512, 512)), "'b.weight_scale_inv'"),
        (TensorInfo("c.weight", "F8_E4M3", (512, 512)), "'c.scale_weight'"),
    ],
)
def test_what_cannot_carry_a_mark_says_why(info: TensorInfo, why: str) -> None:
    scales = [
        TensorInfo("b.weight_scale_inv", "F32", (4, 4)),
        TensorInfo("c.scale_weight", "F32", (1,)),
    ]
    tensors = catalogue_of([info, *(scale for scale in scales if scale.name != info.name)])
    assert why in (tensors[0].obstacle or "")
    with pytest.raises(UnsuitableTensorError):
        select(tensors, [info.name])
    assert tensors[0] not in auto(tensors, Parameters()).tensors


def test_unscaled_float8_is_usable() -> None:
    (tensor,) = catalogue_of([TensorInfo("a.weight", "F8_E5M2", (512, 512))])
    assert tensor.obstacle is None


def test_select_takes_stored_and_canonical_names_in_any_order() -> None:
    tensors = catalogue_of(RESNET)
    one = select(tensors, ["module.layer3.0.conv1.weight", "layer2.0.conv1.weight"])
    two = select(tensors, ["layer2.0.conv1.weight", "layer3.0.conv1.weight"])
    assert one == two
    with pytest.raises(UnknownTensorError, match="did you mean"):
        select(tensors, ["layer3.0.conv9.weight"])
    with pytest.raises(UnknownTensorError, match="twice"):
        select(tensors, ["layer2.0.conv1.weight", "module.layer2.0.conv1.weight"])


def test_natural_order() -> None:
    names = ["l.10.w", "l.9.w", "l.w", "a²", "a1"]
    assert sorted(names, key=natural) == ["a1", "a²", "l.9.w", "l.10.w", "l.w"]


@pytest.mark.parametrize(
    ("side", "expected"),
    [(600, (256, 512, 4)), (180, (256, 512, 1)), (120, (256, 320, 1)), (100, (160, 256, 1))],
)
def test_parameters_are_fitted_to_small_models(
    tmp_path: Path, side: int, expected: tuple[int, int, int]
) -> None:
    save_file({"a.weight": np.zeros((side, side), np.float32)}, tmp_path / "m.safetensors")
    fitted, why = fitting_parameters(tmp_path / "m.safetensors", None, None, None)
    assert (fitted.bits, fitted.pools, fitted.rounds) == expected
    assert f"{fitted.pools} pools" in why
    with pytest.raises(TooFewCarriersError, match="larger model"):
        fitting_parameters(tmp_path / "m.safetensors", 256, 65536, None)
