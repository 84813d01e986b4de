"""Small valid files of every format, as seeds for fuzzing; the same bytes every time."""

import io
import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np

import neuralmark
from benchmarks import _tensors
from benchmarks._converted import converted
from benchmarks._corpus_computed import computed_seeds
from benchmarks._seed import Seed
from neuralmark.core.key import Parameters

PASSPHRASE = "correct horse"
TINY = Parameters(bits=16, pools=24, rounds=1)
SHARD, INDEX = "model-00001-of-00002.safetensors", "model.safetensors.index.json"

# torch is imported in a child only: it would hide the memory that the readers take.
_TORCH = """
import sys, torch
torch.manual_seed(0)
half = torch.randn(8, 12).to(torch.bfloat16)
shared = torch.randn(64)
state = {"a.weight": torch.randn(16, 24), "b.weight": half, "c": shared[8:40].reshape(4, 8),
         "d": shared[::2], "e": torch.arange(5), "f": torch.nn.Parameter(torch.randn(3, 3)),
         "g": torch.randn(2, 5).half(), "empty": torch.empty(0, 3)}
saved = {"state_dict": state, "epoch": 3, "best": 0.5, "names": ["x", ("y", None)]}
for new, out in ((True, sys.argv[1]), (False, sys.argv[2])):
    torch.save(saved, out, _use_new_zipfile_serialization=new)
"""


def tiny_key() -> "neuralmark.Key":
    """The same small key every time."""
    return neuralmark.Key(TINY, b"owner=fuzz", salt=bytes(32), secret=bytes(range(32)))


def seeds(folder: Path) -> list[Seed]:
    """All seeds; `folder` is used while making them and afterwards holds a sound folder model."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [*_safetensors(folder), *_torch(folder), *_npz(), *_matrices(folder)]
    made += [*_keys(folder), _claim(folder), *_folder(folder), *computed_seeds(folder)]
    made += _around_torch(folder)
    made += [Seed(name, "checkpoint", end, data) for name, end, data in converted(folder)]
    return made


def _weights() -> dict[str, _tensors.Array]:
    rng = np.random.default_rng(0)
    return {
        "a.weight": rng.standard_normal((16, 24), dtype=np.float32),
        "b.weight": rng.standard_normal((4, 3, 3)).astype(np.float16),
        "c": np.arange(6, dtype=np.int64),
        "d": rng.standard_normal((5, 9)),
        "empty": np.empty((0, 3), np.float32),
    }


def _safetensors(folder: Path) -> list[Seed]:
    made = []
    rng = np.random.default_rng(1)
    raw = {
        "bf16": ("BF16", np.uint16),
        "e4m3": ("F8_E4M3", np.uint8),
        "e5m2": ("F8_E5M2", np.uint8),
    }
    path = folder / "one.safetensors"
    _tensors.save(path, _weights())
    made.append(Seed("safetensors", "checkpoint", ".safetensors", path.read_bytes()))
    for name, (dtype, kind) in raw.items():
        values = rng.integers(0, 100, (8, 16)).astype(kind)
        _tensors.save(path, {"w": values, "layer.weight": values[:4]}, dtype)
        made.append(Seed(f"safetensors {name}", "checkpoint", ".safetensors", path.read_bytes()))
    path.unlink()
    return made


def _torch(folder: Path) -> list[Seed]:
    new, old = folder / "new.pt", folder / "old.pt"
    subprocess.run([sys.executable, "-c", _TORCH, str(new), str(old)], check=True)
    made = [
        Seed("torch zip", "checkpoint", ".pt", new.read_bytes()),
        Seed("torch legacy", "checkpoint", ".pth", old.read_bytes()),
    ]
    new.unlink()
    old.unlink()
    return made


def archive(members: dict[str, tuple[bytes, int]]) -> bytes:
    """A zip of (data, compression) by name, without dates."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as out:
        for name, (data, method) in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            out.writestr(info, data)
    return buffer.getvalue()


