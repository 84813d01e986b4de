"""Modules that compute with what they store: torch's own, which need no probing."""

import torch

_OWN = "torch.nn.modules."
_CONTAINERS = "torch.nn.modules.container"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def is_stored(module: torch.nn.Module) -> bool:
    """Whether the weights that it computes with are those that it stores: nothing to probe.

    So it is for torch's own layers, and for a sequence of them with one matrix or kernel.
    """
    parts = list(module.modules())
    layers = [each for each in parts if type(each).__module__ != _CONTAINERS]
    return all(map(is_plain, parts)) and sum(map(is_weighty, layers)) < 2


def is_plain(module: torch.nn.Module) -> bool:
    """One of torch's own classes, with nothing put in its way."""
    own = vars(module)
    changed = "forward" in own or any(own.get(hooks) for hooks in _HOOKS)
    return type(module).__module__.startswith(_OWN) and not changed


def is_weighty(module: torch.nn.Module) -> bool:
    """Whether it holds a matrix or a kernel."""
    return any(value.ndim > 1 for value in module.parameters())
