"""The weights that a live suspect computes with, whatever it stores: read by probing.

A layer can be stored in endless ways that no reader of files will ever know: transformed, in
blocks, factored, as a difference, rotated by the code before and after. All of them are the same
affine map, and an affine map is known by what it answers to zero and to the basis of its inputs.

    calling   a part of a suspect as a function that answers or fails with a reason
    watching  what goes through each module
    affine    which functions are affine
    matrices  linear along an axis
    kernels   the same at all places: convolutions
    plain     modules that need no probing
    graphs    affine stretches of a module's own code

Nothing here sees an anchor, a key, bits or carriers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from neuralmark.anchors.locating.suspect import PROBED
from neuralmark.structures.structure import Array
from neuralmark.training.probing.affine import is_affine
from neuralmark.training.probing.calling import ProbedFunction, ProbeError, Seen, in_double, limited
from neuralmark.training.probing.graphs import Node, traced
from neuralmark.training.probing.kernels import in_groups, kernel_of
from neuralmark.training.probing.matrices import matrix_along
from neuralmark.training.probing.plain import is_plain, is_stored
from neuralmark.training.probing.watching import at_rest, given_example, watched

_SHOWN = 3


@dataclass(frozen=True)
class Probed:
    """What probing gave: weights by name, and what could not be probed, with the reason."""

    weights: dict[str, Array] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    stopped: str = ""
    """What ended the run of the example, if anything did."""

    @property
    def told(self) -> str:
        """All of it in a clause, for the reason of a verdict.

        >>> Probed({}, {"body": "it raised ValueError"}).told
        '0 layers were read by probing; not probed: body (it raised ValueError)'
        """
        count = len(self.weights)
        words = f"{count} layer{'s were' if count != 1 else ' was'} read by probing"
        if self.skipped:
            named = [f"{name} ({why})" for name, why in self.skipped.items()]
            more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
            words += f"; not probed: {', '.join(named[:_SHOWN])}{more}"
        return f"{words}; {self.stopped}" if self.stopped else words


def probed(model: torch.nn.Module, example: Any) -> Probed:
    """Run the suspect on an example, and read the weights of all affine modules of its own."""
    found = Probed()
    with at_rest(model):
        seen, stopped = watched(model, given_example(example, model))
        for name, module in model.named_modules():
            if name not in seen or is_stored(module):
                continue
            try:
                values = read(module, seen[name])
                parts = [("", values)] if values is not None else read_code(module, seen[name])
                for part, each in parts:
                    whole = ".".join(word for word in (name, part, "weight") if word)
                    found.weights[f"{whole}{PROBED}"] = each
            except ProbeError as error:
                found.skipped[name or "the whole"] = str(error)
    return replace(found, stopped=stopped)


def read(module: torch.nn.Module, seen: Seen) -> Array | None:
    """The matrix or kernel of a module; None where it is not affine, or has none."""
    with limited() as until:
        probe = ProbedFunction(module, seen, until)
        if not is_affine(probe):
            return None
        found = next(_maps(in_double(module, probe)), None)
    return None if found is None or _is_diagonal(found) else _single(found)


def read_code(module: torch.nn.Module, seen: Seen) -> list[tuple[str, Array]]:
    """The matrices and kernels that a module's own code makes of others, and what to call them."""
    if is_plain(module):
        return []
    with limited() as until:
        code = traced(ProbedFunction(module, seen, until), module)
    if code is None:
        return []
    found: dict[str, Array] = {}
    done: set[Node] = set()
    for last, way in code.stretches():
        if last in done:
            continue
        try:
            values = read(code.stretch(last), code.seen(last))
        except ProbeError:
            continue
        if values is not None:
            done |= way
            name = code.called(last)
            found[f"{name}.{last.name}" if name in found else name] = values
    return list(found.items())


def _maps(probe: ProbedFunction) -> Iterator[Tensor]:
    """The ways to see it as a matrix or a kernel: along the last axis, the second, or places."""
    axes = len(probe.seen.shape)
    last = matrix_along(probe, axes - 1)
    if last is not None:
        yield last
    inner = matrix_along(probe, 1) if axes > 2 else None
    if inner is not None:
        yield in_groups(inner[(..., *(None,) * (axes - 2))] if axes > 3 else inner)
    kernel = kernel_of(probe) if inner is None else None
    if kernel is not None:
        yield in_groups(kernel)


def _is_diagonal(found: Tensor) -> bool:
    """A factor for each channel, as of a norm: nothing that could be a marked tensor."""
    if found.ndim == 2 and found.shape[0] == found.shape[1]:
        return not bool((found - torch.diag(torch.diag(found))).any())
    return found.shape[1] == 1 and found[0].numel() == 1


def _single(found: Tensor) -> Array:
    values: Array = found.float().numpy()
    if not bool(torch.isfinite(found.float()).all()):
        raise ProbeError("its weights are too large")
    return values
