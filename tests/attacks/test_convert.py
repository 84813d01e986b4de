"""Conversions: the same network under other names, shapes and parts."""

import copy
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import Key, imprint
from neuralmark.errors import AttackError
from tests.support.checks import one_line
from tests.support.models import QUICK, gaussian

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn  # noqa: E402

from neuralmark.attacks.contract import Scene  # noqa: E402
from neuralmark.attacks.convert import WAYS, ConversionWay, Convert  # noqa: E402
from neuralmark.attacks.engine.launch import launch  # noqa: E402
from neuralmark.attacks.engine.save import save_attacked  # noqa: E402
from neuralmark.attacks.restructure import Restructure  # noqa: E402
from tests.support import architectures as models  # noqa: E402
from tests.support.anchored import Table, arrays, converted  # noqa: E402

LLAMA = arrays(models.llama())
RESNET = arrays(models.lived_in(models.CifarResNet(2)))
QKV = "model.layers.0.self_attn.{}_proj.weight"


def test_every_way_is_listed() -> None:
    assert set(WAYS) == set(get_args(ConversionWay))
    assert {each.settings()["how"] for each in Convert.sweep()} == set(WAYS)


def whole(outcome: Any, before: Table) -> Table:
    """The table after an outcome."""
    after = {**before, **outcome.weights}
    for name in outcome.gone:
        del after[name]
    return after


@pytest.mark.parametrize("how", WAYS)
def test_the_scene_stays_and_everything_is_a_number(how: ConversionWay) -> None:
    tables = {"llama": LLAMA, "resnet": RESNET, "gpt2": arrays(models.gpt2())}
    worked = 0
    for table in tables.values():
        kept = {name: value.copy() for name, value in table.items()}
        target = tuple(name for name, value in table.items() if value.ndim > 1)
        scene = Scene(table, target, np.random.default_rng(0))
        try:
            outcome = Convert(how, heads=8).run(scene)
        except AttackError as error:
            one_line(error)
            continue
        worked += 1
        after = whole(outcome, table)
        assert all(value.dtype == np.float32 for value in after.values())
        assert all(np.isfinite(value).all() for value in after.values())
        assert set(outcome.gone) == set(table) - set(after)
        assert table.keys() == kept.keys()
        assert all(np.array_equal(table[name], kept[name]) for name in kept)
    assert worked


def test_new_names_for_the_same_arrays() -> None:
    made = converted(LLAMA, "rename")
    assert not set(made) & set(LLAMA)
    assert sorted(v.tobytes() for v in made.values()) == sorted(v.tobytes() for v in LLAMA.values())
    assert [v.shape for v in made.values()] != [v.shape for v in LLAMA.values()]
    made = converted(LLAMA, "prefix")
    assert all(np.array_equal(made[f"student.backbone.{n}"], v) for n, v in LLAMA.items())


def test_layouts_of_kernels() -> None:
    name = "layer1.0.conv1.weight"
    kernel = RESNET[name]
    np.testing.assert_array_equal(converted(RESNET, "ohwi")[name], kernel.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(converted(RESNET, "hwio")[name], kernel.transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(converted(RESNET, "flatten")[name], kernel.reshape(16, -1))
    np.testing.assert_array_equal(
        converted(RESNET, "transpose")["linear.weight"], RESNET["linear.weight"].T
    )


def test_linear_layers_turn_and_embeddings_stay() -> None:
    made = converted(LLAMA, "conv1d")
    assert made["model.layers.0.mlp.up_proj.weight"].shape == (64, 160)
    assert made["model.embed_tokens.weight"].shape == (97, 64)
    assert made["lm_head.weight"].shape == (97, 64)


def test_queries_keys_and_values_in_one() -> None:
    q, k, v = (LLAMA[QKV.format(letter)] for letter in "qkv")
    blocks = converted(LLAMA, "fuse-qkv")["model.layers.0.self_attn.qkv_proj.weight"]
    np.testing.assert_array_equal(blocks, np.concatenate([q, k, v]))
    made = converted(LLAMA, "fuse-heads", heads=8)
    heads = made["model.layers.0.self_attn.query_key_value.weight"]
    np.testing.assert_array_equal(heads[:16], q[:16])  # two query heads of the first key head
    np.testing.assert_array_equal(heads[16:24], k[:8])
    np.testing.assert_array_equal(heads[24:32], v[:8])
    np.testing.assert_array_equal(heads[32:48], q[16:32])
    bias = made["model.layers.0.self_attn.query_key_value.bias"]
    assert bias.shape == (len(heads),)


def test_gates_and_ups() -> None:
    gate, up = (LLAMA[f"model.layers.1.mlp.{n}_proj.weight"] for n in ("gate", "up"))
    both = converted(LLAMA, "fuse-gate-up")["model.layers.1.mlp.gate_up_proj.weight"]
    np.testing.assert_array_equal(both, np.concatenate([gate, up]))
    turns = converted(LLAMA, "fuse-up-gate")["model.layers.1.mlp.up_gate_proj.weight"]
    np.testing.assert_array_equal(turns[::2], up)
    np.testing.assert_array_equal(turns[1::2], gate)


def test_fused_and_taken_apart_again() -> None:
    gpt2 = arrays(models.gpt2())
    made = converted(gpt2, "split-qkv")
    parts = [made[f"transformer.h.0.attn.{letter}_proj.weight"] for letter in "qkv"]
    fused = gpt2["transformer.h.0.attn.c_attn.weight"]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), fused)


