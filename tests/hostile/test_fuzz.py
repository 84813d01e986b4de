"""Mutations of valid files of every kind: a named error or success, nothing else.

Some thousands of inputs; `python -m benchmarks.fuzz` runs a hundred thousand.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
import torch
from flax.serialization import msgpack_serialize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from neuralmark import Claim, Key, Parameters, embed, import_key, verify
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import NeuralMarkError
from tests.support.checks import one_line
from tests.support.makers import flax, gguf
from tests.support.models import gaussian

WORD = "correct horse"
TINY = Parameters(bits=16, pools=40, rounds=1)
KEY = Key(TINY, salt=bytes(32), secret=bytes(32))

TOKENS = [
    *(b"0", b"-1", b"1e9", b"9" * 19, b"9" * 5000, b"true", b"null", b"NaN", b'""', b"[]", b"{}"),
    *(b"[" * 3000, b'{"a":' * 3000, b'"\\ud800"', b"\xff", b"\0" * 8, b"\xff" * 8, b"../", b"\\"),
    *(b"\x7f" * 4, b"\x80\x02", b"PK\x01\x02", b"PK\x05\x06", b"(", b"'", b"F64", b"BF16", b"Q8"),
]


@dataclass(frozen=True)
class Edit:
    """One change: replace `length` bytes from `where` (a share of the file) by `new`."""

    where: float
    length: int
    new: bytes

    def apply(self, data: bytes) -> bytes:
        at = min(int(self.where * (len(data) + 1)), len(data))
        return data[:at] + self.new + data[at + self.length :]


SHARES = st.floats(0, 1, allow_nan=False)
EDITS = st.one_of(
    st.builds(Edit, SHARES, st.just(1), st.binary(min_size=1, max_size=1)),
    st.builds(Edit, SHARES, st.integers(0, 12), st.sampled_from(TOKENS)),
    st.builds(Edit, SHARES, st.integers(0, 64), st.binary(max_size=16)),
    st.builds(Edit, SHARES, st.just(1 << 40), st.just(b"")),
)
# Headers and directories are where it matters: half of the edits go to the first or last part.
NEAR = st.one_of(
    st.builds(lambda edit, s: Edit(edit.where * s, edit.length, edit.new), EDITS, st.just(0.1)),
    st.builds(lambda edit, s: Edit(1 - edit.where * s, edit.length, edit.new), EDITS, st.just(0.1)),
)
CHANGES = st.lists(st.one_of(EDITS, NEAR), min_size=1, max_size=4)


def fuzz(inputs: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run with so many lists of edits, the same every time."""
    tuned = settings(
        max_examples=inputs,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return lambda function: tuned(given(changes=CHANGES)(function))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def arrays() -> dict[str, npt.NDArray[Any]]:
    return {
        "a.weight": gaussian(96, 100),
        "b.weight": gaussian(20, 50, seed=1).astype(np.float16),
        "c": np.arange(6),
        "empty": np.empty((0, 3), np.float32),
    }


def torch_state() -> dict[str, Any]:
    state = {name: torch.from_numpy(array) for name, array in arrays().items()}
    state["d"] = torch.from_numpy(gaussian(24, 50)).to(torch.bfloat16)
    return {"state_dict": state, "epoch": 3, "names": ["x", ("y", None)]}


def make_safetensors(path: Path) -> None:
    save_file(arrays(), path, metadata={"format": "pt"})


def make_torch_zip(path: Path) -> None:
    torch.save(torch_state(), path)


def make_torch_legacy(path: Path) -> None:
    torch.save(torch_state(), path, _use_new_zipfile_serialization=False)


def make_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays())


def make_npz_compressed(path: Path) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays())


def make_gguf(path: Path) -> None:
    given = {"blk.0.attn_q.weight": gaussian(96, 100), **arrays()}
    gguf.save(path, given, "llama", {}, {"llama.attention.head_count": 8})


def make_gguf_quantised(path: Path) -> None:
    kind = gguf.Kind.Q4_0
    names = ("blk.0.attn_q.weight", "blk.0.ffn_up.weight")
    given = {name: gguf.quantised(gaussian(96, 128), kind) for name in names}
    kinds, fields = dict.fromkeys(given, kind), {"llama.attention.head_count": 8}
    gguf.save(path, given, "llama", kinds, fields)


def make_flax(path: Path) -> None:
    path.write_bytes(msgpack_serialize(flax.nested(arrays())))


