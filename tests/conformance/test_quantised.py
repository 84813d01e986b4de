"""The same battery for every way of quantising that is discovered."""

import json
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file as numpy_load
from safetensors.numpy import save_file as numpy_save
from safetensors.torch import load_file, save_file

import neuralmark
from neuralmark import Key
from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.checkpoints.readers import blocks
from neuralmark.checkpoints.readers.dtypes import decode
from neuralmark.checkpoints.readers.quantised import quantisations
from neuralmark.errors import MalformedError, NeuralMarkError, UnsuitableTensorError
from neuralmark.marking.coverage import holds_weights
from neuralmark.marking.placement import catalogue
from tests.support.commands import call
from tests.support.far import MirrorPlace
from tests.support.makers import Arrays
from tests.support.models import QUICK, gaussian
from tests.support.quantisers import QUANTISERS, expert_blocks, quantised_folder

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
WAYS = pytest.mark.parametrize("way", QUANTISERS)


def arrays() -> Arrays:
    return {
        "model.layers.0.up.weight": gaussian(160, 256, seed=1),
        "model.layers.0.up.bias": gaussian(160, seed=2),
        "model.layers.0.down.weight": gaussian(320, 96, seed=3),
        "model.norm.weight": gaussian(96, seed=4),
    }


def made(way: str, folder: Path, source: Arrays | None = None) -> Arrays:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = {"checkpoint_format": "gptq_v2"} if way == "gptq v2" else None
        return quantised_folder(folder, source or arrays(), QUANTISERS[way], config)


def content(checkpoint: Checkpoint) -> Arrays:
    return {
        name: np.concatenate(
            [decode(piece, checkpoint.info(name).dtype).copy() for piece in checkpoint.read(name)]
        ).reshape(checkpoint.info(name).shape)
        for name in checkpoint.names()
    }


def close(one: Arrays, two: Arrays) -> bool:
    return set(one) == set(two) and all(
        one[n].shape == two[n].shape and np.allclose(one[n], two[n], rtol=2e-7, atol=0) for n in one
    )


def test_every_quantisation_is_tried(tmp_path: Path) -> None:
    seen = set()
    for number, way in enumerate(QUANTISERS):
        made(way, tmp_path / str(number))
        checkpoint = open_checkpoint(tmp_path / str(number))
        decoder = checkpoint.span("model.layers.0.up.weight").decoder
        seen.add(_home(checkpoint, "model.layers.0.up.weight"))
        assert decoder is not None
    expert_blocks(tmp_path / "experts")
    seen.add(_home(open_checkpoint(tmp_path / "experts"), "mlp.experts.gate_up_proj"))
    assert len(seen) == len(set(quantisations()))


def _home(checkpoint: Checkpoint, name: str) -> Any:
    """What tells the quantisations apart: each gives its layers names of its own."""
    told = checkpoint.info(name).stored or ""
    families = ("GPTQ", "AWQ", "bitsandbytes", "compressed-tensors", "torchao", "scaled")
    first = told.split()[0]
    if first == "mxfp4" and name.startswith("mlp.experts"):
        return "experts"
    return first if first in families else told[-3:]


@WAYS
def test_reading_gives_what_the_codes_stand_for(way: str, tmp_path: Path) -> None:
    values = made(way, tmp_path / "q")
    checkpoint = open_checkpoint(tmp_path / "q")
    assert close(content(checkpoint), values)
    infos = [checkpoint.info(name) for name in checkpoint.names()]
    quantised = [info for info in infos if info.stored]
    assert {info.name for info in quantised} == {n for n in values if values[n].ndim == 2}
    assert all("quantise" in (info.fixed or "") for info in quantised)
    single = content(open_checkpoint(tmp_path / "q" / "model.safetensors"))
    assert close(single, values)