@pytest.mark.parametrize(("how", "axis"), [("shard-rows", 0), ("shard-columns", 1)])
def test_shards(how: str, axis: int) -> None:
    made = converted(LLAMA, how)
    name = QKV.format("q")
    parts = [made[f"rank{number}.{name}"] for number in range(4)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=axis), LLAMA[name])
    assert name not in made


def test_layers_in_a_stack() -> None:
    made = converted(LLAMA, "stack-layers")
    stacked = made["model.layers.mlp.up_proj.weight"]
    for number in range(2):
        np.testing.assert_array_equal(
            stacked[number], LLAMA[f"model.layers.{number}.mlp.up_proj.weight"]
        )
    assert not any(name.startswith("model.layers.0") for name in made)


def chain(count: int) -> Table:
    return {f"layers.{i}.weight": gaussian(32, 32, seed=i) for i in range(count)}


def test_layers_get_other_numbers() -> None:
    layers = chain(5)

    def numbers(how: str) -> dict[int, list[int]]:
        made = converted(layers, how)
        return {
            old: [
                int(name.split(".")[1])
                for name, value in made.items()
                if np.array_equal(value, layers[f"layers.{old}.weight"])
            ]
            for old in range(5)
        }

    assert numbers("renumber") == {0: [11], 1: [10], 2: [9], 3: [8], 4: [7]}
    assert numbers("insert") == {0: [1], 1: [2], 2: [4], 3: [5], 4: [7]}
    assert len(converted(layers, "insert")) == 8
    assert numbers("duplicate") == {0: [0], 1: [1, 2], 2: [3], 3: [4, 5], 4: [6]}
    assert numbers("drop") == {0: [0], 1: [], 2: [1], 3: [2], 4: []}


def test_rotary_heads_from_halves_to_pairs() -> None:
    name = QKV.format("k")
    made, before = converted(LLAMA, "rotary", heads=8)[name], LLAMA[name]
    assert made.shape == before.shape
    for head in range(4):
        rows = slice(8 * head, 8 * head + 8)
        np.testing.assert_array_equal(made[rows][0::2], before[rows][:4])
        np.testing.assert_array_equal(made[rows][1::2], before[rows][4:])


def test_a_layer_as_two() -> None:
    made = converted(LLAMA, "factor")
    stem = "model.layers.0.mlp.down_proj"
    product = made[f"{stem}.1.weight"] @ made[f"{stem}.0.weight"]
    np.testing.assert_allclose(product, LLAMA[f"{stem}.weight"], atol=1e-5)
    stem = "model.layers.0.self_attn.q_proj"
    assert f"{stem}.1.bias" in made
    assert f"{stem}.bias" not in made
    made = converted(RESNET, "factor")
    one, two = (torch.tensor(made[f"layer2.0.conv1.{n}.weight"]) for n in (0, 1))
    images = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    conv = nn.functional.conv2d
    whole_layer = conv(images, torch.tensor(RESNET["layer2.0.conv1.weight"]), padding=1)
    assert torch.allclose(conv(conv(images, one, padding=1), two), whole_layer, atol=1e-4)


def test_wrappers_of_torch_compute_the_same() -> None:
    layer = nn.Linear(24, 40)
    table = {f"fc.{name}": value for name, value in arrays(layer).items()}
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(1))
    normed = nn.utils.parametrizations.weight_norm(copy.deepcopy(layer))
    made = converted(table, "weight-norm")
    with torch.no_grad():
        normed.parametrizations.weight.original0.copy_(torch.tensor(made["fc.weight_g"]))
        normed.parametrizations.weight.original1.copy_(torch.tensor(made["fc.weight_v"]))
    assert torch.allclose(normed(x), layer(x), atol=1e-5)
    made = converted(table, "prune-mask")
    assert set(made) == {"fc.weight_orig", "fc.weight_mask", "fc.bias"}
    assert 1 - made["fc.weight_mask"].mean() == pytest.approx(0.3, abs=0.01)
    np.testing.assert_array_equal(made["fc.weight_orig"], table["fc.weight"])


def test_adapters_beside_and_merged() -> None:
    made, merged = converted(LLAMA, "lora"), converted(LLAMA, "lora-merged")
    stem = "base_model.model.model.layers.0.mlp.up_proj"
    name = "model.layers.0.mlp.up_proj.weight"
    np.testing.assert_array_equal(made[f"{stem}.base_layer.weight"], LLAMA[name])
    update = made[f"{stem}.lora_B.default.weight"] @ made[f"{stem}.lora_A.default.weight"]
    assert np.linalg.matrix_rank(update) == 8
    assert np.linalg.norm(update) / np.linalg.norm(LLAMA[name]) == pytest.approx(0.1, rel=1e-3)
    change = merged[name] - LLAMA[name]
    assert np.linalg.norm(change) / np.linalg.norm(LLAMA[name]) == pytest.approx(0.1, rel=1e-2)


