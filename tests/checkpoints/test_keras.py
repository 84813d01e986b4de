"""Keras: held against what Keras itself shows; nothing leads out of the file."""

import os
import struct
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest

import neuralmark
from neuralmark import Key
from neuralmark.checkpoints import keras as keras_files
from neuralmark.checkpoints import open_checkpoint
from neuralmark.checkpoints.readers import hdf5
from neuralmark.checkpoints.readers.hdf5 import runs
from neuralmark.checkpoints.readers.hdf5_names import ReadAt, name_of
from neuralmark.errors import (
    CheckpointError,
    MalformedError,
    MissingExtraError,
    NeuralMarkError,
    OutputError,
    UnknownFormatError,
    UnsafeError,
    UnsuitableTensorError,
)
from neuralmark.storage.places import FarPlace
from tests.support.checks import one_line
from tests.support.commands import call
from tests.support.far import MirrorPlace
from tests.support.makers import values
from tests.support.models import SMALL, gaussian, saved

Build = Callable[[Any], Any]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def keras() -> Any:
    """On torch; its settings in a folder of their own."""
    os.environ["KERAS_BACKEND"] = "torch"
    os.environ["KERAS_HOME"] = tempfile.mkdtemp()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras as package
    package.utils.set_random_seed(0)
    return package


def convolutional(keras: Any) -> Any:
    """Trained, so that it has an optimizer."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, name="first"),
            keras.layers.BatchNormalization(),
            keras.layers.SeparableConv2D(4, 3),
            keras.layers.PReLU(),
            keras.layers.Flatten(),
            keras.layers.Dense(16, name="hidden"),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(5, use_bias=False),
        ]
    )
    model.compile("adam", "mse")
    model.fit(np.ones((4, 8, 8, 3)), np.ones((4, 5)), verbose=0)
    return model


def attentive(keras: Any) -> Any:
    given = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(10, 8)(given)
    x = keras.layers.MultiHeadAttention(2, 4)(x, x)
    x = keras.layers.EinsumDense("abc,cd->abd", (6, 8))(x)
    return keras.Model(given, keras.layers.LSTM(4)(x))


def within(keras: Any) -> Any:
    inner = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(2)], name="inner")
    return keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(2, name="last")])


def rounded(keras: Any) -> Any:
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, dtype="bfloat16", name="a"),
            keras.layers.Dense(3, dtype="float16", name="b"),
        ]
    )


def shown(model: Any) -> dict[str, npt.NDArray[Any]]:
    """The weights of a model by the names that Keras shows, without the model's own."""
    found = {}
    for each in model.weights:
        path = each.path.removeprefix(f"{model.name}/").replace("/", ".")
        found[path] = each.value.detach().float().numpy()
    return found


