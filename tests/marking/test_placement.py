"""Which tensors can carry a mark, and which auto takes."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from neuralmark import schemes
from neuralmark.checkpoints import TensorInfo
from neuralmark.core.key import Filter, Parameters
from neuralmark.core.names import canonical_name, natural
from neuralmark.errors import (
    ParameterError,
    TooFewCarriersError,
    UnknownTensorError,
    UnsuitableTensorError,
)
from neuralmark.marking.options import SPREADS, Spread
from neuralmark.marking.placement import auto, catalogue_of, fitting_parameters, listed, select

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


PARTS = {"attn.weight": (2048, 2048), "up.weight": (2048, 1024), "down.weight": (1024, 2048)}
DEEP = [
    TensorInfo("embed.weight", "BF16", (50_000, 2048)),
    *(
        TensorInfo(f"blocks.{i}.{part}", "BF16", shape)
        for i in range(60)
        for part, shape in PARTS.items()
    ),
    *(TensorInfo(f"blocks.{i}.norm.weight", "BF16", (2048,)) for i in range(60)),
]
"""60 layers of 8.4 million weights in three matrices each."""


def chosen(
    infos: list[TensorInfo], parameters: Parameters | None = None, spread: Spread = "wide"
) -> list[str]:
    choice = auto(catalogue_of(infos), parameters or Parameters(), spread)
    return [tensor.name for tensor in choice.tensors]


def depths(names: list[str]) -> list[int]:
    return [int(name.split(".")[1]) for name in names]


def weights_in(names: list[str], infos: list[TensorInfo]) -> int:
    return sum(info.size for info in infos if info.name in names)


def test_quick_takes_one_large_inner_tensor_where_one_is_enough() -> None:
    assert chosen(LLAMA, spread="quick") == ["model.layers.0.mlp.down_proj.weight"]


def test_quick_takes_the_few_largest() -> None:
    assert chosen(DEEP, spread="quick") == [f"blocks.{i}.attn.weight" for i in range(4)]
    few = Parameters(bits=160, pools=200)
    assert chosen(DEEP, few, "quick") == [f"blocks.{i}.attn.weight" for i in range(2)]


def test_all_takes_every_inner_tensor() -> None:
    names = chosen(DEEP, spread="all")
    assert sorted(names) == sorted(f"blocks.{i}.{part}" for i in range(60) for part in PARTS)
    assert names == sorted(names, key=natural)


def test_wide_takes_enough_and_no_more() -> None:
    for parameters in (Parameters(), Parameters(512, 1024), Parameters(160, 200)):
        names = chosen(DEEP, parameters)
        total = weights_in(names, DEEP)
        wanted = min(parameters.pools << 18, weights_in(chosen(DEEP, spread="all"), DEEP))
        assert wanted <= total < wanted + 2048 * 2048
    assert len(chosen(DEEP)) == len(set(chosen(DEEP)))


@pytest.mark.parametrize("pools", [64, 200, 512, 900, 1500])
def test_wide_is_spread_evenly_over_the_depths_and_the_kinds_of_layers(pools: int) -> None:
    names = chosen(DEEP, Parameters(pools // 2, pools))
    bands = Counter(depth // 10 for depth in depths(names))
    assert max(bands[i] for i in range(6)) - min(bands[i] for i in range(6)) <= 2
    assert min(depths(names)) <= 60 * 3 / len(names)
    assert max(depths(names)) >= 59 - 60 * 3 / len(names)
    kinds = Counter(name.split(".")[2] for name in names)
    if len(names) >= 20:
        assert (
            max(kinds.values()) - min(kinds[part.split(".")[0]] for part in PARTS) <= len(names) / 4
        )


@pytest.mark.parametrize("spread", SPREADS)
def test_no_spread_depends_on_order_precision_or_wrappers(spread: Spread) -> None:
    usual = chosen(DEEP, spread=spread)
    for seed in range(5):
        shuffled = random.Random(seed).sample(DEEP, len(DEEP))
        assert chosen(shuffled, spread=spread) == usual
    wrapped = [TensorInfo(f"module.{i.name}", "F32", i.shape) for i in DEEP]
    assert chosen(wrapped, spread=spread) == usual


def test_small_models_are_taken_as_a_whole_under_every_spread() -> None:
    assert len({tuple(chosen(RESNET, spread=spread)) for spread in SPREADS}) == 1


def test_the_reason_names_the_spread_and_what_it_takes() -> None:
    tensors = catalogue_of(DEEP)
    wide, quick, everything = (auto(tensors, Parameters(), spread).why for spread in SPREADS)
    assert wide.startswith(f"wide: {len(chosen(DEEP))} of 180 inner weight tensors, ")
    assert quick.startswith("quick: 4 of 180 largest inner weight tensors, 16,777,216 weights")
    assert everything.startswith("all: all inner weight tensors, 503,316,480 weights")
    assert all(why.endswith(" carriers per pool") for why in (wide, quick, everything))


def test_an_unknown_spread_is_refused() -> None:
    with pytest.raises(ParameterError, match="wide, quick, all"):
        auto(catalogue_of(DEEP), Parameters(), "narrow")  # type: ignore[arg-type]


def test_obstacles_and_tied_tensors_are_passed_over_under_every_spread() -> None:
    infos = [
        *DEEP[:7],
        TensorInfo("blocks.7.attn.weight", "I8", (8192, 8192)),
        TensorInfo("blocks.7.up.weight", "F32", (8192, 8192)),
    ]
    tensors = [
        replace(tensor, tied=tensor.name == "blocks.7.up.weight") for tensor in catalogue_of(infos)
    ]
    for spread in SPREADS:
        names = [tensor.name for tensor in auto(tensors, Parameters(), spread).tensors]
        assert names
        assert not [name for name in names if name.startswith("blocks.7")]


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
    (plain,) = catalogue_of([TensorInfo("a.weight", "F32", (8, 8))])
    assert select([plain], ["module.a.weight"]) == (plain,)
    with pytest.raises(UnknownTensorError, match="did you mean"):
        select(tensors, ["layer3.0.conv9.weight"])
    with pytest.raises(UnknownTensorError, match="'neuralmark inspect MODEL' lists them"):
        select(tensors, ["?"])
    with pytest.raises(UnknownTensorError, match="twice"):
        select(tensors, ["layer2.0.conv1.weight", "module.layer2.0.conv1.weight"])


def test_natural_order() -> None:
    names = ["l.10.w", "l.9.w", "l.w", "a²", "a1"]
    assert sorted(names, key=natural) == ["a1", "a²", "l.9.w", "l.10.w", "l.w"]


@pytest.mark.parametrize(
    ("filter_", "side", "expected"),
    [
        ("stream", 600, (256, 512, 1)),
        ("stream", 180, (256, 512, 1)),
        ("stream", 120, (256, 320, 1)),
        ("stream", 100, (160, 256, 1)),
        ("tiled", 600, (256, 512, 4)),
        ("tiled", 300, (256, 512, 3)),
        ("tiled", 180, (256, 512, 1)),
        ("tiled", 120, (256, 320, 1)),
    ],
)
def test_parameters_are_fitted_to_small_models(
    tmp_path: Path, filter_: Filter, side: int, expected: tuple[int, int, int]
) -> None:
    save_file({"a.weight": np.zeros((side, side), np.float32)}, tmp_path / "m.safetensors")
    fitted, why = fitting_parameters(tmp_path / "m.safetensors", None, None, None, filter_)
    assert (fitted.bits, fitted.pools, fitted.rounds) == expected
    assert fitted.filter == filter_
    assert f"{fitted.pools} pools" in why
    with pytest.raises(TooFewCarriersError, match=r"need 2,097,152 weights .* larger model"):
        fitting_parameters(tmp_path / "m.safetensors", 256, 65536, None, filter_)


def test_tensors_of_8192_weights_in_two_dimensions_are_the_smallest() -> None:
    shapes = {"a": (64, 128), "b": (1, 8192), "c": (8192,), "d": (64, 127), "e": (2, 64, 64)}
    infos = [TensorInfo(f"{name}.weight", "F32", shape) for name, shape in shapes.items()]
    assert chosen(infos, Parameters(8, 16)) == ["a.weight", "b.weight", "e.weight"]
    assert auto(catalogue_of(infos[2:4]), Parameters(8, 16)).tensors == ()


def test_equal_sizes_are_taken_in_the_order_of_their_names() -> None:
    infos = [TensorInfo(f"l.{i}.weight", "F32", (512, 512)) for i in (10, 2, 1)]
    infos.append(TensorInfo("l.0.weight", "F32", (64, 128)))
    assert chosen(infos, Parameters(8, 16), "quick") == ["l.1.weight", "l.2.weight"]


@pytest.mark.parametrize(
    ("name", "edge"),
    [
        ("head.weight", True),
        ("model.head.weight", True),
        ("transformer.head.weight", True),
        ("model.score", False),
        ("encoder.head.weight", False),
        ("Classifier.weight", True),
        ("blocks.0.norm.a.b.weight", False),
        ("blocks.0.norm.a.weight", True),
        ("blocks.0.normal.weight", True),
        ("blocks.0.proj.weight", False),
    ],
)
def test_edges_are_told_by_their_names(name: str, edge: bool) -> None:
    shape = (128, 128)
    infos = [TensorInfo(name, "F32", shape), TensorInfo("blocks.9.inner.weight", "F32", shape)]
    assert (name in chosen(infos)) != edge


def test_schemes_for_single_tensors_take_the_largest_that_fits() -> None:
    infos = [TensorInfo(f"l.{i}.weight", "F32", (128 * i, 128)) for i in (1, 3, 2)]
    parameters = schemes.parameters("vanillamark", bits=64)
    assert not schemes.get("vanillamark").spreads(parameters)
    assert chosen(infos, parameters) == ["l.3.weight"]
    assert chosen([], parameters) == []


@pytest.mark.parametrize("given", [None, "auto"])
def test_no_list_of_tensors_is_no_choice(given: str | None) -> None:
    assert listed(given) is None


def test_lists_of_tensors_as_callers_give_them() -> None:
    assert listed("a.weight") == ["a.weight"]
    assert listed(("a", "b")) == ["a", "b"]
    for wrong in ([], {"a": 1}, ["a", 3], 7):
        with pytest.raises(ParameterError):
            listed(wrong)


@pytest.mark.parametrize("end", ["_scale_inv", "_scale", "_scales", ".scale", ".scales"])
def test_scaled_float8_is_told_by_its_scales(end: str) -> None:
    infos = [
        TensorInfo("a.weight", "F8_E4M3", (512, 512)),
        TensorInfo(f"a.weight{end}", "F32", (4, 4)),
        TensorInfo("b.weight", "F16", (512, 512)),
        TensorInfo(f"b.weight{end}", "F32", (4, 4)),
    ]
    scaled, scale, plain, _ = catalogue_of(infos)
    assert "dequantise" in (scaled.obstacle or "")
    assert "not weights" in (scale.obstacle or "")
    assert plain.obstacle is None


@pytest.mark.parametrize(("size", "hint"), [(64, False), (65, True)])
@pytest.mark.parametrize("dtype", ["I8", "U8", "I32", "U32"])
def test_integers_in_number_may_be_quantised_weights(size: int, hint: bool, dtype: str) -> None:
    (tensor,) = catalogue_of([TensorInfo("a.weight", dtype, (size,))])
    assert tensor.obstacle is not None
    assert ("dequantise" in tensor.obstacle) == hint
    (plain,) = catalogue_of([TensorInfo("a.weight", "I64", (size,))])
    assert "dequantise" not in (plain.obstacle or "")


def test_leading_zeros_do_not_change_the_order_of_numbers() -> None:
    names = ["l.010", "l.9", "l.09", "l.1", "l.x", "l.0"]
    assert sorted(names, key=natural) == ["l.0", "l.1", "l.09", "l.9", "l.010", "l.x"]


def test_parameters_that_are_given_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a.weight": np.zeros((600, 600), np.float32)}, path)
    fitted, _ = fitting_parameters(path, 300, None, None)
    assert (fitted.bits, fitted.pools, fitted.rounds) == (300, 600, 1)
    fitted, _ = fitting_parameters(path, None, 400, 3)
    assert (fitted.bits, fitted.pools, fitted.rounds) == (256, 400, 3)


def test_the_order_through_all_depths_is_the_same_for_ever() -> None:
    """A mark lies where it says; in steps of the golden ratio."""
    infos = [TensorInfo(f"l.{i}.weight", "F32", (1024, 1024)) for i in range(9)]
    for pools, expected in ((4, "0"), (8, "05"), (12, "025"), (16, "0257"), (24, "012457")):
        taken = chosen(infos, Parameters(2, pools))
        assert taken == [f"l.{i}.weight" for i in expected]


def test_a_model_that_is_too_small_is_told_how_many_weights_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a.weight": np.zeros((100, 100), np.float32)}, path)
    with pytest.raises(TooFewCarriersError, match=r"need 51,200 weights at 3 round.* have 10,000;"):
        fitting_parameters(path, 160, 400, 3)


def test_sixteen_carriers_a_pool_are_enough(tmp_path: Path) -> None:
    for side, pools in ((128, 512), (127, 320)):
        path = tmp_path / f"{side}.safetensors"
        save_file({"a.weight": np.zeros((128, side), np.float32)}, path)
        assert fitting_parameters(path, None, None, None)[0].pools == pools


@pytest.mark.parametrize(
    ("weights", "expected"),
    [(128 * 256, (256, 512, 2)), (128 * 128, (160, 256, 2)), (128 * 100, (160, 200, 2))],
)
def test_with_given_rounds_pools_and_bits_give_way(
    tmp_path: Path, weights: int, expected: tuple[int, int, int]
) -> None:
    save_file({"a.weight": np.zeros((weights // 128, 128), np.float32)}, tmp_path / "m.safetensors")
    fitted, _ = fitting_parameters(tmp_path / "m.safetensors", None, None, 2)
    assert (fitted.bits, fitted.pools, fitted.rounds) == expected


@pytest.mark.parametrize("dtype", ["I8", "F8_E4M3"])
@pytest.mark.parametrize("end", [".scale", ".scales", ".SCB"])
def test_scales_of_a_layer_are_those_of_its_integers(dtype: str, end: str) -> None:
    infos = [TensorInfo("a.weight", dtype, (64, 64)), TensorInfo(f"a{end}", "F32", (64,))]
    weight = catalogue_of(infos)[0]
    assert ("scaled by" in (weight.obstacle or "")) == (dtype == "I8")


def test_passports_take_several_layers_where_one_has_too_few_channels() -> None:
    parameters = schemes.parameters("passport-aware", bits=256)
    shapes = {"a.weight": (96, 96, 3, 3), "b.weight": (192, 96, 3, 3), "c.weight": (192, 192, 3, 3)}
    infos = [TensorInfo(name, "F32", shape) for name, shape in shapes.items()]
    chosen = auto(catalogue_of(infos), parameters)
    assert [tensor.name for tensor in chosen.tensors] == ["b.weight", "c.weight"]
    assert "together have a channel for each bit" in chosen.why
    none = auto(catalogue_of(infos[:2]), schemes.parameters("deepipr", bits=320))
    assert not none.tensors
    assert "have 288 together, and the key 320 bits" in none.why