@WAYS
def test_runs_and_small_windows_give_the_same(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = made(way, tmp_path / "q")
    monkeypatch.setattr(blocks, "WINDOW_BYTES", 3000)
    monkeypatch.setattr(blocks, "STRETCH_BYTES", 2000)
    monkeypatch.setattr(blocks, "KEPT_BYTES", 9000)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 190)
    checkpoint = open_checkpoint(MirrorPlace(tmp_path / "q"))
    for name, array in values.items():
        flat = array.reshape(-1)
        size = len(flat)
        for start, stop in ((0, 1), (size // 3, size // 2 + 1), (0, size), (size - 7, size)):
            run = decode(checkpoint.read_run(name, start, stop), "F32")
            assert np.allclose(run, flat[start:stop], rtol=2e-7, atol=0)


@WAYS
def test_parts_may_lie_in_several_shards(way: str, tmp_path: Path) -> None:
    values = made(way, tmp_path / "q")
    whole = tmp_path / "q" / "model.safetensors"
    with safe_open(whole, "pt") as file:
        metadata = file.metadata()
    state = {name: tensor.clone() for name, tensor in load_file(whole).items()}
    whole.unlink()
    table = {name: f"model-{i % 3}.safetensors" for i, name in enumerate(sorted(state))}
    for shard in set(table.values()):
        part = {name: state[name] for name in state if table[name] == shard}
        save_file(part, tmp_path / "q" / shard, metadata)
    index = tmp_path / "q" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": table}))
    checkpoint = open_checkpoint(tmp_path / "q")
    assert close(content(checkpoint), values)
    assert {file.name for file in checkpoint.files()} == set(table.values())


@WAYS
def test_the_mark_is_found_where_it_was_put(way: str, tmp_path: Path) -> None:
    source = {
        f"model.layers.{i}.{part}.weight": gaussian(128, 160, seed=10 * i + j)
        for i in range(3)
        for j, part in enumerate(("q_proj", "up_proj"))
    } | {"model.norm.weight": gaussian(128)}
    numpy_save(source, tmp_path / "m.safetensors")
    key = Key.new(QUICK)
    key.save(tmp_path / "k.nmkey", None)
    done = neuralmark.embed(tmp_path / "m.safetensors", key, tmp_path / "o.safetensors")
    made(way, tmp_path / "q", numpy_load(tmp_path / "o.safetensors"))
    told = call(
        *("verify", tmp_path / "q", "--key", tmp_path / "k.nmkey", "--claim", done.claim_file),
        "--json",
    )
    assert (told.code, told.json["status"], told.json["mapping"]) == (0, "verified", "names")
    assert told.json["coverage"]["unreadable"] == 0
    with pytest.raises(UnsuitableTensorError, match=r"can be read, but not marked: .* mark the"):
        neuralmark.embed(tmp_path / "q", key, tmp_path / "again")
    rows = call("inspect", tmp_path / "q", "--json").json["rows"]
    assert {row["name"] for row in rows} == set(source)
    assert all(row["dtype"] != "F32" for row in rows if len(row["shape"]) == 2)


def test_columns_that_awq_scaled_are_found_with_the_anchor(tmp_path: Path) -> None:
    """It multiplies the inputs of a layer that matter, and divides in the layer before."""
    source = {f"model.layers.{i}.up.weight": gaussian(128, 160, seed=i) for i in range(4)}
    numpy_save(source, tmp_path / "m.safetensors")
    key, out = Key.new(QUICK), tmp_path / "o.safetensors"
    done = neuralmark.embed(tmp_path / "m.safetensors", key, out)
    rng = np.random.default_rng(5)
    scaled = {
        name: weight * np.exp(0.5 * rng.standard_normal(160)).astype(np.float32)
        for name, weight in numpy_load(out).items()
    }
    made("awq", tmp_path / "q", scaled)
    assert neuralmark.verify(tmp_path / "q", key, claim=done.claim_file).verified


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("way", ["bnb_int8", "gptq 4"])
def test_what_is_not_quantised_can_be_marked(way: str, in_place: bool, tmp_path: Path) -> None:
    source = arrays() | {"model.embed_tokens": gaussian(200, 96, seed=9)}
    made(way, tmp_path / "q", source)
    key, out = Key.new(QUICK), tmp_path / ("q" if in_place else "o")
    before = content(open_checkpoint(tmp_path / "q"))
    name = "model.embed_tokens"
    options = neuralmark.EmbedOptions(tensors=[name])
    neuralmark.embed(
        tmp_path / "q", key, None if in_place else out, options=options, in_place=in_place
    )
    assert neuralmark.verify(out, key).verified
    after = content(open_checkpoint(out))
    assert {n for n in before if not np.array_equal(before[n], after[n])} == {name}


@WAYS
def test_damaged_layouts_are_named_errors(way: str, tmp_path: Path) -> None:
    """Each stored tensor gone, cut, of another type, or full of noise."""
    made(way, tmp_path / "q")
    file = tmp_path / "q" / "model.safetensors"
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    state = {name: tensor.clone() for name, tensor in load_file(file).items()}
    told = []
    for name in [name for name in state if name.startswith("model.layers.0.up.")]:
        for other in _damaged(state[name]):
            changed = {n: t for n, t in state.items() if n != name}
            save_file(changed if other is None else changed | {name: other}, file, metadata)
            told.append(_refusal(file))
    assert all("\n" not in each for each in told)
    assert sum(map(bool, told)) >= 3


def _damaged(tensor: torch.Tensor) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    size = tensor.numel() * tensor.element_size()
    noise = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    others = [tensor.reshape(-1)[:-1].clone(), tensor.reshape(1, *tensor.shape)]
    others += [torch.zeros(tensor.shape), torch.zeros(tensor.shape, dtype=torch.int64)]
    others += [noise.view(tensor.dtype).reshape(tensor.shape)] if tensor.ndim else []
    others += [tensor[: len(tensor) // 2].clone()] if tensor.ndim else []
    return [None, *others]


def _refusal(file: Path) -> str:
    """The message of the error or of the obstacle; nothing where the layer can still be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            checkpoint = open_checkpoint(file)
            for each in checkpoint.names():
                if checkpoint.info(each).obstacle is None:
                    list(checkpoint.read(each))
    except MalformedError as error:
        return str(error)
    layer = [t for t in catalogue(checkpoint) if t.name.startswith("model.layers.0.up.")]
    return next((t.obstacle for t in layer if t.obstacle and holds_weights(t)), "")


@WAYS
def test_truncated_files(way: str, tmp_path: Path) -> None:
    made(way, tmp_path / "q")
    file = tmp_path / "q" / "model.safetensors"
    whole = file.read_bytes()
    for length in np.linspace(0, len(whole) - 1, 25).astype(int):
        file.write_bytes(whole[:length])
        with pytest.raises(NeuralMarkError):
            content(open_checkpoint(tmp_path / "q"))


def test_experts_as_transformers_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = expert_blocks(tmp_path / "q")
    assert close(content(open_checkpoint(tmp_path / "q")), values)
    monkeypatch.setattr(blocks, "WINDOW_BYTES", 3000)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 300)
    assert close(content(open_checkpoint(MirrorPlace(tmp_path / "q"))), values)


@pytest.mark.parametrize("stored", [(4096 // 8, 8192), (4096, 8192 // 8)], ids=["gptq", "awq"])
def test_a_large_layer_takes_little_memory(stored: tuple[int, int], tmp_path: Path) -> None:
    """134 MB as float32; stored turned, so that every row is gathered from all of the file."""
    state = {
        "l.qweight": torch.full(stored, 0x1234567, dtype=torch.int32),
        "l.qzeros": torch.zeros(32, 1024, dtype=torch.int32),
        "l.scales": torch.ones(32, 8192, dtype=torch.float16),
    }
    save_file(state, tmp_path / "m.safetensors")
    checkpoint = open_checkpoint(tmp_path / "m.safetensors")
    assert checkpoint.info("l.weight").shape == (8192, 4096)
    tracemalloc.start()
    try:
        size = sum(len(piece) for piece in checkpoint.read("l.weight"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size == 4 * 8192 * 4096
    assert peak < 64 << 20
