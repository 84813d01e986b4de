"""ONNX: held against the onnx package, real exports, run by onnxruntime before and after."""

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from safetensors.torch import save_file
from torch import nn

import neuralmark
from neuralmark import Embedding, Key
from neuralmark.checkpoints import open_checkpoint
from neuralmark.checkpoints.readers.dtypes import decode
from neuralmark.errors import (
    AmbiguousFolderError,
    CheckpointError,
    MalformedError,
    UnsafeError,
    UsageError,
)
from tests.support.checks import trouble_of
from tests.support.commands import call
from tests.support.makers import values
from tests.support.models import QUICK, gaussian

KEY = Key(QUICK, salt=bytes(32), secret=bytes(range(32)))
pytestmark = pytest.mark.filterwarnings("ignore")


class Block(nn.Module):
    """A layer of a transformer, roughly."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)  # of two alike, exporters keep one
        nn.init.normal_(self.norm.bias)
        self.up_proj = nn.Linear(64, 160, bias=False)
        self.down_proj = nn.Linear(160, 64)
        self.mixed = nn.Parameter(torch.randn(64, 64) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.down_proj(torch.relu(self.up_proj(self.norm(x))))
        return x + hidden @ self.mixed


class Network(nn.Module):
    """Blocks, a convolution in two Sequentials, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.stem = nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)))
        self.fc = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        given: torch.Tensor = self.fc(x[0]) + self.stem(x[:, None]).mean()
        return given


X = torch.linspace(-1, 1, 5 * 64).reshape(1, 5, 64)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Embedding]:
    folder = tmp_path_factory.mktemp("onnx")
    torch.manual_seed(0)
    model = Network().eval()
    torch.save(model.state_dict(), folder / "model.pt")
    done = neuralmark.embed(folder / "model.pt", KEY, folder / "marked.pt")
    model.load_state_dict(torch.load(folder / "marked.pt"))
    return model, done


def export(model: nn.Module, path: Path, *, new: bool = False, apart: bool = False) -> Path:
    if new:
        torch.onnx.export(
            model, (X,), path, dynamo=True, external_data=apart, input_names=["x"], verbose=False
        )
    else:
        torch.onnx.export(model, (X,), path, dynamo=False, input_names=["x"])
    return path


