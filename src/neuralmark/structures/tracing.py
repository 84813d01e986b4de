"""Simple chains whose names say nothing, traced with torch.fx.

Layer → optional batch norm → elementwise, pooling, flattening → layer, and nothing else: where
the graph branches, or holds an operation that is not in the lists below, there is no map.
"""

from typing import TYPE_CHECKING, Any

from neuralmark.core.names import canonical_name
from neuralmark.errors import UnknownFamilyError
from neuralmark.structures.book import Book, Hints
from neuralmark.structures.chain import Link, assemble
from neuralmark.structures.structure import LINEAR, OTHER, RELU, Activation, Structure

if TYPE_CHECKING:
    import torch
    from torch.fx import Node

_LAYERS = ("Conv1d", "Conv2d", "Conv3d", "Linear")
_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
_PASSES: dict[str, Activation] = {
    **dict.fromkeys(("identity", "dropout", "dropout1d", "dropout2d", "contiguous"), LINEAR),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "adaptive_avg_pool2d"), LINEAR),
    **dict.fromkeys(("avgpool1d", "avgpool2d", "adaptiveavgpool2d", "adaptiveavgpool1d"), LINEAR),
    **dict.fromkeys(("relu", "relu_", "leakyrelu", "leaky_relu"), RELU),
    **dict.fromkeys(("maxpool1d", "maxpool2d", "max_pool1d", "max_pool2d"), RELU),
    **dict.fromkeys(("adaptivemaxpool2d", "adaptive_max_pool2d"), RELU),
    **dict.fromkeys(("gelu", "silu", "elu", "selu", "tanh", "sigmoid", "softplus"), OTHER),
    **dict.fromkeys(("relu6", "hardswish", "hardsigmoid", "hardtanh", "mish"), OTHER),
}
"""Operations that act on each channel alone, and what they let pass."""
_SHAPES = ("size", "getattr", "getitem", "dim")


def trace(book: Book, module: "torch.nn.Module") -> Structure:
    """The map of a live module that computes a plain chain."""
    links: list[Link] = []
    hints = Hints.of(module, 0)
    fresh = False
    for node, part in _steps(module):
        kind = type(part).__name__ if part is not None else ""
        if kind in _LAYERS:
            if getattr(part, "groups", 1) != 1:
                raise _unknown(node, "a grouped convolution")
            if any(link.layer == canonical_name(str(node.target)) for link in links):
                raise _unknown(node, "a layer that is used twice")
            links.append(Link(canonical_name(str(node.target)), None, LINEAR))
            fresh = True
        elif kind in _NORMS:
            if not links or links[-1].norm is not None:
                raise _unknown(node, "a batch norm that follows no layer")
            prefix = canonical_name(str(node.target))
            last = links[-1]
            size = book.shapes[f"{last.layer}.weight"][0]
            norm = book.norm(prefix, size, hints, direct=fresh)
            links[-1] = Link(last.layer, norm, last.activation)
        else:
            passes = _passes(node, part)
            fresh = fresh and passes == LINEAR
            if links:
                links[-1] = Link(
                    links[-1].layer, links[-1].norm, _weaker(links[-1].activation, passes)
                )
    if not links:
        raise UnknownFamilyError("the traced module has no convolution and no linear layer")
    return assemble(book, "traced chain", links)


def _weaker(one: Activation, two: Activation) -> Activation:
    """What passes both."""
    order: tuple[Activation, ...] = (LINEAR, RELU, OTHER)
    return max(one, two, key=order.index)


def _steps(module: "torch.nn.Module") -> list[tuple["Node", "torch.nn.Module | None"]]:
    """The operations, each fed by the one before; an error where the graph branches."""
    graph = _graph(module)
    current: Any = None
    shapes: set[Any] = set()
    steps: list[tuple[Node, torch.nn.Module | None]] = []
    for node in graph.nodes:
        feeds = [each for each in node.all_input_nodes if each not in shapes]
        if node.op == "placeholder":
            current = node if current is None else current
        elif _names(node) in _SHAPES or (not feeds and node.all_input_nodes):
            shapes.add(node)
        elif feeds != [current]:
            raise _unknown(node, "a branch")
        elif node.op != "output":
            part = module.get_submodule(node.target) if node.op == "call_module" else None
            steps.append((node, part))
            current = node
    return steps


def _graph(module: "torch.nn.Module") -> Any:
    import torch.fx

    try:
        return torch.fx.symbolic_trace(module).graph
    except (
        torch.fx.proxy.TraceError,
        TypeError,
        ValueError,
        RuntimeError,
        AttributeError,
        NotImplementedError,
    ) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnknownFamilyError(
            f"the names of {type(module).__name__} are of no known family, and torch.fx cannot"
            f" trace it ({why})"
        ) from None


def _names(node: "Node") -> str:
    """The plain name of a function or method."""
    if node.op == "call_method":
        return str(node.target)
    return str(getattr(node.target, "__name__", node.target))


def _passes(node: "Node", part: "torch.nn.Module | None") -> Activation:
    name = (type(part).__name__ if part is not None else _names(node)).lower()
    if name in _PASSES:
        return _PASSES[name]
    if _flattens(node, part, name):
        return LINEAR
    raise _unknown(node, f"the operation {name!r}")


def _flattens(node: "Node", part: Any, name: str) -> bool:
    """Whether it lays all positions of a channel side by side, or takes their mean."""
    rest = list(node.args[1:])
    if name == "flatten" and part is not None:
        return bool(part.start_dim == 1)
    if name == "flatten":
        return bool((rest or [node.kwargs.get("start_dim", 0)])[0] == 1)
    if name in ("view", "reshape"):
        shape = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
        return len(shape) == 2
    if name == "mean":
        over = rest[0] if rest else node.kwargs.get("dim")
        dims = over if isinstance(over, tuple | list) else [over]
        return all(isinstance(dim, int) and (dim >= 2 or dim in (-1, -2)) for dim in dims)
    return False


def _unknown(node: "Node", what: str) -> UnknownFamilyError:
    return UnknownFamilyError(
        f"the module is not a plain chain: {what} at {node.name!r}; only layers, batch norms and"
        " elementwise operations one after the other can be rebuilt with the same function"
    )
