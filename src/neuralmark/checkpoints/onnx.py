"""ONNX models: a graph in protocol buffers, with the weights in it or in files beside it.

The bytes are walked here rather than by the `onnx` package because streaming and marking need the
offsets; the tests hold the two against each other. Weights get the names and the shapes that they
had in the model, as far as the graph tells; quantised ones are read as the numbers they stand for.
A mark is written by changing the bytes of a copy. Files beside the graph must be given with it: as
its folder.
"""

from collections.abc import Iterator

from neuralmark.checkpoints.contract import Checkpoint, StoredTensor, TensorInfo
from neuralmark.checkpoints.folder import INDEXED, WHOLE
from neuralmark.checkpoints.readers.dtypes import FLOATS, ITEMSIZE
from neuralmark.checkpoints.readers.folders import bare_name, in_folder
from neuralmark.checkpoints.readers.joined import product
from neuralmark.checkpoints.readers.onnx_graph import OnnxGraph, OnnxNode, OnnxTensor
from neuralmark.checkpoints.readers.onnx_names import QUANTISED, Naming, namings
from neuralmark.checkpoints.readers.onnx_values import (
    DTYPES,
    MAX_VARINTS,
    NIBBLES,
    OTHERS,
    Dequantised,
    Numbers,
    OnnxDecoder,
    Packed,
)
from neuralmark.checkpoints.readers.protobuf import Wire
from neuralmark.errors import AmbiguousFolderError, MalformedError
from neuralmark.storage.places import Place

SUFFIX = ".onnx"
QUANTISED_FIXED = (
    "it is quantised; mark the model before it is quantised, then convert and quantise it again"
)
EXTERNAL_FIXED = "its numbers are in a file beside the graph; to mark the model, give its folder"
VARINT_FIXED = "its numbers are written one by one; save it with raw data (onnx.save does)"
_TAGS = {0x08, 0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72, 0xA2, 0xCA, 0xD2}
"""First bytes of the fields that a model has at the top."""
_LARGEST_VERSION = 64


def matches(path: Place, head: bytes) -> bool:
    """A version, then fields of a model; or a folder with such a file and no other model."""
    if path.is_dir():
        usual = any((path / name).is_file() for name in (*WHOLE, *INDEXED))
        return not usual and any(path.glob("*" + SUFFIX)) and not any(path.glob("*.safetensors"))
    if len(head) < 3 or head[0] != 0x08 or not 0 < head[1] <= _LARGEST_VERSION:
        return False
    return _looks(head)


