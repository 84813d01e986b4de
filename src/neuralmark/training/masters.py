"""Float32 masters of half-precision weights: found where the optimizer shows them.

Whoever steps float32 copies and rounds them into the model undoes what is written into the model
alone. So the mark is written into the copies, and into the model with them.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence

import torch

from neuralmark.errors import NeuralMarkWarning, UnsuitableTensorError
from neuralmark.marking.options import Mode
from neuralmark.training.layout import is_dtensor
from neuralmark.training.sources import Direct, WeightSource

_HALF = (torch.bfloat16, torch.float16)
_ATTRIBUTES = ("main_param", "master_param", "fp32_param")
"""Where frameworks hang a parameter's master on the parameter itself (Megatron: main_param)."""


def halves(sources: Sequence[WeightSource]) -> list[Direct]:
    """The sources that may have masters."""
    return [
        source
        for source in sources
        if isinstance(source, Direct)
        and (source.tensor if source.mirror is None else source.mirror).dtype in _HALF
        and not is_dtensor(source.tensor)
    ]


def adopt(sources: Sequence[WeightSource], optimizer: torch.optim.Optimizer, mode: Mode) -> None:
    """Let the sources read and write masters instead, where there are any.

    A gradient goes to whatever the optimizer steps; a projection to what is copied into the model.
    """
    given = halves(sources)
    if not given:
        return
    stepped = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    held = {id(tensor) for tensor in stepped}
    for source in given:
        weight = source.tensor if source.mirror is None else source.mirror
        shown = list(_shown(weight, optimizer))
        if any(master is source.tensor for master in shown) or (
            source.mirror is not None and id(source.tensor) in held
        ):
            continue
        known = shown if id(weight) in held else [*shown, *stepped]
        if mode == "gradient":
            known = [master for master in known if id(master) in held]
        master = next((m for m in known if _rounds_to(m, weight)), None)
        if master is not None:
            source.follow(master)
        elif weight.requires_grad and id(weight) not in held:
            raise UnsuitableTensorError(
                f"{source.name!r} is in half precision, and its optimizer steps copies in float32"
                ' that cannot be found: train with mode="loss", or mark the finished file with'
                " 'neuralmark embed' (docs/distributed.md)"
            )


def _shown(weight: torch.Tensor, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Tensors of float32 and the weight's shape that hang on it, or are its optimizer's state."""
    values: Iterable[object] = (getattr(weight, name, None) for name in _ATTRIBUTES)
    state = optimizer.state.get(weight, {})
    for value in (*values, *state.values()):
        if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
            yield value


def _rounds_to(master: torch.Tensor, weight: torch.Tensor) -> bool:
    if master.dtype != torch.float32 or master.shape != weight.shape:
        return False
    return torch.equal(master.detach().to(weight), weight.detach())


def warn_of_hidden(undo: Sequence[tuple[WeightSource, torch.Tensor, torch.Tensor]]) -> None:
    """Say so when the first step took back what was written: there are copies we cannot see."""
    for source, before, after in undo:
        written, now = after - before, source.values() - before
        size = float(written.norm())
        if source.layout.sharded or size <= 1e-4 * float(before.norm()):
            continue
        kept = float(torch.dot(now.reshape(-1), written.reshape(-1))) / size**2
        if kept < 0.5 and float(now.norm()) < 0.5 * float(before.norm()):
            warnings.warn(
                f"the optimizer set {source.name!r} back to copies of the weights that it keeps:"
                " the mark is written anew after each step, and lost where they are copied later;"
                " verify what you save, or mark the finished file with 'neuralmark embed'",
                NeuralMarkWarning,
                stacklevel=5,
            )
            return
