"""The graph of an ONNX model, as far as its weights need it: tensors, and the nodes that take them.

Only offsets of large fields are kept. Sub-graphs (the branches of If, the bodies of loops) and
functions are walked too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from neuralmark.checkpoints.contract import MAX_TENSORS
from neuralmark.checkpoints.readers.protobuf import BYTES, VARINT, Field, Span, Wire
from neuralmark.errors import UnsafeError

MAX_DEPTH = 32
MAX_DIMENSIONS = 64
SCOPES = "pkg.torch.onnx.name_scopes"
_RAW, _FLOATS, _INT32, _INT64, _DOUBLES, _UINT64 = 9, 4, 5, 7, 10, 11
DATA = {_RAW: "raw", _FLOATS: "F32", _INT32: "varint", _INT64: "varint", _DOUBLES: "F64"}
DATA[_UINT64] = "varint"
"""How the fields that can hold a tensor's numbers hold them."""


@dataclass
class OnnxTensor:
    """What a TensorProto says."""

    name: str = ""
    dims: list[int] = field(default_factory=list)
    type: int = 0
    held: str | None = None
    """How its numbers are held: raw, F32, F64 (packed) or varint; None if elsewhere, or nowhere."""
    span: Span = (0, 0)
    external: dict[str, str] | None = None
    constant: bool = False
    """Whether it is the value of a Constant node, not an initialiser."""

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for length in self.dims:
            count *= length
        return count


@dataclass
class OnnxNode:
    """What a NodeProto says: which operation takes what."""

    op: str = ""
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    scopes: str = ""
    """The modules that it belongs to, where the exporter wrote them down."""


class OnnxGraph:
    """All tensors and nodes of a model."""

    def __init__(self, wire: Wire) -> None:
        """Walk the whole model."""
        self._wire = wire
        self.tensors: dict[str, OnnxTensor] = {}
        self.nodes: list[OnnxNode] = []
        self.twice: set[str] = set()
        """Names that several graphs have: what takes them is not known."""
        self._model((0, wire.size))

    def _model(self, span: Span) -> None:
        graphs = 0
        for number, kind, _, inner in self._wire.fields(span):
            if number == 7:
                graphs += 1
                self._need(kind == BYTES and graphs == 1, "has several graphs")
                self._graph(inner, 0)
            elif number == 25 and kind == BYTES:
                for part, form, _, node in self._wire.fields(inner):
                    if part == 7 and form == BYTES:
                        self._node(node, 0)
        self._need(graphs == 1, "has no graph")

    def _graph(self, span: Span, depth: int) -> None:
        self._need(depth <= MAX_DEPTH, f"has graphs within graphs over {MAX_DEPTH} deep")
        for number, kind, _, inner in self._wire.fields(span):
            if number == 1 and kind == BYTES:
                self._node(inner, depth)
            elif number == 5 and kind == BYTES:
                self._put(self._tensor(inner))

    def _put(self, tensor: OnnxTensor) -> None:
        if len(self.tensors) >= MAX_TENSORS:
            raise UnsafeError(f"{self._wire.path}: has over {MAX_TENSORS:,} tensors")
        name = tensor.name
        if name in self.tensors:
            self.twice.add(name)
            tensor.name = f"{name}@{len(self.tensors)}"
        self.tensors[tensor.name] = tensor

    def _node(self, span: Span, depth: int) -> None:
        node = OnnxNode()
        held: list[OnnxTensor] = []
        for number, kind, _, inner in self._wire.fields(span):
            if kind != BYTES:
                continue
            if number in (1, 2):
                (node.inputs if number == 1 else node.outputs).append(self._wire.text(inner))
            elif number == 3:
                node.name = self._wire.text(inner)
            elif number == 4:
                node.op = self._wire.text(inner)
            elif number == 5:
                held += self._attribute(inner, node, depth)
            elif number == 9:
                self._note(inner, node)
        self.nodes.append(node)
        if node.op == "Constant" and len(held) == 1 and node.outputs:
            held[0].name, held[0].constant = node.outputs[0], True
            self._put(held[0])

    def _note(self, span: Span, node: OnnxNode) -> None:
        key, value = self._pair(span, SCOPES)
        if key == SCOPES:
            node.scopes = value

    def _attribute(self, span: Span, node: OnnxNode, depth: int) -> Iterator[OnnxTensor]:
        name, number_of = "", None
        for number, kind, value, inner in self._wire.fields(span):
            if number == 1 and kind == BYTES:
                name = self._wire.text(inner)
            elif number == 3 and kind == VARINT:
                number_of = value
            elif number == 5 and kind == BYTES:
                yield self._tensor(inner)
            elif number in (6, 11) and kind == BYTES:
                self._graph(inner, depth + 1)
        if number_of is not None:
            node.numbers[name] = number_of - (1 << 64) if number_of >> 63 else number_of

    def _tensor(self, span: Span) -> OnnxTensor:
        found, seen = OnnxTensor(), set()
        external: dict[str, str] = {}
        elsewhere = False
        for number, kind, value, inner in self._wire.fields(span):
            if number in (2, 8, 14, *DATA):
                self._need(number not in seen, "has a tensor with one of its fields twice")
                seen.add(number)
            if number == 1:
                found.dims += self._wire.numbers(kind, value, inner)
                self._need(len(found.dims) <= MAX_DIMENSIONS, "has a tensor of too many dimensions")
            elif number == 2:
                found.type = value
            elif number == 8 and kind == BYTES:
                found.name = self._wire.text(inner)
            elif number == 13 and kind == BYTES:
                key, text = self._pair(inner)
                self._need(key not in external, "has a tensor in two places")
                external[key] = text
            elif number == 14:
                elsewhere = value == 1
            elif number in DATA and inner[0] < inner[1]:
                self._held(found, (number, kind, value, inner))
        self._need(
            all(0 <= length < 1 << 62 for length in found.dims) and found.size < 1 << 62,
            "has a tensor whose shape is out of range",
        )
        if elsewhere:
            self._need(found.held is None, "has a tensor both here and elsewhere")
            found.external = external
        return found

    def _held(self, tensor: OnnxTensor, where: Field) -> None:
        number, kind, _, span = where
        self._need(tensor.held is None, "has a tensor with numbers of two kinds")
        self._need(kind == BYTES, "has a tensor whose numbers are not packed")
        tensor.held, tensor.span = DATA[number], span

    def _pair(self, span: Span, only: str | None = None) -> tuple[str, str]:
        """A key and a text; the text is left out where only another key is of interest."""
        key, inner = "", (0, 0)
        for number, kind, _, part in self._wire.fields(span):
            if number == 1 and kind == BYTES:
                key = self._wire.text(part)
            elif number == 2 and kind == BYTES:
                inner = part
        return key, self._wire.text(inner) if only in (None, key) else ""

    def _need(self, sound: bool, why: str) -> None:
        if not sound:
            raise self._wire.bad(why)
