"""The map of a live module whose names say nothing, traced with torch.fx.

The graph is walked once. Layers read the channels of what comes in and make new ones; norms,
activations, pooling and flattening let channels pass; adding and multiplying make the channels of
two values one; concatenating lays them one after the other. Whatever else looks at a value fixes
its channels: they stay where they are, and the rest of the network is mapped all the same.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from neuralmark.core.foreign import reason_of
from neuralmark.core.names import canonical_name
from neuralmark.errors import UnknownFamilyError
from neuralmark.structures.book import STATISTICS, Book, Hints
from neuralmark.structures.ledger import Ledger
from neuralmark.structures.spaces import Flow, groups_of
from neuralmark.structures.structure import (
    LINEAR,
    OTHER,
    RELU,
    Activation,
    Producer,
    Structure,
)

if TYPE_CHECKING:
    import torch
    from torch.fx import Node

_SPATIAL = {"Conv1d": 1, "Conv2d": 2, "Conv3d": 3}
_TURNED = {"ConvTranspose1d": 1, "ConvTranspose2d": 2, "ConvTranspose3d": 3}
"""Their weights have the axes of what comes in and what goes out the other way round."""
_BATCH_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
_CHANNEL_NORMS = ("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
_LENGTH_NORMS = ("LayerNorm", "RMSNorm")
_PASSES: dict[str, Activation] = {
    **dict.fromkeys(("identity", "dropout", "dropout1d", "dropout2d", "contiguous"), LINEAR),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "adaptive_avg_pool2d"), LINEAR),
    **dict.fromkeys(("avgpool1d", "avgpool2d", "adaptiveavgpool2d", "adaptiveavgpool1d"), LINEAR),
    **dict.fromkeys(("zeropad2d", "upsample", "interpolate", "stochastic_depth", "float"), LINEAR),
    **dict.fromkeys(("relu", "relu_", "leakyrelu", "leaky_relu", "clone", "detach"), RELU),
    **dict.fromkeys(("maxpool1d", "maxpool2d", "max_pool1d", "max_pool2d"), RELU),
    **dict.fromkeys(("adaptivemaxpool2d", "adaptive_max_pool2d"), RELU),
    **dict.fromkeys(("gelu", "silu", "elu", "selu", "tanh", "sigmoid", "softplus"), OTHER),
    **dict.fromkeys(("relu6", "hardswish", "hardsigmoid", "hardtanh", "mish", "celu"), OTHER),
    **dict.fromkeys(("exp", "sqrt", "rsqrt", "square", "abs", "pow", "neg", "clamp"), OTHER),
}
"""Operations that act on each channel alone, and what they let pass."""
_MEETINGS = ("add", "add_", "iadd", "sub", "mul", "mul_", "imul", "truediv", "div", "maximum")
_SHAPES = ("size", "getattr", "dim", "numel")
_CONCATENATIONS = ("cat", "concat", "concatenate")
_NOTHING = "it has no hidden channels"


def trace(book: Book, module: "torch.nn.Module") -> Structure:
    """The map of a live module, as far as it can be told."""
    graph = _graph(module)
    uses = Counter(node.target for node in graph.nodes if node.op == "call_module")
    walk = _Walk(book, module, {str(target) for target, count in uses.items() if count > 1})
    for node in graph.nodes:
        walk.step(node)
    groups = groups_of(walk.ledger.spaces)
    if not any(group.movable for group in groups):
        raise UnknownFamilyError(
            f"no channel of {type(module).__name__} can be moved without changing what it computes:"
            f" {walk.ledger.reason or _NOTHING}"
        )
    return Structure(
        "traced network", groups, notes=(walk.ledger.reason,) if walk.ledger.reason else ()
    )


class _Walk:
    """The graph, node by node. A value whose channels are not known is None."""

    def __init__(self, book: Book, module: "torch.nn.Module", reused: set[str]) -> None:
        self._module, self._book, self._hints = module, book, Hints.of(module, 0)
        self._reused = reused
        self._flows: dict[Any, Flow | None] = {}
        """Values by node; numbers and shapes are left out."""
        self.ledger = Ledger(book, module, reused)

    def step(self, node: "Node") -> None:
        """One operation."""
        given = [each for each in node.all_input_nodes if each in self._flows]
        flows = [self._flows[each] for each in given]
        if node.op in ("placeholder", "get_attr"):
            self._flows[node] = None
        elif node.op == "output":
            for flow in flows:
                if flow is not None:
                    flow.fix()
        elif node.op == "call_module":
            self._keep(node, self._through(node, flows))
        elif given and _named(node) not in _SHAPES:
            self._keep(node, self._computed(node, given, flows))

    def _keep(self, node: "Node", flow: Flow | None) -> None:
        """Remember a value; what several read is nobody's own any more."""
        shared = flow is not None and len(node.users) > 1
        self._flows[node] = flow.plain() if shared and flow is not None else flow

    # Modules.

    def _through(self, node: "Node", flows: Sequence[Flow | None]) -> Flow | None:
        part = self._module.get_submodule(str(node.target))
        kind, name = type(part).__name__, str(node.target)
        if len(flows) != 1:
            return self.ledger.unknown(node.name, kind, flows)
        (flow,) = flows
        if kind == "Embedding":
            self.ledger.pinned(part.weight, 0)
            return self.ledger.made(name, part, 1, Flow((), last=True, spatial=None))
        if kind == "Linear":
            return self._linear(node, part, flow)
        if kind in _SPATIAL or kind in _TURNED:
            return self._convolved(node, part, flow)
        if flow is None:
            return None
        if kind in _BATCH_NORMS:
            return self._normed(node, part, flow)
        if self._rides(kind, part, flow):
            return self.ledger.ridden(node.name, _owned(part), flow)
        if kind == "Flatten":
            return self._flat(node, flow, part.start_dim, part.end_dim)
        if kind.lower() in _PASSES:
            return _passed(flow, _PASSES[kind.lower()])
        return self.ledger.unknown(node.name, kind, flows)

    def _linear(self, node: "Node", part: Any, flow: Flow | None) -> Flow | None:
        name = str(node.target)
        if flow is not None and not flow.last:
            return self.ledger.unknown(node.name, "a linear layer along another axis", [flow])
        self.ledger.read(name, part.weight, 1, flow)
        spatial = None if flow is None else flow.spatial
        return self.ledger.made(name, part, 0, Flow((), last=True, spatial=spatial))

    def _convolved(self, node: "Node", part: Any, flow: Flow | None) -> Flow | None:
        kind, name = type(part).__name__, str(node.target)
        turned = kind in _TURNED
        spatial = _TURNED[kind] if turned else _SPATIAL[kind]
        if flow is not None and flow.last:
            return self.ledger.unknown(node.name, "a convolution along another axis", [flow])
        if part.groups > 1:
            if flow is None or turned or not part.groups == part.in_channels == part.out_channels:
                return self.ledger.unknown(node.name, "a grouped convolution", [flow])
            return self.ledger.ridden(node.name, _owned(part), flow)
        self.ledger.read(name, part.weight, 0 if turned else 1, flow)
        made = Flow((), last=False, spatial=spatial)
        return self.ledger.made(name, part, 1 if turned else 0, made)

    def _normed(self, node: "Node", part: Any, flow: Flow) -> Flow | None:
        """A batch norm: a part of the layer before it, or something that moves along."""
        if flow.last and (flow.spatial or part.num_features != flow.size):
            return self.ledger.unknown(node.name, "a batch norm along another axis", [flow])
        if flow.last:  # vectors, then: of rows of vectors it would norm the rows
            flow = flow.formed(last=True, spatial=0, flat=flow.flat)
        names = [canonical_name(f"{node.target}.{each}") for each in STATISTICS]
        (space, *others), once = flow.roots(), not self._reused & {str(node.target), flow.maker}
        maker = space.makers.get(flow.maker) if len(space.makers) == 1 and not others else None
        known = all(self._book.shapes.get(name) == (space.size,) for name in names)
        if maker is None or maker.norm is not None or flow.flat or not (known and once):
            return self.ledger.ridden(node.name, _owned(part), flow)
        prefix = canonical_name(str(node.target))
        norm = self._book.norm(prefix, space.size, self._hints, direct=flow.fresh)
        space.makers[flow.maker] = Producer(maker.sides, norm)
        return _passed(flow, LINEAR)

    @staticmethod
    def _rides(layer: str, part: Any, flow: Flow) -> bool:
        """Whether a module has a value of its own for each channel, or none at all."""
        if layer in _CHANNEL_NORMS:
            return not flow.last
        if layer in _LENGTH_NORMS:
            return flow.last and len(part.normalized_shape) == 1
        if layer == "GroupNorm":
            return part.num_groups == 1 and not flow.last
        return layer == "PReLU" and (not flow.last or flow.spatial == 0)

    # Functions and methods.

    def _computed(
        self, node: "Node", given: Sequence["Node"], flows: Sequence[Flow | None]
    ) -> Flow | None:
        name = _named(node)
        if name in _CONCATENATIONS:
            return self._joined(node, flows)
        if len(flows) == 2 and name in _MEETINGS:
            return self._met(node, given, flows)
        flow = flows[0]
        if len(flows) > 1 or flow is None:
            return self.ledger.unknown(node.name, f"the operation {name!r}", flows)
        if name in _MEETINGS:
            return _passed(flow, OTHER)
        if name in _PASSES:
            return _passed(flow, _PASSES[name])
        return self._reshaped(node, name, flow)

    def _reshaped(self, node: "Node", name: str, flow: Flow) -> Flow | None:
        """Axes turned, laid side by side, averaged or widened."""
        rest = [*node.args[1:], *node.kwargs.values()]
        if name == "flatten":
            start, end = [*rest, *(0, -1)[len(rest) :]][:2]
            return self._flat(node, flow, start, end)
        if name in ("view", "reshape"):
            shape = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
            return self._flat(node, flow, 1 if len(shape) == 2 else 0, -1)
        if name == "mean":
            return self._averaged(node, flow, rest)
        if name == "permute":
            return self._turned(node, flow, rest)
        if name == "pad" and not flow.last and len(_listed(rest[0])) <= 2 * (flow.spatial or 0):
            return _passed(flow, OTHER)
        return self.ledger.unknown(node.name, f"the operation {name!r}", [flow])

    def _met(
        self, node: "Node", given: Sequence["Node"], flows: Sequence[Flow | None]
    ) -> Flow | None:
        """Two values added or multiplied, channel by channel."""
        one, two = flows
        if one is not None and two is not None:
            if one.alike(two):
                return one.meet(two)
            return self.ledger.unknown(node.name, "values whose channels do not match", flows)
        for flow, other in ((one, given[1]), (two, given[0])):
            if flow is not None and other.op == "get_attr" and self._scaled(flow, other):
                return flow.plain()
        return self.ledger.unknown(
            node.name, f"{_named(node)!r} with a value that is not known", flows
        )

    def _scaled(self, flow: Flow, node: "Node") -> bool:
        """Whether a parameter has one value for each channel; then it moves along."""
        value: Any = _attribute(self._module, str(node.target))
        places = 0 if flow.last else flow.spatial
        axis = -1 if places is None else value.ndim - 1 - places
        if value.numel() == 1:
            flow.passes(OTHER)
            return True
        if axis < 0 or flow.flat or value.numel() != flow.size or value.shape[axis] != flow.size:
            return False
        flow.passes(OTHER)
        return self.ledger.along(value, axis, flow)

    def _joined(self, node: "Node", flows: Sequence[Flow | None]) -> Flow | None:
        """Values laid one after the other along their channels."""
        parts, rest = _listed(node.args[0]), [*node.args[1:], *node.kwargs.values()]
        axis = rest[0] if rest else 0
        known = [self._flows.get(part) for part in parts]
        whole = [flow for flow in known if flow is not None]
        forms = {(flow.last, flow.flat, flow.spatial) for flow in whole}
        if len(whole) < len(parts) or len(forms) > 1 or not whole or whole[0].flat:
            return self.ledger.unknown(node.name, "a concatenation", flows)
        first = whole[0]
        if axis not in (((1, -1) if first.spatial == 0 else (-1,)) if first.last else (1,)):
            return self.ledger.unknown(node.name, "a concatenation along another axis", flows)
        spaces = tuple(space for flow in whole for space in flow.spaces)
        for flow in whole:
            flow.passes(OTHER)
        return Flow(spaces, first.last, first.spatial)

    def _flat(self, node: "Node", flow: Flow, start: Any, end: Any) -> Flow | None:
        """All places of a channel side by side."""
        if (start, end) != (1, -1) or (flow.last and flow.spatial != 0):
            return self.ledger.unknown(node.name, f"the operation {_named(node)!r}", [flow])
        flat = flow.flat or not flow.last
        return _passed(flow.formed(last=True, spatial=0, flat=flat), LINEAR)

    def _averaged(self, node: "Node", flow: Flow, rest: Sequence[Any]) -> Flow | None:
        """The mean over all places."""
        axes = {axis for axis in _listed(rest[0] if rest else None) if isinstance(axis, int)}
        places = flow.spatial or 0
        first = 1 if flow.last else 2
        rank = places + 2
        counted = {axis % rank if places else axis for axis in axes}
        if not places or counted != set(range(first, first + places)):
            return self.ledger.unknown(node.name, "a mean", [flow])
        kept = bool(rest[1]) if len(rest) > 1 else False
        if kept:
            return _passed(flow, LINEAR)
        return _passed(flow.formed(last=True, spatial=0, flat=False), LINEAR)

    def _turned(self, node: "Node", flow: Flow, rest: Sequence[Any]) -> Flow | None:
        """Channels from the second axis to the last, or back."""
        order = _listed(rest[0] if len(rest) == 1 else list(rest))
        places = flow.spatial or 0
        behind = [0, *range(2, places + 2), 1]
        before = [0, places + 1, *range(1, places + 1)]
        if not places or flow.flat or order != (before if flow.last else behind):
            return self.ledger.unknown(node.name, "axes in another order", [flow])
        return _passed(flow.formed(last=not flow.last, spatial=places, flat=False), LINEAR)


def _passed(flow: Flow, activation: Activation) -> Flow:
    """The same channels behind something that acts on each of them alone."""
    flow.passes(activation)
    return flow.behind(linear=activation == LINEAR)


def _owned(part: "torch.nn.Module") -> list[Any]:
    """Parameters and buffers of a module itself."""
    return [*part.parameters(recurse=False), *part.buffers(recurse=False)]


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _graph(module: "torch.nn.Module") -> Any:
    import torch.fx

    try:
        return torch.fx.symbolic_trace(module).graph
    except (Exception, SystemExit) as error:  # its code may raise whatever it likes
        raise UnknownFamilyError(
            f"the names of {type(module).__name__} are of no known family, and torch.fx cannot"
            f" trace it ({reason_of(error)})"
        ) from None


def _named(node: "Node") -> str:
    """The plain name of a function or method."""
    if node.op in ("call_method", "call_module"):
        return str(node.target)
    return str(getattr(node.target, "__name__", node.target))