def run(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": X.numpy()})[0])


@pytest.mark.parametrize("new", [False, True])
def test_exports_have_the_models_names_and_shapes(
    marked: tuple[Network, Embedding], tmp_path: Path, new: bool
) -> None:
    model, done = marked
    path = export(model, tmp_path / "model.onnx", new=new)
    state = model.state_dict()
    found = set(open_checkpoint(path).names())
    assert {n for n in state if "layers" in n or "fc" in n or n == "stem.0.0.weight"} <= found
    for name in found & set(state):
        if "stem" not in name:  # its batch norm is folded into it
            assert np.array_equal(values(path, name), state[name].numpy()), name
    verdict = neuralmark.verify(path, KEY, claim=done.claim)
    assert verdict.verified
    assert verdict.matched == 160
    shown = call("inspect", path, "--json").json
    assert shown["format"] == "onnx"
    assert {row["name"]: row["shape"] for row in shown["rows"]}["fc.weight"] == [8, 64]


def test_weights_apart_are_found(marked: tuple[Network, Embedding], tmp_path: Path) -> None:
    model, done = marked
    (tmp_path / "model").mkdir()
    path = export(model, tmp_path / "model" / "model.onnx", new=True, apart=True)
    assert (tmp_path / "model" / "model.onnx.data").exists()
    for where in (path, path.parent):
        assert neuralmark.verify(where, KEY, claim=done.claim).matched == 160
    assert "model.onnx.data" in {file.name for file in open_checkpoint(path).files()}


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_marked_graph_still_runs(tmp_path: Path, new: bool, in_place: bool) -> None:
    torch.manual_seed(1)
    model = Network().eval()
    path = export(model, tmp_path / "model.onnx", new=new)
    before = run(path)
    out = path if in_place else tmp_path / "marked.onnx"
    done = neuralmark.embed(path, KEY, None if in_place else out, in_place=in_place)
    assert any("up_proj" in name for name in done.tensors)
    onnx.checker.check_model(onnx.load(out))
    assert not np.array_equal(run(out), before)
    assert np.allclose(run(out), before, atol=0.3)
    assert neuralmark.verify(out, KEY, claim=done.claim).matched == 160
    name = next(name for name in done.tensors if "up_proj" in name)
    turned = values(out, name).T
    arrays = [numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer]
    assert any(a.shape == turned.shape and np.array_equal(a, turned) for a in arrays)


def test_weights_apart_are_marked_as_a_folder(tmp_path: Path) -> None:
    torch.manual_seed(1)
    folder = tmp_path / "model"
    folder.mkdir()
    path = export(Network().eval(), folder / "model.onnx", new=True, apart=True)
    with pytest.raises(UsageError, match="to mark the model, give its folder"):
        neuralmark.embed(path, KEY, tmp_path / "alone.onnx")
    before = run(path)
    done = neuralmark.embed(folder, KEY, tmp_path / "out")
    assert np.allclose(run(tmp_path / "out" / "model.onnx"), before, atol=0.3)
    assert not np.array_equal(run(tmp_path / "out" / "model.onnx"), before)
    assert np.array_equal(run(path), before)
    assert neuralmark.verify(tmp_path / "out", KEY, claim=done.claim).matched == 160


def test_a_graph_beside_the_model_is_marked_with_it(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Network().eval()
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    export(model, folder / "model.onnx")
    done = neuralmark.embed(folder, KEY, tmp_path / "out")
    for part in ("model.safetensors", "model.onnx"):
        assert neuralmark.verify(tmp_path / "out" / part, KEY, claim=done.claim).matched == 160


class Once(CalibrationDataReader):  # type: ignore[misc]
    """One input."""

    def __init__(self) -> None:
        self._left = [{"x": X.numpy()}]

    def get_next(self) -> dict[str, Any] | None:
        return self._left.pop() if self._left else None


@pytest.mark.parametrize("way", ["dynamic", "channels", "tensors", "operators", "bits4", "bits8"])
def test_quantised_graphs_are_read_as_what_they_stand_for(
    marked: tuple[Network, Embedding], tmp_path: Path, way: str
) -> None:
    model, done = marked
    path, out = export(model, tmp_path / "model.onnx"), tmp_path / "quantised.onnx"
    if way == "dynamic":
        quantize_dynamic(path, out)
    elif way.startswith("bits"):
        quantiser = MatMulNBitsQuantizer(onnx.load(path), bits=int(way[-1]), block_size=32)
        quantiser.process()
        quantiser.model.save_model_to_file(str(out))
    else:
        form = QuantFormat.QOperator if way == "operators" else QuantFormat.QDQ
        quantize_static(path, out, Once(), quant_format=form, per_channel=way == "channels")
    limit = 0.1 if way == "bits4" else 0.01
    for name in ("layers.0.up_proj.weight", "layers.1.down_proj.weight"):
        weight = model.state_dict()[name].numpy()
        near = values(out, name)
        assert near.shape == weight.shape
        assert 0 < np.abs(near - weight).max() < limit * np.abs(weight).max()
        info = open_checkpoint(out).info(name)
        assert info.dtype == "F32"
        assert "with scales" in str(info.stored)
    assert neuralmark.verify(out, KEY, claim=done.claim).matched == 160
    with pytest.raises(UsageError, match="mark the model before it is quantised"):
        neuralmark.embed(out, KEY, tmp_path / "out.onnx")


def graph_of(tensors: list[Any], nodes: list[Any], path: Path, **more: Any) -> Path:
    shown = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "made", [], shown, tensors)
    onnx.save(helper.make_model(graph, **more), path)
    return path


def identity(*names: str) -> list[Any]:
    return [helper.make_node("Identity", [name], [f"{name}_out"]) for name in names]


KINDS = ("INT8", "UINT8", "INT4", "UINT4", "FLOAT8E4M3FN")


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("kind", "blocks"), [*((kind, n) for kind in KINDS for n in (0, 8)), ("INT32", 0)]
)
def test_dequantised_as_onnxruntime_does(tmp_path: Path, axis: int, kind: str, blocks: int) -> None:
    """The definition of DequantizeLinear, as another implementation has it."""
    rng = np.random.default_rng(0)
    code = getattr(TensorProto, kind)
    low, high = {"INT8": (-128, 128), "UINT8": (0, 256), "INT4": (-8, 8), "UINT4": (0, 16)}.get(
        kind, (-100, 100)
    )
    integers = rng.integers(low, high, (16, 24))
    shape = list(integers.shape)
    shape[axis] //= blocks or 1
    scales = tuple(shape) if blocks else (integers.shape[axis],)
    scale = rng.random(scales).astype(np.float32)
    numpy_type = helper.tensor_dtype_to_np_dtype(code)
    tensors = [
        numpy_helper.from_array(integers.astype(numpy_type), "q_quantized"),
        numpy_helper.from_array(scale, "q_scale"),
    ]
    inputs = ["q_quantized", "q_scale"]
    if kind not in ("FLOAT8E4M3FN", "INT32"):
        zero = rng.integers(low, high, scales).astype(numpy_type)
        tensors.append(numpy_helper.from_array(zero, "q_zero_point"))
        inputs.append("q_zero_point")
    more: dict[str, Any] = {"block_size": blocks} if blocks else {}
    node = helper.make_node("DequantizeLinear", inputs, ["y"], axis=axis, **more)
    opsets = [helper.make_opsetid("", 21)]
    path = graph_of(tensors, [node], tmp_path / "q.onnx", opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = np.asarray(session.run(None, {})[0])
    assert np.array_equal(values(path, "q"), expected)
    run = decode(open_checkpoint(path).read_run("q", 30, 100), "F32")
    assert np.array_equal(run, expected.reshape(-1)[30:100])


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (TensorProto.FLOAT, np.float32),
        (TensorProto.DOUBLE, np.float64),
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
        (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
    ],
)
def test_floats_of_all_kinds(tmp_path: Path, code: int, kind: Any, raw: bool) -> None:
    array = gaussian(6, 7).astype(kind)
    held: Any = array.tobytes() if raw else array.astype(np.float64).reshape(-1)
    tensor = helper.make_tensor("w", code, array.shape, held, raw=raw)
    path = graph_of([tensor], identity("w"), tmp_path / "w.onnx")
    assert np.array_equal(values(path, "w"), array.astype(np.float32))