def make_keras(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays().items():
            file[f"layers/{name}/vars/0"] = array
        file.create_dataset("more", data=gaussian(96, 100), chunks=(9, 100), compression="gzip")


MAKERS = (
    *(make_safetensors, make_torch_zip, make_torch_legacy, make_npz, make_gguf),
    *(make_npz_compressed, make_gguf_quantised, make_flax, make_keras),
)


def mutated(data: bytes, changes: list[Edit]) -> bytes:
    for edit in changes:
        data = edit.apply(data)
    return data


def attempt(path: Path, data: bytes, use: Callable[[Path], object]) -> bool:
    """Use a file; only a named error with a message of one line may come of it."""
    path.write_bytes(data)
    try:
        use(path)
    except NeuralMarkError as error:
        one_line(error)
        return False
    return True


def read_all(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    for name in checkpoint.names():
        info = checkpoint.info(name)
        if info.obstacle is None and info.nbytes < 1 << 20:
            assert sum(len(piece) for piece in checkpoint.read(name)) == info.nbytes
    verify(path, KEY)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@fuzz(220)
def test_checkpoints(folder: Path, make: Callable[[Path], None], changes: list[Edit]) -> None:
    seed = folder / make.__name__
    if not seed.exists():
        make(seed)
        assert attempt(folder / "sound", seed.read_bytes(), read_all)
    attempt(folder / "mutant", mutated(seed.read_bytes(), changes), read_all)


@pytest.mark.parametrize("make", MAKERS[:5], ids=lambda make: make.__name__)
@fuzz(30)
def test_embedding(folder: Path, make: Callable[[Path], None], changes: list[Edit]) -> None:
    seed = folder / make.__name__
    if not seed.exists():
        make(seed)
    before = set(folder.iterdir())
    path = folder / "mutant"
    attempt(path, mutated(seed.read_bytes(), changes[:1]), lambda p: embed(p, KEY, in_place=True))
    for beside in ("mutant.claim.json", "mutant.anchor"):
        (folder / beside).unlink(missing_ok=True)
    path.unlink()
    assert set(folder.iterdir()) - before == set()


@pytest.mark.parametrize("kind", ["plain", "encrypted", "raw"])
@fuzz(220)
def test_keys(folder: Path, kind: str, changes: list[Edit]) -> None:
    seed = folder / f"{kind}.nmkey"
    if not seed.exists():
        key = Key.raw(gaussian(40, 16), 1, "strided", b"content") if kind == "raw" else KEY
        key.save(seed, WORD if kind == "encrypted" else None, cost=10)
    loaded: list[Key] = []
    sound = attempt(
        folder / "mutant.nmkey",
        mutated(seed.read_bytes(), changes),
        lambda path: loaded.append(Key.load(path, WORD)),
    )
    if sound:  # never another key
        original = Key.load(seed, WORD)
        assert (loaded[0].fingerprint, loaded[0]._body()) == (
            original.fingerprint,
            original._body(),
        )


@fuzz(220)
def test_claims(folder: Path, changes: list[Edit]) -> None:
    model, seed = folder / "claimed.safetensors", folder / "claimed.safetensors.claim.json"
    if not seed.exists():
        make_safetensors(folder / "source.safetensors")
        embed(folder / "source.safetensors", KEY, model)
    attempt(
        folder / "mutant.json",
        mutated(seed.read_bytes(), changes),
        lambda path: verify(model, KEY, claim=Claim.load(path)),
    )


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@fuzz(220)
def test_matrices(folder: Path, suffix: str, changes: list[Edit]) -> None:
    seed = folder / f"K{suffix}"
    if not seed.exists():
        text = np.frombuffer(b"text", np.uint8).copy()
        parts: dict[str, npt.NDArray[Any]] = {"K": gaussian(40, 16), "content": text}
        if suffix == ".npy":
            np.save(seed, parts["K"])
        elif suffix == ".npz":
            np.savez(seed, allow_pickle=False, **parts)
        else:
            save_file(parts, seed)
    data = mutated(seed.read_bytes(), changes)
    attempt(folder / f"mutant{suffix}", data, lambda path: import_key(path, rounds=1))


@pytest.mark.parametrize("part", ["index", "shard"])
@fuzz(220)
def test_folders(folder: Path, part: str, changes: list[Edit]) -> None:
    model, shard = folder / "sharded", "model-00001-of-00001.safetensors"
    names = {"index": "model.safetensors.index.json", "shard": shard}
    model.mkdir(exist_ok=True)
    make_safetensors(model / shard)
    table = {"weight_map": dict.fromkeys(arrays(), shard)}
    (model / names["index"]).write_text(json.dumps(table))
    data = mutated((model / names[part]).read_bytes(), changes)
    attempt(model / names[part], data, lambda path: read_all(path.parent))