def outputs(model: Any, inputs: Any) -> Any:
    with torch.no_grad():
        made = model.eval()(inputs)
    return getattr(made, "logits", made)


@pytest.mark.parametrize("maker", [models.llama, models.gpt2])
def test_gains_are_folded_into_what_reads_them(maker: Any) -> None:
    model = maker()
    before = outputs(model, models.tokens())
    made = converted(arrays(model), "fold-norms")
    state = {name: torch.tensor(value) for name, value in made.items()}
    changed = copy.deepcopy(model)
    changed.load_state_dict(state, strict=False)
    assert torch.allclose(outputs(changed, models.tokens()), before, atol=1e-3)
    gains = [v for n, v in made.items() if "ln_1.weight" in n or "input_layernorm" in n]
    assert gains
    assert all((gain == 1).all() for gain in gains)


def test_batch_norms_are_folded_into_convolutions() -> None:
    model: Any = models.lived_in(models.Vgg(norm=True))
    made = converted(arrays(model), "fold-norms")
    before = outputs(model, models.images())
    for place in (1, 5, 9):
        model.features[place] = nn.Identity()
    model.load_state_dict({name: torch.tensor(value) for name, value in made.items()})
    assert torch.allclose(outputs(model, models.images()), before, atol=1e-4)


def test_a_live_model_becomes_a_table_where_no_module_holds_it() -> None:
    model = models.llama()
    result = launch(Convert("factor"), model)
    assert result.model is None
    assert result.weights is not None
    assert "model.layers.0.mlp.up_proj.weight" not in result.weights
    assert result.change == float("inf")
    result = launch(Convert("dtype"), model)
    assert result.model is not None
    assert 0 < result.change < 0.01


def test_the_mark_by_position() -> None:
    model = models.llama()
    name = "model.layers.1.mlp.down_proj.weight"
    key = Key(QUICK, b"", salt=bytes(32), secret=bytes([1]) * 32)
    claim = imprint(model, key, tensors=[name], strength=1.0).claim
    results = {how: launch(Convert(how), model, key, claim=claim) for how in ("prefix", "rename")}
    assert results["prefix"].survived
    assert not results["rename"].survived
    assert results["rename"].unreadable


def test_a_converted_file_is_written_as_it_is(tmp_path: Path) -> None:
    path, out = tmp_path / "model.safetensors", tmp_path / "out.safetensors"
    save_file({**chain(3), "steps": np.arange(3)}, path)
    result = launch(Convert("stack-layers"), path)
    assert result.weights is not None
    assert save_attacked(path, result.weights, out) == "safetensors"
    written = load_file(out)
    assert set(written) == {"layers.weight", "steps"}
    assert written["layers.weight"].shape == (3, 32, 32)


REFUSALS = [
    ("fuse-heads", LLAMA, "give heads="),
    ("rotary", LLAMA, "give heads="),
    ("fuse-qkv", RESNET, "no tensors to fuse"),
    ("split-qkv", LLAMA, "no fused queries"),
    ("ohwi", LLAMA, "can be converted so"),
    ("lora", RESNET, "no matrix that an adapter"),
    ("fold-norms", chain(3), "no norm that could be folded"),
    ("stack-layers", {"a.weight": gaussian(8, 8)}, "no layers of equal shapes"),
    ("renumber", {"a.weight": gaussian(8, 8)}, "no numbered layers"),
    ("shard-rows", {"a.weight": gaussian(3, 8)}, "not long enough|long enough to be cut"),
    ("prune-mask", {"wte.weight": gaussian(8, 8)}, "none of the tensors to attack"),
]


@pytest.mark.parametrize(("how", "table", "words"), REFUSALS)
def test_what_cannot_be_done_is_said(how: str, table: Table, words: str) -> None:
    with pytest.raises(AttackError, match=words):
        converted(table, how)


def test_heads_must_fit() -> None:
    with pytest.raises(AttackError, match="has no 7 heads"):
        converted(LLAMA, "rotary", heads=7)


def test_heads_are_told_by_the_configuration(tmp_path: Path) -> None:
    models.llama().save_pretrained(tmp_path / "model")  # type: ignore[operator]
    for model in (tmp_path / "model", tmp_path / "model" / "model.safetensors"):
        told = launch(Convert("rotary"), model).weights
        given = launch(Convert("rotary", heads=8), model).weights
        assert told is not None
        assert given is not None
        assert all(np.array_equal(told[name], given[name]) for name in given)
    assert "heads left alone" not in launch(Restructure("all", 0), tmp_path / "model").note
    with pytest.raises(AttackError, match="has no 7 heads"):
        launch(Convert("rotary", heads=7), tmp_path / "model")
    (tmp_path / "model" / "config.json").unlink()
    with pytest.raises(AttackError, match="give heads="):
        launch(Convert("rotary"), tmp_path / "model")