def test_constants_and_branches_are_found(tmp_path: Path) -> None:
    arrays = [gaussian(4, 5, seed=n) for n in range(3)]
    branches = [
        helper.make_graph(
            identity(f"w{n}"),
            "branch",
            [],
            [helper.make_tensor_value_info(f"w{n}_out", TensorProto.FLOAT, (4, 5))],
            [numpy_helper.from_array(arrays[n], f"w{n}")],
        )
        for n in (0, 1)
    ]
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(arrays[2], "")),
        helper.make_node("If", ["which"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    which = numpy_helper.from_array(np.array(True), "which")
    path = graph_of([which], nodes, tmp_path / "if.onnx")
    for name, array in zip(("w0", "w1", "c"), arrays, strict=True):
        assert np.array_equal(values(path, name), array)


def test_weights_beyond_two_gigabytes(tmp_path: Path) -> None:
    """A sparse file: only what is asked for is read."""
    array = gaussian(64, 64)
    start = 3 << 30
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.data"), ("offset", start), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    path = graph_of([tensor], identity("w"), tmp_path / "w.onnx")
    with (tmp_path / "w.data").open("wb") as file:
        file.seek(start)
        file.write(array.tobytes())
    assert np.array_equal(values(path, "w"), array)
    os.truncate(tmp_path / "w.data", start + 100)
    with pytest.raises(MalformedError, match="cut off"):
        open_checkpoint(path)


def elsewhere(path: Path, **entries: str) -> Path:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(4, 4))
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return graph_of([tensor], identity("w"), path)


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ({"location": "../secret.data"}, UnsafeError),
        ({"location": "/etc/passwd"}, UnsafeError),
        ({"location": "sub/w.data"}, UnsafeError),
        ({"location": ".."}, UnsafeError),
        ({}, UnsafeError),
        ({"location": "absent.data"}, MalformedError),
        ({"location": "w.data", "offset": "-8"}, MalformedError),
        ({"location": "w.data", "offset": "9" * 30}, MalformedError),
        ({"location": "w.data", "offset": "8"}, MalformedError),
        ({"location": "w.data", "length": "32"}, MalformedError),
    ],
)
def test_files_beside_the_graph_must_be_there(
    tmp_path: Path, entries: dict[str, str], error: type[Exception]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for place in (tmp_path / "secret.data", folder / "w.data"):
        place.write_bytes(bytes(64))
    with pytest.raises(error):
        open_checkpoint(elsewhere(folder / "w.onnx", **entries))


def field(number: int, data: bytes) -> bytes:
    """A field of bytes, as protocol buffers write it."""
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def model_with(tensor: bytes) -> bytes:
    return b"\x08\x0a" + field(7, field(5, tensor))


W = b"\x08\x02\x10\x01" + field(8, b"w")
RAW = field(9, np.ones(2, "<f4").tobytes())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (model_with(W), "no numbers"),
        (model_with(W + RAW + RAW), "twice"),
        (model_with(W + RAW + field(4, np.ones(2, "<f4").tobytes())), "of two kinds"),
        (model_with(W + field(9, b"abc")), "does not have the numbers"),
        (model_with(W + field(4, b"abcd")), "does not have the numbers"),
        (model_with(W + field(5, b"\x01")), "more or fewer"),
        (model_with(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + RAW), "out of range"),
        (model_with(W + field(8, b"\xff\xfe") + RAW), "twice|not text"),
        (model_with(W + RAW) + field(7, b""), "several graphs"),
        (b"\x08\x0a" + field(8, b""), "no graph"),
        (b"\x08\x0a" + field(7, b"\x0b"), "makes no sense"),
    ],
)
def test_graphs_that_lie_are_refused(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(CheckpointError, match=why):
        open_checkpoint(tmp_path / "model.onnx")


def test_a_sound_graph_of_the_same_kind(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(model_with(W + RAW))
    assert np.array_equal(values(tmp_path / "model.onnx", "w"), [1, 1])


def test_graphs_within_graphs_end(tmp_path: Path) -> None:
    graph = b""
    for _ in range(60):
        inner = graph
        attribute = _long(6, inner)
        graph = _long(1, _long(5, attribute))
    (tmp_path / "deep.onnx").write_bytes(b"\x08\x0a" + _long(7, graph))
    with pytest.raises(MalformedError, match="deep"):
        open_checkpoint(tmp_path / "deep.onnx")


def _long(number: int, data: bytes) -> bytes:
    length, out = len(data), b""
    while length > 127:
        out += bytes([length & 127 | 128])
        length >>= 7
    return bytes([number << 3 | 2]) + out + bytes([length]) + data


def test_a_folder_with_two_graphs_asks_for_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        graph_of([numpy_helper.from_array(gaussian(3), "w")], [], tmp_path / f"{name}.onnx")
    with pytest.raises(AmbiguousFolderError, match=r"a\.onnx and b\.onnx"):
        open_checkpoint(tmp_path)


def test_every_damaged_byte_is_a_named_error(
    marked: tuple[Network, Embedding], tmp_path: Path
) -> None:
    model, _ = marked
    path = export(model, tmp_path / "model.onnx")
    quantize_dynamic(path, tmp_path / "small.onnx")
    whole = (tmp_path / "small.onnx").read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 400):
        damaged = bytearray(whole)
        damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        told = trouble_of(path)
        assert told is None or "\n" not in told
