"""A sharded checkpoint in the Hugging Face layout with plausible shapes, made in seconds."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks._tensors import SIZES, bfloat16, write_repeated

MARKED = "model.layers.0.mlp.down_proj.weight"
WIDTH, INNER, VOCABULARY = 4096, 11008, 32000
SHARD_BYTES = 1 << 30
Table = dict[str, tuple[str, tuple[int, ...]]]


def table_of(total: float, small: bool = False) -> Table:
    """Tensors of a Llama-like model of at least `total` bytes.

    A `small` one keeps the marked tensor and the number of tensors; all others are tiny.
    """
    wide = (64, 64) if small else None
    table: Table = {"model.embed_tokens.weight": ("BF16", wide or (VOCABULARY, WIDTH))}
    layer, size = 0, 2 * 2 * VOCABULARY * WIDTH
    while size < total:
        inner: dict[str, tuple[int, ...]] = {
            **{f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"},
            "mlp.gate_proj": (INNER, WIDTH),
            "mlp.up_proj": (INNER, WIDTH),
            "mlp.down_proj": (WIDTH, INNER),
            "input_layernorm": (WIDTH,),
            "post_attention_layernorm": (WIDTH,),
        }
        for name, shape in inner.items():
            full = f"model.layers.{layer}.{name}.weight"
            keep = full == MARKED or len(shape) == 1
            table[full] = ("BF16", shape if keep else wide or shape)
            size += 2 * int(np.prod(shape))
        layer += 1
    table["model.norm.weight"] = ("BF16", (WIDTH,))
    table["lm_head.weight"] = ("BF16", wide or (VOCABULARY, WIDTH))
    return table


def bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Stored bytes of a tensor."""
    return SIZES[dtype] * int(np.prod(shape, dtype=np.int64))


MARKED_BYTES = bytes_of("BF16", (WIDTH, INNER))


def make(folder: Path, total: float, small: bool = False) -> int:
    """Write shards, index and config into a new folder; returns the bytes of all tensors."""
    folder.mkdir(parents=True)
    table = table_of(total, small)
    rng = np.random.default_rng(0)
    block = _normal(rng, 8 << 20)
    shards = list(_shards(table))
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        blocks = {
            tensor: _fresh(rng, shape) if tensor == MARKED else _repeat(block, dtype, shape)
            for tensor, (dtype, shape) in shard.items()
        }
        write_repeated(folder / name, shard, blocks)
        weight_map |= dict.fromkeys(shard, name)
    size = sum(bytes_of(*entry) for entry in table.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return size


def _shards(table: Table) -> Iterator[Table]:
    shard: Table = {}
    size = 0
    for name, entry in table.items():
        if shard and size + bytes_of(*entry) > SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = entry
        size += bytes_of(*entry)
    yield shard


def _normal(rng: np.random.Generator, count: int) -> bytes:
    return bfloat16(rng.standard_normal(count, dtype=np.float32) * np.float32(0.02)).tobytes()


def _fresh(rng: np.random.Generator, shape: tuple[int, ...]) -> Iterator[bytes]:
    """Weights that repeat nowhere."""
    for _ in range(shape[0]):
        yield _normal(rng, int(np.prod(shape[1:])))


def _repeat(block: bytes, dtype: str, shape: tuple[int, ...]) -> Iterator[memoryview]:
    left = bytes_of(dtype, shape)
    view = memoryview(block)
    while left:
        piece = view[: min(left, len(view))]
        yield piece
        left -= len(piece)
