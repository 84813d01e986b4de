"""Tensors that were fused, and whose channels, heads or inputs were moved as well."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.anchors.effort import ALIGN_LIMIT
from neuralmark.anchors.locating import locate
from neuralmark.anchors.locating.cuts import Cut, fusions_of
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.locating.views import Stored
from neuralmark.anchors.recutting import CutLayer, recut
from tests.support.anchored import Table, arrays, converted
from tests.support.moved import (
    GATE,
    HEADS,
    KEY,
    NEARLY_ALL,
    UP,
    case,
    channels_permuted,
    fused,
    rebuilt,
    restored,
)
from tests.support.speaking import trained

GATES = [("fuse-gate-up",), ("up-gate",), ("fuse-up-gate",), ("fuse-gate-up", "conv1d")]
ATTENTION = [("fuse-qkv",), ("fuse-heads",)]
BOTH = [("fuse-gate-up", "fuse-qkv"), ("fuse-up-gate", "fuse-heads", "rename")]
TURNED = ("fuse-gate-up", "fuse-qkv", "conv1d")
CASES = [
    *(("llama", how, hows) for how in ("channels", "all") for hows in GATES),
    *(("llama", how, hows) for how in ("permute", "rotate", "all") for hows in BOTH),
    *(("qwen2", "all", hows) for hows in (*BOTH, *ATTENTION)),
    *((name, "all", hows) for name in ("bert words", "vit") for hows in ATTENTION),
    (
        "qwen3",
        "all",
        BOTH[0],
    ),  # its fused queries, keys and values are as long as few gates and ups
]


@pytest.mark.parametrize(("name", "how", "hows"), CASES)
def test_all_of_it_is_found(name: str, how: str, hows: tuple[str, ...]) -> None:
    anchor, marked = case(name)
    record, bits = restored(fused(rebuilt(marked, how), *hows), anchor)
    assert bits >= NEARLY_ALL
    assert record.found > 0.99
    assert min(fate.restored for fate in record.tensors) > 0.97
    assert "slice of fused tensor" in {change for each in record.tensors for change in each.changes}


@pytest.mark.parametrize("how", ["permute", "rotate"])
def test_layers_that_are_stored_the_other_way_round(how: str) -> None:
    anchor, marked = case("vit")
    record, bits = restored(fused(rebuilt(marked, how), "transpose"), anchor)
    assert bits >= NEARLY_ALL
    assert record.found > 0.99


def test_parts_that_were_not_moved_tell_where_the_others_lie() -> None:
    anchor, marked = case("llama")
    suspect = converted(marked, "fuse-qkv", heads=HEADS)
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))[0].astype(np.float32)
    for layer in (0, 1):
        name, reader = (f"model.layers.{layer}.self_attn.{x}_proj.weight" for x in ("qkv", "o"))
        values = suspect[name][96:].reshape(4, 8, -1)
        suspect[name] = np.concatenate([suspect[name][:96], (turn @ values).reshape(32, -1)])
        suspect[reader] = (suspect[reader].reshape(64, 8, 8) @ turn.T).reshape(64, 64)
    record, bits = restored(suspect, anchor)
    assert bits >= NEARLY_ALL
    assert record.found > 0.99


def test_biases_go_with_their_weights() -> None:
    anchor, marked = case("qwen2")
    suspect = converted(rebuilt(marked, "permute"), "fuse-qkv", heads=HEADS)
    found = locate(TableWeights(suspect), anchor)
    for part, start in (("q", 0), ("k", 64), ("v", 96)):
        view = found[f"model.layers.1.self_attn.{part}_proj.bias"].view
        whole = suspect["model.layers.1.self_attn.qkv_proj.bias"]
        read = view.read(TableWeights(suspect))
        np.testing.assert_array_equal(read, whole[start : start + len(read)])


def test_a_wrong_cut_is_noticed() -> None:
    anchor, marked = case("llama")
    suspect = TableWeights(fused(rebuilt(marked, "all"), "fuse-gate-up"))
    located = locate(suspect, anchor)
    kinds = fusions_of(anchor.skeleton.structure, dict(anchor.skeleton.shapes))  # type: ignore[arg-type]
    gates = [each for each in kinds if "mlp" in each.names[0]]
    for cut in gates[0].kind.cuts():
        wrong = dict(located)
        for number, each in enumerate(gates):
            whole = Stored(f"model.layers.{number}.mlp.gate_up_proj.weight")
            layer = CutLayer(each, whole, suspect.shapes[whole.name][0], cut)
            wrong |= layer.located(cut, located)
        better = recut(suspect, anchor, wrong, list(located), ALIGN_LIMIT)
        assert bool(better) == (cut != Cut((0, 1)))
        for number in (0, 1):
            made = {**wrong, **better}[UP.format(number)].view
            assert made.describe().endswith("rows 163–325"), cut


def test_another_model_that_was_fused_stays_another() -> None:
    anchor, _ = case("llama")
    other = rebuilt(arrays(trained("llama", seed=1)), "all")
    record, bits = restored(fused(other, "fuse-gate-up", "fuse-qkv"), anchor)
    assert max(fate.restored for fate in record.tensors) < 0.6
    assert record.found < 0.5
    assert bits < 0.75 * KEY.parameters.bits


def test_channels_that_were_doubled_are_not_taken_for_fused() -> None:
    anchor, marked = case("llama")
    doubled = dict(marked)
    for name, value in marked.items():
        if re.search("(gate|up)_proj", name):
            doubled[name] = np.concatenate([value, value])
        elif "down_proj" in name:
            doubled[name] = np.concatenate([value, value], axis=1) / 2
    found = locate(TableWeights(channels_permuted(doubled)), anchor)
    assert found[GATE.format(0)].view == Stored(GATE.format(0))
    assert found[UP.format(1)].view == Stored(UP.format(1))


def tripled(table: Mapping[str, Any]) -> Table:
    """Every channel of the MLPs as three, mixed with noise: only all three together are like it."""
    made, rng = dict(table), np.random.default_rng(6)
    for name in table:
        if name.endswith("down_proj.weight"):
            gate, up = (name.replace("down_proj", part) for part in ("gate_proj", "up_proj"))
            down, rows = table[name], table[up]
            count, width = rows.shape
            mix = np.linalg.qr(rng.standard_normal((count, 3, 3)))[0]
            noise = rows.std() * rng.standard_normal((count, 2, width))
            mixed = mix @ np.concatenate([rows[:, None], noise], axis=1)
            order = rng.permutation(3 * count)
            made[gate] = np.repeat(table[gate], 3, axis=0)[order]
            made[up] = mixed.reshape(-1, width)[order].astype(np.float32)
            columns = np.einsum("ni,dn->dni", mix[:, :, 0], down)
            made[name] = columns.reshape(len(down), -1)[:, order].astype(np.float32)
    return made


@pytest.mark.parametrize("how", ["", "rotate", "all"])
def test_channels_that_became_three_are_not_taken_for_fused_ones(how: str) -> None:
    anchor, marked = case("llama")
    suspect = tripled(marked)
    record, bits = restored(rebuilt(suspect, how) if how else suspect, anchor)
    assert bits >= NEARLY_ALL
    assert record.found > 0.99
