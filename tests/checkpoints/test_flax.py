"""Flax: held against flax.serialization; only headers are read before values are asked for."""

import json
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import numpy.typing as npt
import optax
import pytest
from flax import linen
from flax.training.train_state import TrainState
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file

import neuralmark
from neuralmark import Key
from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.checkpoints.readers import msgpack_tree
from neuralmark.errors import (
    MalformedError,
    NeuralMarkError,
    OutputError,
    UnknownFormatError,
    UnsuitableTensorError,
)
from tests.support.checks import one_line
from tests.support.commands import call
from tests.support.far import MirrorPlace
from tests.support.makers import values
from tests.support.makers.flax import nested
from tests.support.models import SMALL, gaussian, saved


class Network(linen.Module):  # type: ignore[misc]
    """Two dense layers and a batch norm."""

    @linen.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        x = linen.BatchNorm(use_running_average=True)(linen.Dense(24)(x))
        return linen.Dense(5, param_dtype=jnp.bfloat16)(x)


def written(path: Path, tree: Any) -> Path:
    path.write_bytes(flax.serialization.msgpack_serialize(tree))
    return path


def agrees(checkpoint: Checkpoint, tree: Any) -> None:
    """Against what flax itself restores."""
    expected = {".".join(name): array for name, array in flatten_dict(tree).items()}
    assert set(checkpoint.names()) == set(expected)
    for name, array in expected.items():
        assert checkpoint.info(name).shape == array.shape
        assert np.array_equal(values(checkpoint, name), np.asarray(array, np.float32)), name


def test_a_real_network(tmp_path: Path) -> None:
    variables = Network().init(jax.random.key(0), jnp.ones((1, 12)))
    path = tmp_path / "network.msgpack"
    path.write_bytes(flax.serialization.to_bytes(variables))
    checkpoint = open_checkpoint(path)
    agrees(checkpoint, flax.serialization.msgpack_restore(path.read_bytes()))
    kernel = checkpoint.info("params.Dense_1.kernel")
    assert (kernel.dtype, kernel.shape) == ("BF16", (24, 5))  # [in, out], as Flax has it
    assert "batch_stats.BatchNorm_0.mean" in checkpoint.names()


def test_the_state_of_a_training_is_left_out(tmp_path: Path) -> None:
    variables = Network().init(jax.random.key(0), jnp.ones((1, 12)))
    state = TrainState.create(
        apply_fn=Network().apply, params=variables["params"], tx=optax.adam(1e-3)
    )
    path = tmp_path / "state.msgpack"
    path.write_bytes(flax.serialization.to_bytes(state))
    restored = flax.serialization.msgpack_restore(path.read_bytes())
    assert "mu" in restored["opt_state"]["0"]
    agrees(open_checkpoint(path), {"params": restored["params"]})


