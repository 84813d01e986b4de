"""Names of weights in an ONNX graph: those of the model that it was exported from.

Exporters turn the weight of a linear layer around, so that it can stand on the right of a MatMul,
and give it a number for a name. Which layer it was, the node says that takes it: by its name
(/model/layers.0/mlp/up_proj/MatMul), or by what newer exporters write beside it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from neuralmark.checkpoints.readers.onnx_graph import OnnxNode

QUANTISED = "_quantized"
_PACKED = re.compile(r"_Q[248](G\d+)?$")
_BUILT = ".MatMul.weight"
"""How a builder of models for onnxruntime ends the names of weights on the right of a MatMul."""
_NUMBERED = re.compile(r"(onnx::\w+|val|_val|const|_v|initializer|arg|tmp)?_?\d+|const_\w+")
_SCOPES = re.compile(r"'((?:[^'\\])*)'")
_ROLES = {
    **dict.fromkeys(("MatMul", "MatMulInteger", "Gemm", "MatMulNBits"), ("", "weight", "bias")),
    **dict.fromkeys(("Conv", "ConvInteger", "ConvTranspose"), ("", "weight", "bias")),
    "QLinearMatMul": ("", "", "", "weight"),
    "QLinearConv": ("", "", "", "weight", "", "", "", "", "bias"),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), ("", "W", "R", "B")),
}
_PRODUCTS = ("MatMul", "MatMulInteger", "QLinearMatMul")


@dataclass(frozen=True)
class Naming:
    """How a weight is to be shown."""

    name: str
    turned: bool
    """Whether its two dimensions change places: [in, out] in the file, [out, in] in the model."""


def namings(stored: Iterable[tuple[str, str]], nodes: Iterable[OnnxNode]) -> dict[str, Naming]:
    """Names for tensors, given as (stored name, name that nodes take it under)."""
    users: dict[str, tuple[OnnxNode, int]] = {}
    for node in nodes:
        for place, name in enumerate(node.inputs):
            if node.op in _ROLES or node.op in _PRODUCTS:
                users.setdefault(name, (node, place))
    found: dict[str, Naming] = {}
    given = {name: _plain(name) for name, _ in stored}
    taken = set(given.values())
    for name, value in stored:
        node, place = users.get(value, (OnnxNode(), 0))
        plain = given[name]
        lost = _NUMBERED.fullmatch(plain) is not None
        built = plain.endswith(_BUILT)
        turned = node.op in _PRODUCTS and place % 2 == 1 and (lost or built or "Gemm" in node.name)
        plain = plain.removesuffix(_BUILT) + ".weight" if built else plain
        new = _from_node(node, place) if lost else plain
        if new is None or (lost and new in taken):
            new = plain
        taken.add(new)
        found[name] = Naming(new, turned)
    return found


def _plain(name: str) -> str:
    return _PACKED.sub("", name.removesuffix(QUANTISED)) or name


def _from_node(node: OnnxNode, place: int) -> str | None:
    """The name of the layer that a node was exported from, with what the weight is in it."""
    roles = _ROLES.get(node.op, ())
    if not place < len(roles) or not roles[place]:
        return None
    module = _module(node)
    return f"{module}.{roles[place]}" if module else None


def _module(node: OnnxNode) -> str:
    scopes = _SCOPES.findall(node.scopes)
    if len(scopes) > 1:
        return str(scopes[-2])
    parts = [part for part in node.name.split("/")[:-1] if part]
    path: list[str] = []
    for part in parts:
        if path and part.startswith(path[-1] + "."):  # /layer1/layer1.0: a Sequential
            path.pop()
        path.append(part)
    return ".".join(path)
