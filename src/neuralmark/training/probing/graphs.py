"""Affine stretches of a module's own code, between what is not affine in it (torch.fx).

A block may compute `self.a(x) - self.b(x)` or `x @ self.turn @ self.w` amid other things, with no
module of its own to probe. Its code is traced, the modules in it taken as they are. Every value is
followed back to the one that it is affine in; the longest such stretches are functions of one.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import Tensor

from neuralmark.training.probing.affine import is_affine
from neuralmark.training.probing.calling import ProbedFunction, ProbeError, Seen
from neuralmark.training.probing.plain import is_stored, is_weighty

MOST_STEPS = 1024
"""A module whose own code takes more steps is not looked at."""

Node = torch.fx.Node


class _Tracer(torch.fx.Tracer):
    """Traces the code of one module only."""

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        """Every module in it is a step."""
        return True


class _KeptRun(torch.fx.Interpreter):
    """Runs the code and keeps all values."""

    def __init__(self, module: torch.nn.Module, graph: torch.fx.Graph) -> None:
        super().__init__(module, garbage_collect_values=False, graph=graph)
        self.values: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        """One step."""
        self.values[n] = super().run_node(n)
        return self.values[n]


class AffineStretch(torch.nn.Module):
    """The steps from one value of a module's code to another, as a function."""

    def __init__(
        self, module: torch.nn.Module, steps: Sequence[Node], first: Node, kept: Mapping[Node, Any]
    ) -> None:
        """`kept` are the values that do not hang on the first."""
        super().__init__()
        self.module, self._steps, self._first, self._kept = module, steps, first, kept

    def __deepcopy__(self, memo: dict[int, Any]) -> "AffineStretch":
        """The same steps with weights of their own."""
        return AffineStretch(copy.deepcopy(self.module, memo), self._steps, self._first, self._kept)

    def forward(self, x: Tensor) -> Any:
        """The last value."""
        known: dict[Node, Any] = {self._first: x}
        run = _KeptRun(self.module, self._first.graph)
        for step in self._steps:
            for given in step.all_input_nodes:
                if given not in known:
                    known[given] = self._other(given, run, x)
            run.env = known
            known[step] = run.run_node(step)
        return known[self._steps[-1]]

    def _other(self, node: Node, run: _KeptRun, x: Tensor) -> Any:
        """A weight of the module, or what was computed without the first value."""
        if node.op == "get_attr":
            return run.run_node(node)
        value = self._kept[node]
        single = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(x.dtype) if single else value


@dataclass(frozen=True)
class Traced:
    """The code of a module: its values on one input, and from where each is affine."""

    module: torch.nn.Module
    values: Mapping[Node, Any]
    origins: Mapping[Node, Node]

    def stretch(self, last: Node) -> AffineStretch:
        """All steps that lead from its origin to a value."""
        first = self.origins[last]
        return _stretch(self.module, self.values, self.origins, first, last)

    def seen(self, last: Node) -> Seen:
        """What goes in and comes out."""
        return Seen.of(self.values[self.origins[last]], self.values[last])

    def stretches(self) -> Iterator[tuple[Node, frozenset[Node]]]:
        """Values that are affine in an earlier one, the last first, and all on the way to each.

        Only where code and weights meet: neither one module alone, nor torch's own in a row.
        """
        for last in reversed(list(self.origins)):
            first = self.origins[last]
            way = _between(self.origins, first, last)
            if first is not last and self._is_own(first, way):
                yield last, way

    def called(self, last: Node) -> str:
        """By the last layer on the way that has a matrix or kernel, or by the step."""
        way = _between(self.origins, self.origins[last], last)
        layers = [each for each in self._modules(way) if is_weighty(self._module(each))]
        return str(layers[-1].target) if layers else last.name

    def _is_own(self, first: Node, way: frozenset[Node]) -> bool:
        steps = [self._module(each) for each in self._modules(way)]
        taken = {given for each in way for given in each.all_input_nodes} - way - {first}
        weights = any(isinstance(self.values[each], Tensor) for each in taken)
        if not weights and not any(True for step in steps for _ in step.parameters()):
            return False
        if any(each.op != "call_module" for each in way):
            return True
        return len(steps) > 1 and not is_stored(torch.nn.Sequential(*steps))

    def _modules(self, way: frozenset[Node]) -> list[Node]:
        """The modules on the way, in order."""
        return [each for each in self.values if each in way and each.op == "call_module"]

    def _module(self, node: Node) -> torch.nn.Module:
        return self.module.get_submodule(str(node.target))


def traced(probe: ProbedFunction, module: torch.nn.Module) -> Traced | None:
    """The code of a module, where it can be traced."""
    try:
        module = copy.deepcopy(module)  # tracing may leave tensors in it
        graph = _Tracer().trace(module)
        run = _KeptRun(module, graph)
        given = probe.random(probe.seen.shape, 17).to(probe.seen.device, probe.seen.dtype)
        if len(graph.nodes) > MOST_STEPS:
            return None
        run.run(given)
    except (Exception, SystemExit):  # code that chooses by what comes in, and whatever else
        return None
    return Traced(module, run.values, _origins(module, run.values, probe.until))


def _origins(module: torch.nn.Module, values: Mapping[Node, Any], until: float) -> dict[Node, Node]:
    """For each value that hangs on what came in: the earliest that it is affine in."""
    origins: dict[Node, Node] = {}
    for node, value in values.items():
        before = {origins[each] for each in node.all_input_nodes if each in origins}
        hangs = node.op == "placeholder" or before
        if not hangs or node.op == "output" or not _is_numbers(value):
            continue
        origins[node] = node
        if len(before) == 1:
            (first,) = before
            stretch = _stretch(module, values, origins, first, node)
            try:
                if is_affine(ProbedFunction(stretch, Seen.of(values[first], value), until)):
                    origins[node] = first
            except ProbeError:
                continue
    return origins


def _is_numbers(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 0


def _stretch(
    module: torch.nn.Module,
    values: Mapping[Node, Any],
    origins: Mapping[Node, Node],
    first: Node,
    last: Node,
) -> AffineStretch:
    way = _between(origins, first, last)
    return AffineStretch(module, [each for each in values if each in way], first, values)


def _between(origins: Mapping[Node, Node], first: Node, last: Node) -> frozenset[Node]:
    """The steps on the way, the last among them."""
    way, front = {last}, [last]
    while front:
        for each in front.pop().all_input_nodes:
            if origins.get(each) is first and each is not first and each not in way:
                way.add(each)
                front.append(each)
    return frozenset(way)
