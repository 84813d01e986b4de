"""Weights that are computed from parameters: LoRA products and parametrised weights."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod

from neuralmark.core.carriers import Carriers
from neuralmark.core.foreign import guarded
from neuralmark.errors import UnsuitableTensorError
from neuralmark.training.layout import Index, Layout
from neuralmark.training.sources import Derived, wide

LORA_DELTA = "lora_delta"
"""The name under which a layer's LoRA product is marked: MODULE.lora_delta."""

_OLD = {
    "torch.nn.utils.weight_norm": "weight_norm",
    "torch.nn.utils.spectral_norm": "spectral_norm",
}
_PARTS = ("orig", "mask", "g", "v", "u")


@dataclass(frozen=True)
class Made:
    """A weight made from parameters; `at` gives chosen entries without making the whole."""

    shape: tuple[int, ...]
    inputs: Sequence[torch.Tensor]
    at: Callable[[torch.Tensor], torch.Tensor]

    def source(self, name: str, carriers: Carriers, start: int) -> Derived:
        """The carriers in it, when it begins at `start` of w."""
        layout = Layout(self.shape, (0,) * len(self.shape), self.shape)
        places, order = layout.carriers(carriers, start)
        index: dict[torch.device, torch.Tensor] = {}

        def compute() -> torch.Tensor:
            device = self.inputs[0].device
            if device not in index:
                index[device] = torch.from_numpy(places).to(device)
            return self.at(index[device])

        return Derived(name, layout, order, compute, self.inputs)

    @torch.no_grad()
    def whole(self) -> torch.Tensor:
        """All entries."""
        every: Index = np.arange(math.prod(self.shape), dtype=np.int64)
        index = torch.from_numpy(every).to(self.inputs[0].device)
        return self.at(index).detach().reshape(self.shape)


def derived_of(model: torch.nn.Module) -> dict[str, Made]:
    """All computed weights of a module, by the name they would have as plain ones."""
    return {
        name: made
        for prefix, module in model.named_modules()
        for name, made in (
            *_lora(prefix, module),
            *_parametrised(prefix, module),
            *_pruned(prefix, module),
        )
    }


def parts_of(model: torch.nn.Module) -> dict[str, str]:
    """Stored tensors that weights are computed from by hooks, and what to do about it.

    torch.nn.utils.prune, and weight_norm and spectral_norm as they were before parametrisations.
    """
    found: dict[str, str] = {}
    for prefix, module in model.named_modules():
        for hook in module._forward_pre_hooks.values():
            kind = type(hook).__name__
            name = str(getattr(hook, "name", getattr(hook, "_tensor_name", "")))
            if isinstance(hook, BasePruningMethod):
                why = f"it is a part of the pruned {name!r}: name that, or call prune.remove first"
            elif type(hook).__module__ in _OLD:
                why = (
                    f"{name!r} is computed from it by the old {kind}: use"
                    f" torch.nn.utils.parametrizations.{_OLD[type(hook).__module__]}"
                )
            else:
                continue
            found |= {_join(prefix, f"{name}_{part}"): why for part in _PARTS}
    return found


def _pruned(prefix: str, module: torch.nn.Module) -> Iterator[tuple[str, Made]]:
    """Tensors under torch.nn.utils.prune: the original times the mask, as they are used."""
    for hook in module._forward_pre_hooks.values():
        if not isinstance(hook, BasePruningMethod):
            continue
        name = str(hook._tensor_name)
        original, mask = getattr(module, f"{name}_orig"), getattr(module, f"{name}_mask")

        def at(
            index: torch.Tensor, original: torch.Tensor = original, mask: torch.Tensor = mask
        ) -> torch.Tensor:
            kept = mask.reshape(-1).index_select(0, index)
            return original.reshape(-1).index_select(0, index) * kept.to(original)

        yield _join(prefix, name), Made(tuple(original.shape), (original,), at)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


@contextmanager
def at_rest(module: torch.nn.Module) -> Iterator[None]:
    """In evaluation: looking must not go on with spectral norm's power iteration, say."""
    training = [each for each in module.modules() if each.training]
    for each in training:
        each.training = False
    try:
        yield
    finally:
        for each in training:
            each.training = True


def _parametrised(prefix: str, module: torch.nn.Module) -> Iterator[tuple[str, Made]]:
    if not parametrize.is_parametrized(module):
        return
    for name, made in module.parametrizations.items():  # type: ignore[operator, union-attr]
        originals = [p for p in made.parameters() if p.is_floating_point()]

        def used(name: str = name, made: torch.nn.Module = made) -> torch.Tensor:
            with _told(prefix, name), at_rest(made):
                weight: torch.Tensor = getattr(module, name)
            return weight

        def at(index: torch.Tensor, used: Callable[[], torch.Tensor] = used) -> torch.Tensor:
            return used().reshape(-1).index_select(0, index)

        yield _join(prefix, name), Made(tuple(used().shape), originals, at)


def _told(prefix: str, name: str) -> AbstractContextManager[None]:
    """Around a parametrization, whose code is the user's own."""
    return guarded(
        "a parametrization",
        lambda why: UnsuitableTensorError(
            f"the parametrization of {_join(prefix, name)!r} fails ({why}): mend it, or remove it"
            " (torch.nn.utils.parametrize.remove_parametrizations)"
        ),
    )


def _lora(prefix: str, module: torch.nn.Module) -> Iterator[tuple[str, Made]]:
    """Layers of PEFT: delta = scale · B·A, transposed for transformers' Conv1D ([in, out])."""
    adapters = getattr(module, "lora_A", None)
    if not isinstance(adapters, torch.nn.ModuleDict):
        return
    for adapter in adapters:
        down = adapters[adapter].weight
        up = module.lora_B[adapter].weight  # type: ignore[index, union-attr]
        scale = float(module.scaling[adapter])  # type: ignore[index]
        turned = bool(getattr(module, "fan_in_fan_out", False))
        if not isinstance(down, torch.Tensor) or not isinstance(up, torch.Tensor):
            continue
        if down.dim() != 2:
            continue  # convolutions: their product is of another form
        rows, columns = (down.shape[1], up.shape[0]) if turned else (up.shape[0], down.shape[1])
        name = (
            f"{prefix}.{LORA_DELTA}" if adapter == "default" else f"{prefix}.{adapter}.{LORA_DELTA}"
        )
        yield name, Made((rows, columns), (down, up), _product(down, up, scale, columns, turned))


def _product(
    down: torch.Tensor, up: torch.Tensor, scale: float, columns: int, turned: bool
) -> Callable[[torch.Tensor], torch.Tensor]:
    def at(index: torch.Tensor) -> torch.Tensor:
        row, column = index // columns, index % columns
        outputs, inputs = (column, row) if turned else (row, column)
        left, right = up.index_select(0, outputs), down.t().index_select(0, inputs)
        return scale * (wide(left) * wide(right)).sum(dim=-1)

    return at
