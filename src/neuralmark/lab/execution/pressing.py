"""A mark that only training writes, pressed into a finished model at a set movement of its layer.

The embedding loss alone is followed, and the change is held within the movement: what a scheme
without a solver of its own can make of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuralmark.keys.key import Key
from neuralmark.records import Claim

if TYPE_CHECKING:
    import torch

STEPS = 300
STRIDE = 0.05
"""Length of a step, as a share of the movement."""


@dataclass(frozen=True)
class Pressed:
    """What came of it."""

    rate: float
    moved: float
    largest: float
    claim: Claim


def press(model: "torch.nn.Module", key: Key, tensors: Sequence[str], movement: float) -> Pressed:
    """Follow the loss on the sphere of this radius; the model is changed in place."""
    import torch

    from neuralmark.marking.options import AttachOptions
    from neuralmark.training.attach import attach

    chosen = [model.get_parameter(name) for name in tensors]
    start = [parameter.detach().clone() for parameter in chosen]
    radius = movement * _norm(start)
    optimizer = torch.optim.SGD(chosen, lr=1.0)
    mark = attach(model, optimizer, key, AttachOptions(list(tensors), "loss", 1.0))
    for _ in range(STEPS):
        slopes = torch.autograd.grad(mark.loss_term(), chosen)
        size = _norm(slopes)
        if size == 0:  # every bit has its margin
            break
        with torch.no_grad():
            for parameter, slope in zip(chosen, slopes, strict=True):
                parameter.sub_(slope, alpha=STRIDE * radius / size)
            _hold(chosen, start, radius, within=True)
    with torch.no_grad():
        _hold(chosen, start, radius, within=False)
        changes = [p - s for p, s in zip(chosen, start, strict=True)]
    mark.detach()
    moved = _norm(changes) / _norm(start)
    largest = max(float(change.abs().max()) for change in changes)
    return Pressed(mark.rate, moved, largest, mark.claim())


def _hold(
    chosen: "Sequence[torch.Tensor]",
    start: "Sequence[torch.Tensor]",
    radius: float,
    *,
    within: bool,
) -> None:
    """Bring the change to the radius; those within it may stay there."""
    size = _norm([now - then for now, then in zip(chosen, start, strict=True)])
    if size == 0 or (within and size <= radius):
        return
    for now, then in zip(chosen, start, strict=True):
        now.copy_(then + (now - then) * (radius / size))


def _norm(tensors: "Sequence[torch.Tensor]") -> float:
    return math.sqrt(sum(float(each.detach().double().square().sum()) for each in tensors))