def _looks(head: bytes) -> bool:
    """Whether the first fields can be those of a model, as far as they are seen."""
    at = 2
    while at < len(head):
        tag = head[at]
        if tag not in _TAGS:
            return False
        at += 2 if tag >= 0x80 else 1
        value = 0
        for shift in range(0, 63, 7):
            if at >= len(head):
                return True
            value |= (head[at] & 0x7F) << shift
            at += 1
            if head[at - 1] < 0x80:
                break
        at += 0 if tag in (0x08, 0x28) else value
    return True


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Walk the graph, and say where the numbers of each weight are."""
    file = _only(path) if path.is_dir() else path
    with Wire(file) as wire:
        graph = OnnxGraph(wire)
    weights = _OnnxWeights(path, file, graph)
    return _Onnx(path, "onnx", dict(weights.tensors()), file)


class _Onnx(Checkpoint):
    """A graph and the files beside it."""

    def __init__(
        self, path: Place, form: str, tensors: dict[str, StoredTensor], graph: Place
    ) -> None:
        super().__init__(path, form, tensors)
        self._graph = graph

    def files(self) -> list[Place]:
        """The graph, and what holds its weights."""
        return list(dict.fromkeys([self._graph, *super().files()]))


def _only(path: Place) -> Place:
    found: list[Place] = sorted(path.glob("*" + SUFFIX), key=lambda file: file.name)
    if len(found) > 1:
        raise AmbiguousFolderError(
            f"{path}: holds {found[0].name} and {found[1].name}: name one of them"
            f" ({path / found[0].name}), or take the others out"
        )
    return found[0]


class _OnnxWeights:
    """The tensors of a graph, each under its name, with what is computed from others."""

    def __init__(self, path: Place, file: Place, graph: OnnxGraph) -> None:
        self._path, self._file, self._graph = path, file, graph
        self._sizes: dict[str, int] = {}
        self._parts: set[str] = set()
        self._quantised = dict(self._all_quantised())

    def tensors(self) -> Iterator[tuple[str, StoredTensor]]:
        """Everything that can hold weights, by name."""
        kept = [t for t in self._graph.tensors.values() if self._kept(t)]
        taken = [(t.name, self._taken(t.name)) for t in kept]
        names = namings(taken, self._graph.nodes)
        seen: set[str] = set()
        for tensor in kept:
            naming = names[tensor.name]
            if naming.name in seen or not naming.name:
                naming = Naming(tensor.name or f"unnamed@{len(seen)}", naming.turned)
            if naming.name in seen:
                raise MalformedError(f"{self._file}: two tensors are named {naming.name[:80]!r}")
            seen.add(naming.name)
            yield naming.name, self._stored(tensor, naming)

    def _kept(self, tensor: OnnxTensor) -> bool:
        """Not the scales of others, and of constants in the graph only lists of floats."""
        if tensor.name in self._parts:
            return False
        floats = DTYPES.get(tensor.type) in FLOATS and tensor.size > 1
        return not tensor.constant or floats or tensor.name in self._quantised

    def _taken(self, name: str) -> str:
        """The value under which nodes take a tensor: dequantised, if it is."""
        found = self._quantised.get(name)
        return found[1] if found else name

    def _all_quantised(self) -> "Iterator[tuple[str, tuple[Dequantised | Packed, str]]]":
        for node in self._graph.nodes:
            if node.op in ("QuantizeLinear", "DequantizeLinear"):
                self._parts |= set(node.inputs[1:3])
            if node.op == "DequantizeLinear":
                inputs = [*node.inputs, "", "", ""]
                scales = (inputs[1], inputs[2])
                axis, block = node.numbers.get("axis", 1), node.numbers.get("block_size", 0)
                found = self._dequantised(node.inputs[:1], scales, axis, block)
                if found and node.outputs:
                    yield node.inputs[0], (found, node.outputs[0])
            elif node.op.startswith("QLinear") or node.op.endswith("Integer"):
                self._parts |= {n for n in node.inputs if n.endswith(("_scale", "_zero_point"))}
                yield from self._beside(node)
            elif node.op == "MatMulNBits":
                yield from self._packed(node)

    def _beside(self, node: OnnxNode) -> "Iterator[tuple[str, tuple[Dequantised, str]]]":
        """Integers whose scales lie under a name like theirs, as onnxruntime writes them."""
        for name in node.inputs:
            stem = name.removesuffix(QUANTISED)
            if stem == name:
                continue
            axis = 0 if "Conv" in node.op else -1
            scales = (stem + "_scale", stem + "_zero_point")
            found = self._dequantised([name], scales, axis, 0)
            if found:
                self._parts |= set(scales)
                yield name, (found, name)

    def _dequantised(
        self, names: list[str], scales: tuple[str, str], axis: int, block: int
    ) -> Dequantised | None:
        tensor = self._known(names[0] if names else "")
        scale, zero = self._known(scales[0]), self._known(scales[1])
        if tensor is None or scale is None or block < 0:
            return None
        numbers = self._numbers(tensor), self._numbers(scale), self._numbers(zero)
        if numbers[0] is None or numbers[1] is None or (zero and numbers[2] is None):
            return None
        shape = tuple(tensor.dims)
        axis += len(shape) if axis < 0 else 0
        found = Dequantised(
            numbers[0], shape, numbers[1], numbers[2], tuple(scale.dims), axis, block
        )
        paired = zero is None or zero.size in (1, scale.size)
        return found if found.fits and paired and tensor.size else None

    def _packed(self, node: OnnxNode) -> "Iterator[tuple[str, tuple[Packed, str]]]":
        inputs = [*node.inputs, "", "", "", "", ""]
        tensor, scale, zero = (self._known(name) for name in inputs[1:4])
        k, n, bits, block = (node.numbers.get(x, 0) for x in ("K", "N", "bits", "block_size"))
        if tensor is None or scale is None or inputs[4] or min(k, n, block) < 1:
            return  # the order of inputs changed: its rows are not the layer's
        numbers = self._numbers(tensor), self._numbers(scale), self._numbers(zero)
        if numbers[0] is None or numbers[1] is None:
            return
        found = Packed(numbers[0], (n, k), numbers[1], numbers[2], bits or 4, block)
        if found.fits:
            self._parts |= set(inputs[2:4])
            yield tensor.name, (found, tensor.name)

    def _known(self, name: str) -> OnnxTensor | None:
        return None if name in self._graph.twice else self._graph.tensors.get(name)

    def _stored(self, tensor: OnnxTensor, naming: Naming) -> StoredTensor:
        """Where a tensor's numbers are, or what computes them."""
        shape = tuple(tensor.dims)
        turned = naming.turned and len(shape) == 2
        shown = shape[::-1] if turned else shape
        quantised = self._quantised.get(tensor.name)
        if quantised is not None:
            return self._computed(tensor, naming.name, quantised[0], turned)
        numbers = self._numbers(tensor)
        if numbers is None or numbers.dtype in NIBBLES.values():
            kind = {**DTYPES, **NIBBLES, **OTHERS}.get(tensor.type, f"type {tensor.type}")
            why = f"its numbers are {kind}, and nothing says what they stand for"
            return StoredTensor(TensorInfo(naming.name, kind, shown, why), self._file, 0)
        if numbers.held == "varint" and numbers.dtype in FLOATS:
            info = TensorInfo(naming.name, "F32", shown, stored=numbers.dtype, fixed=VARINT_FIXED)
            decoder = OnnxDecoder(shape, numbers.values, turned)
            across = _across(shown) if turned else None
            return StoredTensor(info, self._file, numbers.offset, across, None, decoder)
        alone = numbers.file != self._file and self._path == self._file
        fixed = EXTERNAL_FIXED if alone else VARINT_FIXED if numbers.held == "varint" else None
        one_by_one = "its numbers are written one by one" if numbers.held == "varint" else None
        info = TensorInfo(naming.name, numbers.dtype, shown, one_by_one, fixed=fixed)
        strides = (1, shape[1]) if turned else None
        return StoredTensor(info, numbers.file, numbers.offset, strides)

    def _computed(
        self, tensor: OnnxTensor, name: str, how: Dequantised | Packed, turned: bool
    ) -> StoredTensor:
        turned = turned and isinstance(how, Dequantised)
        shape = how.shape
        shown = shape[::-1] if turned else shape
        kind = f"{how.numbers.dtype} with scales"
        if isinstance(how, Packed):
            kind = f"{how.bits} bits with scales"
        info = TensorInfo(name, "F32", shown, stored=kind, fixed=QUANTISED_FIXED)
        decoder = OnnxDecoder(shape, how.read, turned)
        across = _across(shown) if turned else None
        return StoredTensor(info, how.numbers.file, how.numbers.offset, across, None, decoder)

    def _numbers(self, tensor: OnnxTensor | None) -> Numbers | None:
        """Where a tensor's numbers are; None of a type that is not known."""
        if tensor is None:
            return None
        dtype = DTYPES.get(tensor.type) or NIBBLES.get(tensor.type)
        if dtype is None:
            return None
        nibbles = dtype in NIBBLES.values()
        length = -(-tensor.size // 2) if nibbles else tensor.size * ITEMSIZE[dtype]
        if tensor.external is not None:
            return self._elsewhere(tensor, dtype, length)
        start, stop = tensor.span
        if tensor.held is None and length:
            raise self._bad(tensor, "has no numbers")
        if tensor.held == "varint":
            if nibbles or stop - start > MAX_VARINTS:
                return None
            if not tensor.size <= stop - start <= 10 * tensor.size:
                raise self._bad(tensor, "has more or fewer numbers than it says")
        elif stop - start != length or tensor.held not in (None, "raw", dtype):
            raise self._bad(tensor, "does not have the numbers that it says")
        held = tensor.held or "raw"
        return Numbers(self._file, start, stop - start, held, dtype, tensor.size)

    def _elsewhere(self, tensor: OnnxTensor, dtype: str, length: int) -> Numbers:
        external = tensor.external or {}
        name = external.get("location", "").removeprefix("./")
        start, told = external.get("offset", "0"), external.get("length", str(length))
        if not all(text.isdecimal() and len(text) < 20 for text in (start, told)):
            raise self._bad(tensor, "has an offset that is no number")
        file = in_folder(self._file.parent, bare_name(self._file, name or ".."))
        if name not in self._sizes:
            self._sizes[name] = file.stat().st_size
        if int(told) != length or int(start) + length > self._sizes[name]:
            raise MalformedError(
                f"{file}: is cut off, or not the file that {self._file.name} was saved with"
            )
        return Numbers(file, int(start), length, "raw", dtype, tensor.size)

    def _bad(self, tensor: OnnxTensor, why: str) -> MalformedError:
        return MalformedError(f"{self._file}: the tensor {tensor.name[:80]!r} {why}")


def _across(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a matrix whose rows lie across: it is computed whole."""
    return (1, product(shape[:1]))
