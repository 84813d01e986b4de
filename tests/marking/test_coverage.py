"""Models of which a part cannot be read: never a plain "not verified", never leftovers marked."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import neuralmark
from neuralmark import Key
from neuralmark.checkpoints import TensorInfo
from neuralmark.errors import UnreadableError
from neuralmark.marking.coverage import (
    holds_weights,
    of_claim,
    of_search,
    require_readable,
    unreadable,
    weights_of,
)
from neuralmark.marking.placement import catalogue_of
from neuralmark.records import Gap
from tests.support.claims import without_file
from tests.support.commands import call
from tests.support.models import QUICK, embed_unbound, plain_key, sharded_model

State = dict[str, torch.Tensor]
NAMES = [f"model.layers.{i}.{part}" for i in range(4) for part in ("q_proj", "up_proj")]


def plain() -> State:
    generator = torch.Generator().manual_seed(0)
    state = {f"{name}.weight": torch.randn(128, 160, generator=generator) / 20 for name in NAMES}
    state["model.embed_tokens.weight"] = torch.randn(100, 128, generator=generator)
    state["model.norm.weight"] = torch.ones(128)
    return state


def int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = weight.abs().amax(1)
    return (weight / scale[:, None] * 127).round().to(torch.int8), scale


def hqq(name: str, weight: torch.Tensor) -> State:
    return {
        f"{name}.W_q": torch.zeros(weight.numel() // 2, 1, dtype=torch.uint8),
        f"{name}.scale": torch.zeros(weight.numel() // 64, 1, dtype=torch.float16),
    }


def awq_for_vectors(name: str, weight: torch.Tensor) -> State:
    rows, columns = weight.shape
    return {
        f"{name}.qweight": torch.zeros(rows, columns // 8, dtype=torch.int32),
        f"{name}.qzeros": torch.zeros(rows, 1, dtype=torch.int32),
        f"{name}.scales": torch.zeros(rows, 8, dtype=torch.float16),
    }


def tile_packed(name: str, weight: torch.Tensor) -> State:
    """torchao's int4 for tensor cores, without what says of which class it is."""
    rows, columns = weight.shape
    return {
        f"{name}._weight_qdata": torch.zeros(rows // 8, columns // 32, 32, 1, dtype=torch.int32),
        f"{name}._weight_scale_and_zero": torch.zeros(columns // 32, rows, 2, dtype=torch.bfloat16),
    }


def mxfp4(name: str, weight: torch.Tensor) -> State:
    rows, columns = weight.shape
    return {
        f"{name}_blocks": torch.zeros(rows, columns // 32, 16, dtype=torch.uint8),
        f"{name}_scales": torch.zeros(rows, columns // 32, dtype=torch.uint8),
    }


def marlin(name: str, weight: torch.Tensor) -> State:
    rows, columns = weight.shape
    return {
        f"{name}.B": torch.zeros(columns // 16, rows * 2, dtype=torch.int32),
        f"{name}.s": torch.zeros(columns // 32, rows, dtype=torch.float16),
    }


FORMS = (hqq, awq_for_vectors, tile_packed, mxfp4, marlin)
"""Layouts that are not read: made for one kernel, or not documented."""


def quantised(folder: Path, form: Callable[[str, torch.Tensor], State]) -> Path:
    state = plain()
    for name in NAMES:
        state |= form(name, state.pop(f"{name}.weight"))
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_folders_quantised_in_unknown_ways_are_unreadable(
    form: Callable[[str, torch.Tensor], State], tmp_path: Path
) -> None:
    folder, key = quantised(tmp_path / "q", form), plain_key(tmp_path / "k.nmkey")
    told = call("verify", folder, "--key", key, "--json")
    assert (told.code, told.json["status"]) == (3, "unreadable")
    assert "could not be read: 8 tensors" in told.json["reason"]
    coverage = told.json["coverage"]
    assert coverage["unreadable"] > 0.05 * coverage["in_model"]
    assert coverage["share"] < 0.95
    panel = call("verify", folder, "--key", key)
    assert panel.out.startswith("COULD NOT BE READ")
    call("embed", folder, "--key", key, "-o", tmp_path / "out").failed(3, "UnreadableError")
    assert not (tmp_path / "out").exists()
    assert call("claim", folder, "--key", key).code == 3


@pytest.mark.parametrize("form", FORMS)
def test_with_a_claim_too(form: Callable[[str, torch.Tensor], State], tmp_path: Path) -> None:
    save_file(plain(), tmp_path / "m.safetensors")
    key = Key.new(QUICK)
    done = neuralmark.embed(tmp_path / "m.safetensors", key, tmp_path / "o.safetensors")
    folder = quantised(tmp_path / "q", form)
    verdict = neuralmark.verify(folder, key, claim=without_file(done.claim))
    assert verdict.status == "unreadable"
    assert (verdict.trials, verdict.coverage.looked_at) == (0, 0)


def test_a_claim_of_which_a_part_is_quantised(tmp_path: Path) -> None:
    save_file(plain(), tmp_path / "m.safetensors")
    key = Key.new(QUICK)
    done = neuralmark.embed(tmp_path / "m.safetensors", key, tmp_path / "o.safetensors")
    state = plain()  # without the mark
    for name in NAMES[:2]:
        state[f"{name}.weight"] = int8(state[f"{name}.weight"])[0]
    save_file(state, tmp_path / "q.safetensors")
    claim = without_file(done.claim)
    verdict = neuralmark.verify(tmp_path / "q.safetensors", key, claim=claim)
    assert verdict.status == "unreadable"
    assert "(25 %) could not be read: 2 tensors" in verdict.reason
    assert [gap.stored for gap in verdict.missing] == [True, True]


def test_named_tensors_of_a_quantised_model_can_be_marked(tmp_path: Path) -> None:
    folder = quantised(tmp_path / "q", hqq)
    key = Key.new(QUICK)
    name = "model.embed_tokens.weight"
    with pytest.raises(UnreadableError, match="name the tensors"):
        neuralmark.embed(folder, key)
    embed_unbound(folder, key, tmp_path / "o", neuralmark.EmbedOptions(tensors=[name]))
    assert neuralmark.verify(tmp_path / "o", key, tensors=[name]).verified
    found = neuralmark.verify(tmp_path / "o", key)
    assert found.verified  # what is found is found, whatever else could not be read
    assert found.coverage.unreadable > 0


def test_channels_last_weights_are_simply_read(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    state = {f"c{i}.weight": torch.randn(64, 48, 3, 3, generator=generator) for i in range(4)}
    torch.save(state, tmp_path / "m.pt")
    key = Key.new(QUICK)
    done = embed_unbound(tmp_path / "m.pt", key, tmp_path / "o.pt")
    marked = torch.load(tmp_path / "o.pt", weights_only=True)
    last = {n: t.to(memory_format=torch.channels_last) for n, t in marked.items()}
    for zipped in (True, False):
        path = tmp_path / f"last{zipped}.pt"
        torch.save(last, path, _use_new_zipfile_serialization=zipped)
        verdict = neuralmark.verify(path, key)
        assert verdict.verified
        assert verdict.matched == 160
        assert neuralmark.verify(path, key, claim=done.claim).matched == 160
    # and they can be marked
    other = Key.new(QUICK)
    neuralmark.embed(tmp_path / "lastTrue.pt", other, tmp_path / "both.pt")
    assert neuralmark.verify(tmp_path / "both.pt", other).verified
    written = torch.load(tmp_path / "both.pt", weights_only=True)
    for name, tensor in written.items():
        assert tensor.stride() == last[name].stride()
        assert 0 < (tensor - last[name]).norm() < 0.1 * tensor.norm()


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "weights"),
    [
        ("h.0.attn.bias", "U8", (1, 1, 1024, 1024), False),
        ("h.0.attn.mask", "BOOL", (1, 1, 1024, 1024), False),
        ("bn.num_batches_tracked", "I64", (), False),
        ("embeddings.position_ids", "I64", (1, 512), False),
        ("relative_position_index", "I64", (49, 49), False),
        ("l.weight.absmax", "U8", (4096,), False),
        ("l.g_idx", "I32", (4096,), False),
        ("l.weight", "F32", (0, 3), False),
        ("l.weight", "I8", (64, 64), True),
        ("l.qweight", "I32", (64, 64), True),
        ("l.weight", "F4", (64, 64), True),
        ("l.weight", "qtensor", (64, 64), True),
        ("l.weight", "F32", (64, 64), True),
    ],
)
def test_what_holds_weights(name: str, dtype: str, shape: tuple[int, ...], weights: bool) -> None:
    (tensor,) = catalogue_of([TensorInfo(name, dtype, shape)])
    assert holds_weights(tensor) == weights
    assert (tensor in unreadable([tensor])) == (weights and dtype != "F32")


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
def test_torch_tensors_that_are_not_dense_count_with_their_sizes(tmp_path: Path) -> None:
    weight = torch.randn(64, 64)
    state = {
        "sparse": weight.to_sparse(),
        "quantised": torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8),
        "dense": weight,
    }
    torch.save(state, tmp_path / "m.pt")
    verdict = neuralmark.verify(tmp_path / "m.pt", Key.new(QUICK))
    assert verdict.status == "unreadable"
    assert (verdict.coverage.unreadable, verdict.coverage.in_model) == (2 * 4096, 3 * 4096)


def test_lazily_negated_tensors_are_unreadable(tmp_path: Path) -> None:
    weight = torch._neg_view(torch.randn(128, 128))
    torch.save({"a.weight": weight, "b.weight": torch.randn(128, 128)}, tmp_path / "m.pt")
    verdict = neuralmark.verify(tmp_path / "m.pt", Key.new(QUICK))
    assert verdict.status == "unreadable"
    assert verdict.coverage.share == 0.5


@pytest.mark.parametrize("place", ["state_dict_ema", "model", "a.b.c"])
def test_every_table_of_a_file_is_looked_at(tmp_path: Path, place: str) -> None:
    """A clean table under the usual name hides no marked one."""
    key, source = Key.new(QUICK), tmp_path / "plain.safetensors"
    save_file(plain(), source)
    made = embed_unbound(source, key, tmp_path / "marked.safetensors")
    marked: object = load_file(tmp_path / "marked.safetensors")
    outer, *inner = place.split(".")
    for part in reversed(inner):
        marked = {part: marked}
    torch.save({"state_dict": plain(), outer: marked}, tmp_path / "both.pt")
    verdict = neuralmark.verify(tmp_path / "both.pt", key, claim=made.claim)
    assert (verdict.verified, verdict.mapping) == (True, "prefix")
    assert neuralmark.verify(tmp_path / "both.pt", key).verified


def test_one_shard_of_several_is_not_the_model(tmp_path: Path) -> None:
    folder, key = sharded_model(tmp_path / "m"), Key.new(QUICK)
    verdict = neuralmark.verify(folder / "model-00001-of-00002.safetensors", key)
    assert verdict.status == "unreadable"
    assert "one shard of several" in verdict.reason


def test_packed_weights_count_as_what_they_hold() -> None:
    infos = [TensorInfo("l.qweight", "I32", (16, 128)), TensorInfo("l.weight", "F16", (16, 128))]
    tensors = catalogue_of(infos)
    assert weights_of(tensors) == 9 * 16 * 128


def test_packed_weights_under_another_name_are_named(tmp_path: Path) -> None:
    key, source = Key.new(QUICK), tmp_path / "plain.safetensors"
    save_file(plain(), source)
    made = neuralmark.embed(source, key, tmp_path / "marked.safetensors")
    weights = plain()
    state: State = {}
    for name in NAMES:
        state |= awq_for_vectors(name, weights[f"{name}.weight"])
    save_file(state, tmp_path / "packed.safetensors")
    verdict = neuralmark.verify(tmp_path / "packed.safetensors", key, claim=made.claim)
    assert verdict.status == "unreadable"
    assert "qweight" in verdict.reason


@pytest.mark.parametrize(
    ("dtype", "each"), [("I8", 1), ("U8", 2), ("I16", 4), ("U16", 4), ("I32", 8), ("U32", 8)]
)
def test_every_packed_type_counts_as_what_it_holds(dtype: str, each: int) -> None:
    assert weights_of(catalogue_of([TensorInfo("l.weight", dtype, (10, 10))])) == 100 * each


@pytest.mark.parametrize("size", [64, 65])
def test_a_few_integers_are_no_weights(size: int) -> None:
    (tensor,) = catalogue_of([TensorInfo("l.qweight", "I32", (size,))])
    assert holds_weights(tensor) == (size == 65)


def test_tied_weights_count_once() -> None:
    one, two = catalogue_of([TensorInfo(name, "F32", (10, 10)) for name in ("a", "b")])
    assert weights_of([one, replace(two, tied=True)]) == 100
    assert weights_of([one, two]) == 200


def test_weights_that_are_read_twice_are_looked_at_once() -> None:
    infos = [TensorInfo("a", "F32", (10, 10)), TensorInfo("b", "F32", (5, 10))]
    a, b = catalogue_of([*infos])
    assert of_search([a, b], [a, b, a], set()).looked_at == 150
    assert of_search([a, b], [a, b, a], {"a"}).looked_at == 50
    assert of_search([a, b], [a, b, a], {"a"}).unreadable == 100
    shared = replace(a, storage=("f", 0)), replace(b, storage=("f", 0))
    assert of_search([a, b], shared, set()).looked_at == 50


def test_of_a_claim_only_what_is_there_counts_as_unreadable() -> None:
    (a,) = catalogue_of([TensorInfo("a", "F32", (10, 10))])
    gaps = [Gap("b", 30, "packed", stored=True), Gap("c", 20, "gone"), Gap("d", 7, "too", True)]
    found = of_claim([a], [a], 157, gaps)
    assert (found.in_model, found.looked_at, found.wanted, found.unreadable) == (100, 100, 157, 37)
    assert found.why.startswith("2 tensors; of 'b'")


@pytest.mark.parametrize(("lost", "refused"), [(49, False), (50, True)])
def test_a_twentieth_that_cannot_be_read_is_too_much_to_mark(lost: int, refused: bool) -> None:
    infos = [
        TensorInfo("a", "F32", (10_000 - 100 * lost // 10,)),
        TensorInfo("b", "F4", (lost, 10)),
    ]
    tensors = catalogue_of(infos)
    assert weights_of(tensors) == 10_000
    if refused:
        with pytest.raises(UnreadableError, match="5 %"):
            require_readable(tensors, "model")
    else:
        require_readable(tensors, "model")
    require_readable([], "model")
