"""Small valid files of formats that models are converted to: GGUF, Keras, Flax."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import h5py
import numpy as np

from benchmarks import _tensors

Kind = gguf.GGMLQuantizationType
Made = tuple[str, str, bytes]
"""Name, ending and bytes of a file."""

# jax is imported in a child only: it would hide the memory that the readers take.
_FLAX = """
import sys, numpy as np, ml_dtypes
from flax import serialization
rng = np.random.default_rng(5)
draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
tree = {"params": {"d": {"kernel": draw(16, 24), "bias": draw(24)},
                   "e": {"kernel": draw(9, 7).astype(ml_dtypes.bfloat16)}},
        "opt_state": {"0": {"mu": draw(3)}}, "step": 3, "z": 1 + 2j, "l": [draw(2), np.float16(1)]}
open(sys.argv[1], "wb").write(serialization.msgpack_serialize(tree))
serialization.MAX_CHUNK_SIZE = 300
tree = {"a": {"w": draw(12, 20)}, "b": draw(8, 12).astype(np.float16)}
open(sys.argv[2], "wb").write(serialization.msgpack_serialize(tree))
"""


def converted(folder: Path) -> list[Made]:
    """All of them; `folder` is used while making them."""
    return [*_gguf(folder), *_keras(folder), *_flax(folder)]


def _save(path: Path, arrays: dict[str, _tensors.Array], kinds: dict[str, Kind]) -> bytes:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.attention.head_count", 4)
    writer.add_array("llama.attention.head_count_kv", [2, 2])
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "ü"])
    writer.add_float32("llama.rope.freq_base", 1e4)
    for name, array in arrays.items():
        writer.add_tensor(name, array, raw_dtype=kinds.get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = path.read_bytes()
    path.unlink()
    return data


def _gguf(folder: Path) -> list[Made]:
    rng = np.random.default_rng(4)
    plain: dict[str, _tensors.Array] = {
        "blk.0.attn_q.weight": rng.standard_normal((16, 24), dtype=np.float32),
        "blk.0.attn_k.weight": rng.standard_normal((8, 24)).astype(np.float16),
        "blk.1.ffn_up_exps.weight": rng.standard_normal((3, 4, 6)),
        "output_norm.weight": rng.integers(0, 30_000, 24, dtype=np.uint16).view(np.uint8),
        "x": np.arange(4, dtype=np.int32),
    }
    kinds = {"output_norm.weight": Kind.BF16}
    made = [("gguf", ".gguf", _save(folder / "m.gguf", plain, kinds))]
    for number, some in enumerate(
        (
            (Kind.Q4_0, Kind.Q4_K, Kind.IQ2_XXS, Kind.TQ1_0, Kind.MXFP4),
            (Kind.Q8_0, Kind.Q6_K, Kind.IQ1_M, Kind.IQ4_XS, Kind.NVFP4),
        )
    ):
        arrays: dict[str, _tensors.Array] = {}
        for i, kind in enumerate(some):
            block, size = gguf.GGML_QUANT_SIZES[kind]
            raw = rng.integers(0, 256, (8, 256 // block * size), dtype=np.uint8)
            arrays[("blk.0.attn_q.weight", "blk.0.attn_k.weight", "a", "b", "c")[i]] = raw
        kinds = dict(zip(arrays, some, strict=True))
        made.append((f"gguf quantised {number}", ".gguf", _save(folder / "q.gguf", arrays, kinds)))
    return made


def _keras(folder: Path) -> list[Made]:
    rng, path = np.random.default_rng(6), folder / "m.h5"
    kernel: _tensors.Array = rng.standard_normal((16, 24), dtype=np.float32)
    bias: _tensors.Array = rng.standard_normal(24)
    arrays = [kernel, bias]
    with h5py.File(path, "w") as file:
        for layer in ("dense", "dense_1"):
            group = file.create_group(f"layers/{layer}/vars")
            group.attrs["name"] = f"{layer}_named"
            for number, array in enumerate(arrays):
                group[str(number)] = array
        file.create_group("optimizer/vars")["0"] = bias
    weights = path.read_bytes()
    with h5py.File(path, "w") as file:
        top = file.create_group("model_weights")
        top.attrs["layer_names"] = [b"dense"]
        group = top.create_group("dense")
        group.attrs["weight_names"] = [b"dense/kernel:0", b"dense/bias:0"]
        options = {"chunks": (5, 24), "compression": "gzip", "shuffle": True}
        group.create_dataset("dense/kernel:0", data=kernel, **options)
        group["dense/bias:0"] = bias.astype(np.float16)
    model = path.read_bytes()
    path.unlink()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as out:
        for name, data in (
            ("metadata.json", b'{"keras_version": "3.15.1"}'),
            ("config.json", b"{}"),
            ("model.weights.h5", weights),
        ):
            out.writestr(zipfile.ZipInfo(name), data)
    return [
        ("keras weights", ".h5", weights),
        ("keras model", ".h5", model),
        ("keras archive", ".keras", buffer.getvalue()),
    ]


def _flax(folder: Path) -> list[Made]:
    paths = folder / "m.msgpack", folder / "c.msgpack"
    subprocess.run([sys.executable, "-c", _FLAX, *map(str, paths)], check=True)
    made = [
        ("flax", ".msgpack", paths[0].read_bytes()),
        ("flax chunks", ".msgpack", paths[1].read_bytes()),
    ]
    for path in paths:
        path.unlink()
    return made