def keep(model: Any, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.name.endswith(".weights.h5"):
            model.save_weights(path)
        else:
            model.save(path)
    return path


@pytest.mark.parametrize("ending", [".keras", ".h5", ".weights.h5"])
@pytest.mark.parametrize("build", [convolutional, attentive, within, rounded])
def test_names_and_values_are_what_keras_shows(
    keras: Any, build: Build, ending: str, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build(keras)
    path = keep(model, tmp_path / f"m{ending}")
    expected, checkpoint = shown(model), open_checkpoint(path)
    found = {name.removeprefix(f"{model.name}."): name for name in checkpoint.names()}
    seeds = {name for name in found if "seed_generator" in name}
    assert set(found) - seeds == set(expected)
    for name, array in expected.items():
        assert np.array_equal(values(checkpoint, found[name]), array), name
    far = open_checkpoint(MirrorPlace(path))
    for name in far.names():
        assert np.array_equal(values(far, name), values(checkpoint, name))
    if build is rounded:
        assert checkpoint.info(found["a.kernel"]).dtype == "BF16"
        assert checkpoint.info(found["b.kernel"]).dtype == "F16"


def layers_file(path: Path, layers: dict[str, dict[str, Any]], **options: Any) -> Path:
    """The layout of a weights file of Keras 3."""
    with h5py.File(path, "w") as file:
        for layer, arrays in layers.items():
            group = file.create_group(f"layers/{layer}/vars")
            for name, array in arrays.items():
                group.create_dataset(name, data=array, **options)
    return path


def test_variables_of_other_layers_keep_their_numbers(tmp_path: Path) -> None:
    layers = {
        "own": {"0": gaussian(3, 4), "1": gaussian(5)},
        "more": {"0": gaussian(3, 4), "1": gaussian(4), "2": gaussian(4)},
        "batch_normalization_2": {"0": gaussian(4), "1": gaussian(4)},
        "dense_7": {"0": gaussian(3, 4)},
        "lora": {"0": gaussian(3, 4), "x": gaussian(4)},
        "vector": {"0": gaussian(4), "1": gaussian(4)},
    }
    path = layers_file(tmp_path / "m.weights.h5", layers)
    with h5py.File(path, "a") as file:
        file.create_group("vars")["0"] = gaussian(4)
        file["layers/own/vars"].attrs["name"] = "mine/too"
        file["layers/more/vars"].attrs["name"] = 5
    assert set(open_checkpoint(path).names()) == {
        *("mine.too.0", "mine.too.1", "more.0", "more.1", "more.2", "dense_7.kernel", "0"),
        *("batch_normalization_2.0", "batch_normalization_2.1", "lora.0", "lora.x"),
        *("vector.0", "vector.1"),
    }


def test_two_layers_of_one_name(tmp_path: Path) -> None:
    path = layers_file(tmp_path / "m.h5", {"a": {"0": gaussian(3, 4)}, "b": {"0": gaussian(4, 4)}})
    with h5py.File(path, "a") as file:
        for layer in "ab":
            file[f"layers/{layer}/vars"].attrs["name"] = "same"
    assert open_checkpoint(path).names() == ["same.kernel", "layers.b.vars.0"]
    with h5py.File(path, "a") as file:
        file["layers.b.vars.0"] = gaussian(3)
        file["layers/b/vars"].attrs["name"] = "same"
    with pytest.raises(MalformedError, match=r"two variables that are called 'layers\.b\.vars\.0'"):
        open_checkpoint(path)


def test_a_folder_of_transformers_for_tensorflow(tmp_path: Path) -> None:
    array = gaussian(6, 8)
    with h5py.File(tmp_path / "tf_model.h5", "w") as file:
        file.attrs["layer_names"] = [b"bert"]
        file.create_group("bert")["tf_bert_model/bert/pooler/dense/kernel:0"] = array
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.names() == ["tf_bert_model.bert.pooler.dense.kernel"]
    assert np.array_equal(values(checkpoint, checkpoint.names()[0]), array)
    saved(tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path).format == "folder of safetensors"
    with pytest.raises(OutputError, match=r"tf_model\.h5 would be published"):
        neuralmark.embed(tmp_path, Key.new(SMALL), tmp_path.with_name("out"))


# chunks


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (7, 50)},
        {"chunks": (7, 50), "compression": "gzip", "shuffle": True},
        {"chunks": (1, 96), "compression": "lzf", "fletcher32": True},
        {"chunks": (40, 1), "compression": "gzip"},
    ],
)
@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2"])
def test_chunks_are_read_in_pieces(
    options: Any, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuralmark.checkpoints.contract.CHUNK_BYTES", 4096)
    array = gaussian(40, 96).astype(dtype)
    path = layers_file(tmp_path / "m.h5", {"dense": {"0": array}}, **options)
    for place in (path, MirrorPlace(path)):
        checkpoint = open_checkpoint(place)
        info = checkpoint.info("dense.kernel")
        assert (info.dtype, info.shape) == ("F32", (40, 96))
        assert str(info.stored).startswith({"4": "F32", "8": "F64", "2": "F16"}[dtype[2]])
        assert np.array_equal(values(checkpoint, "dense.kernel"), array.astype(np.float32))
        for start, stop in (
            (0, 1),
            (95, 97),
            (50, 300),
            (96, 192),
            (3839, 3840),
            (0, 3840),
            (5, 5),
        ):
            run = checkpoint.read_run("dense.kernel", start, stop).view("<f4")
            assert np.array_equal(run, array.reshape(-1)[start:stop].astype(np.float32))


def test_runs_of_any_shape() -> None:
    rng = np.random.default_rng(0)
    for shape in ((), (7,), (1, 5), (5, 1), (3, 4), (2, 3, 4), (3, 1, 2, 2)):
        array = np.arange(int(np.prod(shape))).reshape(shape)
        for _ in range(40):
            start, stop = sorted(rng.integers(0, array.size + 1, 2).tolist())
            if start < stop:
                parts = [np.asarray(array[index]).reshape(-1) for index in runs(shape, start, stop)]
                assert np.concatenate(parts).tolist() == list(range(start, stop))


def test_compact_data_sets_and_other_types(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((4,))
        compact = h5py.h5d.create(file.id, b"compact", h5py.h5t.IEEE_F32LE, space, plan)
        compact.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(4, dtype="f4"))
        file["big"] = np.ones(3, ">f4")
        file["whole"] = np.arange(5)
        file["packed"] = h5py.Empty("f4")
        file["words"] = ["a", "b"]
        file["table"] = np.zeros(2, [("a", "f4")])
        file["wide"] = np.zeros(2, "V7")
        file["scalar"] = np.float32(2)
        file["nothing"] = np.empty((0, 3), "f4")
        file.create_dataset("integers", data=np.arange(9), chunks=(3,))
        file.create_dataset("odd", data=np.ones(9, "f4"), chunks=(3,), scaleoffset=2)
    checkpoint = open_checkpoint(path)
    assert np.array_equal(values(checkpoint, "compact"), np.arange(4))
    assert values(checkpoint, "scalar") == 2
    assert values(checkpoint, "nothing").shape == (0, 3)
    assert np.array_equal(np.concatenate(list(checkpoint.read("whole"))).view("<i8"), np.arange(5))
    why = {name: checkpoint.info(name).obstacle for name in checkpoint.names()}
    told = {
        "big": "big-endian",
        "packed": "no values",
        "words": "not hold numbers",
        "table": "not hold numbers",
        "wide": "'|V7' is not known",
        "integers": "its integers are stored in chunks",
        "odd": "packed with filter 6",
    }
    assert {name for name, obstacle in why.items() if obstacle} == set(told)
    assert all(words in str(why[name]) for name, words in told.items())


# what leads out of the file, and what claims too much


def external(file: Any) -> None:
    file["a"] = h5py.ExternalLink("/etc/passwd", "/x")


def soft(file: Any) -> None:
    file["b"] = gaussian(3)
    file["a"] = h5py.SoftLink("/b")


def outside(file: Any) -> None:
    file.create_dataset("a", (4,), "f4", external=[("/etc/hostname", 0, 16)])


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("/etc/other.h5", "x", (4,))
    file.create_virtual_dataset("a", layout)


def bomb(file: Any) -> None:
    file.create_dataset("a", (1 << 20, 1 << 20), "f4", chunks=(1, 1024), compression="gzip")


def wide_chunks(file: Any) -> None:
    file.create_dataset("a", (40_000, 1000), "f4", chunks=(40_000, 1000), compression="gzip")
    file["a"][0, 0] = 1


@pytest.mark.parametrize("make", [external, soft, outside, virtual, bomb, wide_chunks])
def test_unsafe_files(make: Callable[[Any], None], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        make(file)
    with pytest.raises(UnsafeError, match="'a'") as caught:
        open_checkpoint(tmp_path / "m.h5")
    one_line(caught.value)


def test_groups_that_hold_each_other(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_group("a")["b"] = file["/"]
    with pytest.raises(MalformedError, match="hold each other"):
        open_checkpoint(tmp_path / "m.h5")


def test_bytes_that_were_never_written(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_dataset("a", (4000, 4000), "f4")
    with pytest.raises(MalformedError, match="'a' does not have all of its bytes"):
        open_checkpoint(tmp_path / "m.h5")


def test_members_beyond_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "MAX_TENSORS", 3)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        for name in "abcd":
            file[name] = gaussian(2)
    with pytest.raises(MalformedError, match="too many members"):
        open_checkpoint(tmp_path / "m.h5")


# archives


def archive(path: Path, weights: bytes | None, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as out:
        out.writestr("metadata.json", "{}")
        out.writestr("config.json", "{}")
        if weights is not None:
            out.writestr("model.weights.h5", weights)
    return path


def test_archives(tmp_path: Path) -> None:
    array = gaussian(12, 8)
    weights = layers_file(tmp_path / "w.h5", {"dense": {"0": array}}, chunks=(5, 8))
    path = archive(tmp_path / "m.keras", weights.read_bytes())
    assert np.array_equal(values(open_checkpoint(path), "dense.kernel"), array)
    packed = archive(tmp_path / "p.keras", weights.read_bytes(), zipfile.ZIP_DEFLATED)
    with pytest.raises(UnknownFormatError, match="is compressed: unpack it, and give that file"):
        open_checkpoint(packed)
    with pytest.raises(UnknownFormatError, match="not a known checkpoint format"):
        open_checkpoint(archive(tmp_path / "none.keras", None))
    with pytest.raises(MalformedError, match="not a sound HDF5 file"):
        open_checkpoint(archive(tmp_path / "bad.keras", b"nothing of the kind"))


def test_truncated_archives_are_named_errors(tmp_path: Path) -> None:
    weights = layers_file(tmp_path / "w.h5", {"dense": {"0": gaussian(12, 8)}})
    path = archive(tmp_path / "m.keras", weights.read_bytes())
    whole = path.read_bytes()
    for length in np.linspace(0, len(whole) - 1, 30).astype(int):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(path)
        one_line(caught.value)


# what users do


def test_it_is_read_only_and_inspect_shows_it(tmp_path: Path) -> None:
    path = layers_file(tmp_path / "m.weights.h5", {"dense": {"0": gaussian(300, 300)}})
    with pytest.raises(UnsuitableTensorError, match=r"numpy\.savez .*mark that file.*set_weights"):
        neuralmark.embed(path, Key.new(SMALL), in_place=True)
    told = call("inspect", path, "--json").json
    assert told["format"] == "keras"
    assert [(row["name"], row["dtype"]) for row in told["rows"]] == [("dense.kernel", "F32")]


def test_a_model_is_marked_as_npz_and_found_in_keras(keras: Any, tmp_path: Path) -> None:
    """The way that the message tells of."""
    layers = [keras.layers.Dense(400, name=f"d{i}") for i in range(2)]
    model = keras.Sequential([keras.Input((300,)), *layers])
    checkpoint = open_checkpoint(keep(model, tmp_path / "plain.keras"))
    arrays = {name: values(checkpoint, name) for name in checkpoint.names()}
    np.savez(tmp_path / "plain.npz", allow_pickle=False, **arrays)
    key = Key.new(SMALL)
    done = neuralmark.embed(tmp_path / "plain.npz", key, tmp_path / "marked.npz")
    with np.load(tmp_path / "marked.npz") as marked:
        model.set_weights([marked[name] for name in shown(model)])
    for ending in (".keras", ".h5", ".weights.h5"):
        path = keep(model, tmp_path / f"marked{ending}")
        assert neuralmark.verify(path, key, claim=done.claim).matched == 256
    assert not neuralmark.verify(tmp_path / "plain.keras", key, claim=done.claim).verified


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = layers_file(tmp_path / "m.h5", {"dense": {"0": gaussian(3, 4)}})
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'neuralmark\[keras\]'"):
        open_checkpoint(path)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = layers_file(tmp_path / "m.h5", {"dense": {"0": gaussian(30, 40)}}, chunks=(10, 10))
    checkpoint = open_checkpoint(path)
    layers_file(path, {"dense": {"0": gaussian(40, 30)}}, chunks=(10, 10))
    with pytest.raises(MalformedError, match="was changed while it was read"):
        values(checkpoint, "dense.kernel")
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(MalformedError, match="was cut while it was read"):
        values(checkpoint, "dense.kernel")


def test_what_a_far_place_says_is_passed_on(tmp_path: Path) -> None:
    path = layers_file(tmp_path / "m.h5", {"dense": {"0": gaussian(300, 400)}}, chunks=(10, 10))

    class Failing(MirrorPlace):
        def read_into(self, buffer: memoryview, at: int) -> int:
            if at > 2000:
                raise CheckpointError("the line went dead")
            return super().read_into(buffer[: 2048 - at], at)

    place: FarPlace = Failing(path)
    with pytest.raises(NeuralMarkError, match="the line went dead"):
        open_checkpoint(place)


ENDING = """
import sys
from pathlib import Path
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import CheckpointError
from tests.support.far import MirrorPlace


class Dying(MirrorPlace):
    reads = 0

    def read_into(self, buffer, at):
        Dying.reads += 1
        if Dying.reads > limit:
            raise CheckpointError("the line went dead")
        return super().read_into(buffer, at)


kept = []
kept.append(kept)
for limit in range(12):
    Dying.reads = 0
    for place in (*map(Path, sys.argv[1:4]), Dying(Path(sys.argv[4]))):
        try:
            open_checkpoint(place)
        except CheckpointError as error:
            kept.append(error)
            sys.last_value = error
print(len(kept))
"""


def test_a_process_that_met_bad_files_ends_as_it_should(tmp_path: Path) -> None:
    """HDF5 crashes at the end of a process if anything of a failed opening is still held."""
    bad = archive(tmp_path / "bad.keras", b"nothing of the kind" * 100)
    broken = tmp_path / "broken.h5"
    broken.write_bytes(hdf5.HEAD + bytes(3000))
    sound = layers_file(tmp_path / "m.h5", {"dense": {"0": gaussian(30, 40)}}, chunks=(10, 10))
    with h5py.File(tmp_path / "unsafe.h5", "w") as file:
        file.create_group("b")["c"] = gaussian(3)
        outside(file)
    places = (bad, broken, tmp_path / "unsafe.h5", sound)
    command = [sys.executable, "-c", ENDING, *map(str, places)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40


def test_an_archive_without_weights_is_none_of_keras(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match=r"holds no model\.weights\.h5"):
        keras_files.open(archive(tmp_path / "none.keras", None))


def test_a_file_that_is_cut_while_h5py_reads_it(tmp_path: Path) -> None:
    path = layers_file(tmp_path / "m.h5", {"dense": {"0": gaussian(300, 400)}}, chunks=(10, 10))
    whole = path.stat().st_size

    class Shrinking(MirrorPlace):
        def size(self) -> int:
            return whole

    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(MalformedError, match="was cut while it was read"):
        open_checkpoint(Shrinking(path))


def test_committed_types_are_passed_over(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["kind"] = np.dtype("f4")
        file["a"] = gaussian(3)
    assert open_checkpoint(tmp_path / "m.h5").names() == ["a"]


def named(path: Path, name: Any) -> bytearray:
    """The bytes of a file with one layer of this name."""
    layers_file(path, {"dense": {"0": gaussian(3, 4)}})
    with h5py.File(path, "a") as file:
        file["layers/dense/vars"].attrs["other"] = "x" * 100
        file["layers/dense/vars"].attrs["name"] = name
    return bytearray(path.read_bytes())


@pytest.mark.parametrize("size", [0, 0xFFFFFFFFFFFFFFE9, 0xFFFFFFFFFFFFFFF0, 1 << 63, 5])
def test_heaps_on_which_hdf5_never_ends(size: int, tmp_path: Path) -> None:
    """Read by h5py, the attribute of some of these files is never there."""
    path = tmp_path / "m.h5"
    data = named(path, "mine")
    assert open_checkpoint(path).names() == ["mine.kernel"]
    struct.pack_into("<Q", data, data.index(b"GCOL") + 24, size)
    path.write_bytes(data)
    (name,) = open_checkpoint(path).names()
    assert name in ("dense.kernel", "mine.kernel")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("mine", "mine"), ("a/b", "a.b"), ("ü" * 40, "ü" * 40), (np.bytes_(b"fixed"), "fixed"),
        ("", "dense"), ("x" * 2000, "dense"), ("a\nb", "dense"), (np.bytes_(b"\xff"), "dense"),
        (5, "dense"),
    ],
)  # fmt: skip
def test_names_of_layers(name: Any, shown: str, tmp_path: Path) -> None:
    named(tmp_path / "m.h5", name)
    assert open_checkpoint(tmp_path / "m.h5").names() == [f"{shown}.kernel"]


def reading(data: bytes) -> ReadAt:
    return lambda length, at: data[at : at + length]


def test_names_in_damaged_headers(tmp_path: Path) -> None:
    """Every byte of the way to a name, changed: a text or nothing, and always an end."""
    data = bytes(named(tmp_path / "m.h5", "mine"))
    with h5py.File(tmp_path / "m.h5") as file:
        start = h5py.h5o.get_info(file["layers/dense/vars"].id).addr
    assert name_of(reading(data), start) == "mine"
    heap = data.index(b"GCOL")
    for at in (*range(start, start + 400), *range(heap, heap + 200)):
        for value in (0, 1, 0x10, 0xFF):
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            found = name_of(reading(changed), start)
            assert found is None or isinstance(found, str)
    for length in range(0, len(data), 97):
        assert name_of(reading(data[:length]), start) in (None, "mine")


def test_continuations_that_lead_to_themselves() -> None:
    block = struct.pack("<BxHII4x", 1, 1, 1, 24)
    block += struct.pack("<HHB3xQQ", 0x10, 16, 0, 16, 24)
    assert name_of(reading(block), 0) is None
    odd = struct.pack("<BxHII4x", 1, 1, 1, 16) + struct.pack("<HHB3xQ", 0x0C, 8, 0, 99)
    assert name_of(reading(odd), 0) is None


def test_newer_headers_have_no_name_for_us(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w", libver="latest") as file:
        group = file.create_group("layers/dense/vars")
        group["0"] = gaussian(3, 4)
        group.attrs["name"] = "mine"
    assert open_checkpoint(tmp_path / "m.h5").names() == ["dense.kernel"]