DTYPES = [
    *("float64", "float32", "float16", "int64", "int8", "uint32", "bool"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_element_types(dtype: str, tmp_path: Path) -> None:
    array = np.arange(-6, 6).reshape(3, 4).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    checkpoint = open_checkpoint(written(tmp_path / "m.msgpack", {"a": {"w": array}}))
    raw = b"".join(bytes(piece) for piece in checkpoint.read("a.w"))
    assert raw == array.tobytes()
    if "float" in dtype:
        assert np.array_equal(values(checkpoint, "a.w"), array.astype(np.float64))


def test_what_is_not_an_array_is_passed_over(tmp_path: Path) -> None:
    tree = {
        "step": 3, "big": 1 << 40, "low": -5, "lower": -(1 << 40), "rate": 0.5, "none": None,
        "yes": True, "z": 1 + 2j, "name": "n" * 300, "raw": b"x" * 70_000, "list": [1, gaussian(3)],
        "scalar": np.float32(2), "many": {str(i): i for i in range(70_000)}, "empty": {},
        "long " * 50: gaussian(2),
    }  # fmt: skip
    checkpoint = open_checkpoint(written(tmp_path / "m.msgpack", tree))
    assert set(checkpoint.names()) == {"list.1", "scalar", "long " * 50}
    assert values(checkpoint, "scalar") == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_arrays_in_chunks(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = gaussian(7, 11).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 100)
    path = written(tmp_path / "m.msgpack", {"a": {"w": array}, "small": gaussian(3)})
    assert path.read_bytes().count(b"__msgpack_chunked_array__") == 1
    checkpoint, expected = open_checkpoint(path), array.astype(np.float32)
    assert checkpoint.info("a.w").shape == (7, 11)
    assert "chunks" in str(checkpoint.info("a.w").stored)
    assert np.array_equal(values(checkpoint, "a.w"), expected)
    for start, stop in ((0, 1), (20, 60), (24, 25), (25, 26), (76, 77), (0, 77), (9, 9)):
        run = checkpoint.read_run("a.w", start, stop).view("<f4")
        assert np.array_equal(run, expected.reshape(-1)[start:stop])
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 1 << 30)
    whole = written(tmp_path / "w.msgpack", {"a": {"w": array}})
    assert np.array_equal(values(open_checkpoint(whole), "a.w"), values(checkpoint, "a.w"))


def chunked(shape: Any, chunks: Any) -> dict[str, Any]:
    return {"w": {"__msgpack_chunked_array__": True, "shape": shape, "chunks": chunks}}


@pytest.mark.parametrize(
    "tree",
    [
        chunked({"0": 4}, {"0": np.ones(3, "f4")}),
        chunked({"0": 4}, {"0": np.ones((2, 2), "f4")}),
        chunked({"0": 4}, {"0": np.ones(2, "f4"), "1": np.ones(2, "f8")}),
        chunked({"0": 4}, {"0": np.ones(2, "f4"), "2": np.ones(2, "f4")}),
        chunked({"0": 4}, {"0": np.ones(4, "f4"), "1": 3}),
        chunked({"0": -4}, {"0": np.ones(4, "f4")}),
        chunked({"0": True}, {"0": np.ones(1, "f4")}),
        chunked({"0": 4}, {}),
        chunked({"0": 4}, 7),
        chunked(None, None),
    ],
)
def test_chunks_that_do_not_fit(tree: Any, tmp_path: Path) -> None:
    with pytest.raises(MalformedError, match="chunks of 'w' do not fit") as caught:
        open_checkpoint(written(tmp_path / "m.msgpack", tree))
    one_line(caught.value)


def test_a_single_chunk_and_one_of_integers(tmp_path: Path) -> None:
    one = chunked({"0": 2, "1": 2}, {"0": np.arange(4, dtype="f4")})
    checkpoint = open_checkpoint(written(tmp_path / "m.msgpack", one))
    assert np.array_equal(values(checkpoint, "w"), [[0, 1], [2, 3]])
    assert checkpoint.info("w").stored is None
    integers = chunked({"0": 4}, {"0": np.ones(2, "i4"), "1": np.ones(2, "i4")})
    checkpoint = open_checkpoint(written(tmp_path / "i.msgpack", integers))
    assert "not of numbers" in str(checkpoint.info("w").obstacle)


def test_only_headers_are_fetched(tmp_path: Path) -> None:
    tree = {f"layer{i}": {"kernel": gaussian(500, 500, seed=i)} for i in range(5)}
    path = written(tmp_path / "m.msgpack", tree)
    fetched = []

    class Counting(MirrorPlace):
        def read_into(self, buffer: memoryview, at: int) -> int:
            fetched.append(len(buffer))
            return super().read_into(buffer, at)

    checkpoint = open_checkpoint(Counting(path))
    assert sum(fetched) < 60_000 < path.stat().st_size / 50
    assert np.array_equal(values(checkpoint, "layer3.kernel"), tree["layer3"]["kernel"])


# folders as transformers saves them


def flax_folder(folder: Path, *, shards: bool) -> dict[str, npt.NDArray[np.float32]]:
    folder.mkdir()
    arrays = {f"model.h.{i}.mlp.kernel": gaussian(300, 200, seed=i) for i in range(3)}
    if not shards:
        written(folder / "flax_model.msgpack", nested(arrays))
        return arrays
    table = {}
    for number, (name, array) in enumerate(arrays.items(), 1):
        file = f"flax_model-{number:05d}-of-00003.msgpack"
        written(folder / file, nested({name: array}))
        table[name.replace(".", "/")] = file
    index = {"metadata": {"total_size": 1}, "weight_map": table}
    (folder / "flax_model.msgpack.index.json").write_text(json.dumps(index))
    return arrays


@pytest.mark.parametrize("shards", [False, True])
def test_folders(shards: bool, tmp_path: Path) -> None:
    arrays = flax_folder(tmp_path / "model", shards=shards)
    index = tmp_path / "model" / "flax_model.msgpack.index.json"
    for place in (tmp_path / "model", *([index] if shards else [])):
        checkpoint = open_checkpoint(place)
        assert checkpoint.format == "folder of flax"
        assert set(checkpoint.names()) == set(arrays)
        assert all(np.array_equal(values(checkpoint, name), arrays[name]) for name in arrays)


def test_safetensors_come_first_and_are_not_published_beside_flax(tmp_path: Path) -> None:
    flax_folder(tmp_path / "model", shards=False)
    saved(tmp_path / "model" / "model.safetensors")
    assert open_checkpoint(tmp_path / "model").format == "folder of safetensors"
    with pytest.raises(OutputError, match=r"flax_model\.msgpack would be published"):
        neuralmark.embed(tmp_path / "model", Key.new(SMALL), tmp_path / "out")


# what users do


def test_a_marked_model_is_found_again_in_flax(tmp_path: Path) -> None:
    """Renamed and turned, as a converter does: found by the anchor."""
    names = {f"fc{i}.weight": f"params.Dense_{i}.kernel" for i in range(2)}
    source = {name: gaussian(256, 320, seed=i) for i, name in enumerate(names)}
    saved(tmp_path / "torch.safetensors", **source)
    key, out = Key.new(SMALL), tmp_path / "marked.safetensors"
    done = neuralmark.embed(tmp_path / "torch.safetensors", key, out)
    turned = {names[name]: array.T.copy() for name, array in load_file(out).items()}
    path = written(tmp_path / "m.msgpack", nested(turned))
    assert done.anchor_file is not None
    options = neuralmark.VerifyOptions(anchor=done.anchor_file)
    verdict = neuralmark.verify(path, key, claim=done.claim, options=options)
    assert verdict.verified
    assert verdict.matched == 256


def test_it_is_read_only_and_inspect_shows_it(tmp_path: Path) -> None:
    tree = {"params": {"d": {"kernel": gaussian(300, 300).astype(ml_dtypes.bfloat16)}}}
    path = written(tmp_path / "m.msgpack", tree)
    with pytest.raises(UnsuitableTensorError, match=r"safetensors\.flax\.save_file, mark"):
        neuralmark.embed(path, Key.new(SMALL), in_place=True)
    shown = call("inspect", path, "--json").json
    assert shown["format"] == "flax"
    assert [(row["name"], row["dtype"]) for row in shown["rows"]] == [("params.d.kernel", "BF16")]


# malformed files


def packed(shape: Any, dtype: Any, data: Any, kind: int = 1, more: bytes = b"") -> bytes:
    body = msgpack.packb((shape, dtype, data), use_bin_type=True) + more
    done: bytes = msgpack.packb({"w": msgpack.ExtType(kind, body)})
    return done


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (packed((2, 3), "float32", bytes(20)), "has 20 bytes"),
        (packed((1 << 50, 1 << 50), "float32", bytes(20)), "has 20 bytes"),
        (packed((-1,), "float32", bytes(4)), "without a shape"),
        (packed((True,), "float32", bytes(4)), "without a shape"),
        (packed(3, "float32", bytes(12)), "without a shape"),
        (packed((1,) * 65, "float32", bytes(4)), "without a shape"),
        (packed((3,), 5, bytes(12)), "key that is not a text"),
        (packed((3,), "f" * 40, bytes(12)), "without a type"),
        (packed((3,), "float32", "text"), "without a type"),
        (packed((3,), "float32", bytes(12), more=b"\xc0"), "longer or shorter"),
        (packed((3,), "float32", bytes(12), kind=7), "extension type 7"),
        (msgpack.packb({"w": msgpack.ExtType(1, b"\xc0")}), "not of shape, type and bytes"),
        (msgpack.packb({"a": 1, "b": "x"}), "table without arrays"),
        (msgpack.packb({"a": {1: 2}}), "key that is not a text"),
        (msgpack.packb({"a": {"k" * 2000: 2}}), "over 1,024"),
        (b"\x81\xa1a\xc1", "0xc1"),
        (b"\x81\xa1a\x81\xa1\xff\x00", "not text"),
        (b"\x82\xa1a\x00\xa1a\x00", "'a' twice"),
        (packed((3,), "float32", bytes(12)) + b"\x00", "bytes added"),
        (b"\x81\xa1a" * 100 + b"\x00", "64 deep"),
        (b"\xdf\xff\xff\xff\xff\xa1a\x00", "cut off"),
        (b"\x81\xa1a\xc9\xff\xff\xff\xff\x01", "cut off"),
        (b"\x82\xa1a\x81\xa1b" + packed((1,), "float32", bytes(4))[3:] + b"\xa3a.b"
         + packed((1,), "float32", bytes(4))[3:], "two arrays that are called 'a.b'"),
    ],
)  # fmt: skip
def test_malformed_files(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.msgpack"
    path.write_bytes(data)
    with pytest.raises(MalformedError, match=words) as caught:
        open_checkpoint(path)
    one_line(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"\x80", b"\x81", b"\xde\x00", b"\xdf\x00\x00\x00\x01", b"\x81\xa0\x00", b"\x81\x01\x00",
     b"\x81\xa1\x00\x00", b"\x80\x02}q\x00.", b"\x93\x01\x02\x03"],
)  # fmt: skip
def test_what_does_not_begin_like_a_table_of_names(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.msgpack"
    path.write_bytes(data)
    with pytest.raises(NeuralMarkError) as caught:
        open_checkpoint(path)
    assert isinstance(caught.value, UnknownFormatError | MalformedError)


def test_long_tables_and_keys_begin_a_file_too(tmp_path: Path) -> None:
    first = "!" * 40  # sorted before the others
    for keys in (20, 70_000):
        numbers = dict.fromkeys(map(str, range(keys)), 1)
        path = written(tmp_path / "m.msgpack", {first: gaussian(2), **numbers})
        assert open_checkpoint(path).names() == [first]


def test_an_array_alone_is_no_model(tmp_path: Path) -> None:
    path = written(tmp_path / "m.msgpack", gaussian(2))
    with pytest.raises(MalformedError, match="no table of arrays"):
        msgpack_tree.read_tree(path)


def test_members_beyond_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgpack_tree, "MAX_NODES", 5)
    with pytest.raises(MalformedError, match="over 5 members"):
        open_checkpoint(written(tmp_path / "m.msgpack", {"a": [1] * 9}))


def test_an_unknown_type_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "m.msgpack"
    path.write_bytes(packed((3,), "int4", bytes(3)))
    assert open_checkpoint(path).info("w").obstacle == "its dtype 'int4' is not known"
    path.write_bytes(packed((3,), "F32", bytes(12)))  # our name for it, not numpy's
    assert open_checkpoint(path).info("w").obstacle == "its dtype 'F32' is not known"


def test_a_file_that_shrinks_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 1000)
    path = written(tmp_path / "m.msgpack", {"chunked": gaussian(40, 40), "plain": gaussian(10, 10)})
    checkpoint = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[:500])
    for name in checkpoint.names():
        with pytest.raises(MalformedError, match="ends inside"):
            values(checkpoint, name)