def _npy(array: _tensors.Array) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _npz() -> list[Seed]:
    arrays = {f"{name}.npy": _npy(array) for name, array in _weights().items()}
    made = []
    for name, method in (("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
        data = archive({member: (body, method) for member, body in arrays.items()})
        made.append(Seed(f"npz {name}", "checkpoint", ".npz", data))
    return made


def _matrices(folder: Path) -> list[Seed]:
    matrix = np.random.default_rng(2).standard_normal((24, 16), dtype=np.float32)
    path = folder / "matrix.safetensors"
    _tensors.save(path, {"K": matrix})
    text = np.frombuffer(b"content", np.uint8)
    members = {"K.npy": _npy(matrix), "content.npy": _npy(text)}
    data = archive({name: (body, zipfile.ZIP_STORED) for name, body in members.items()})
    made = [
        Seed("matrix npy", "matrix", ".npy", _npy(matrix)),
        Seed("matrix npz", "matrix", ".npz", data),
        Seed("matrix safetensors", "matrix", ".safetensors", path.read_bytes()),
    ]
    path.unlink()
    return made


def _keys(folder: Path) -> list[Seed]:
    native = tiny_key()
    matrix = np.random.default_rng(3).standard_normal((24, 16), dtype=np.float32)
    raw = neuralmark.Key(TINY, b"", salt=bytes(32), matrix=matrix)
    path, made = folder / "key.nmkey", []
    dice = random.Random(0)
    with mock.patch("neuralmark.keys.key.secrets.token_bytes", dice.randbytes):
        for name, key, passphrase in (
            ("key plain", native, None),
            ("key encrypted", native, PASSPHRASE),
            ("key raw", raw, None),
        ):
            key.save(path, passphrase, cost=10, overwrite=True)
            made.append(Seed(name, "key", ".nmkey", path.read_bytes()))
    path.unlink()
    return made


def _claim(folder: Path) -> Seed:
    source, marked = folder / "claimed-source.safetensors", folder / "claimed.safetensors"
    _tensors.save(source, {"a.weight": _weights()["a.weight"]})
    done = neuralmark.embed(
        source,
        tiny_key(),
        marked,
        options=neuralmark.EmbedOptions(tensors=["a.weight"]),
        overwrite=True,
    )
    source.unlink()
    assert done.claim is not None
    for beside in (done.claim_file, done.anchor_file):
        Path(str(beside)).unlink()
    return Seed("claim", "claim", ".json", done.claim.to_json().encode())


def _folder(folder: Path) -> list[Seed]:
    model = folder / "sharded"
    model.mkdir(exist_ok=True)
    weights = _weights()
    first = {name: weights[name] for name in ("a.weight", "b.weight")}
    rest = {name: array for name, array in weights.items() if name not in first}
    other = SHARD.replace("00001-of", "00002-of")
    _tensors.save(model / SHARD, first)
    _tensors.save(model / other, rest)
    table = dict.fromkeys(first, SHARD) | dict.fromkeys(rest, other)
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": table})
    (model / INDEX).write_text(index)
    return [
        Seed("folder index", "index", ".json", index.encode()),
        Seed("folder shard", "shard", ".safetensors", (model / SHARD).read_bytes()),
    ]


AROUND_TORCH = {
    **{"torch program": "program.pt2", "torch script": "script.pt", "torch frozen": "frozen.pt"},
    **{"torch optimizer": "optim.pt", "onnx": "graph.onnx"},
    **{"dcp metadata": "dcp/.metadata", "dcp part": "dcp/__0_0.distcp"},
    "zero model": "zero/mp_rank_00_model_states.pt",
    "zero partition": "zero/zero_pp_rank_1_mp_rank_00_optim_states.pt",
    **{"rank": "ranks/model_rank_1.pt", "onnx beside": "beside/graph.onnx"},
}
"""Seeds that torch and onnx make, and where they lie."""


def _around_torch(folder: Path) -> list[Seed]:
    made = folder / "torch"
    command = [sys.executable, "-m", "benchmarks._corpus_torch", str(made.absolute())]
    root = Path(__file__).resolve().parents[1]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=root)
    return [
        Seed(
            name,
            "within" if "/" in place else "checkpoint",
            Path(place).suffix,
            (made / place).read_bytes(),
            f"torch/{place}",
            f"torch/{Path(place).parent}",
        )
        for name, place in AROUND_TORCH.items()
    ]
