"""A live module whose tensors get other shapes, or whose tokens get other numbers."""

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralmark.attacks.contract import Weights
from neuralmark.structures.structure import Indices, Side, Vocabulary

if TYPE_CHECKING:
    import torch

_SIZES: dict[str, tuple[tuple[str, int], ...]] = {
    "Linear": (("out_features", 0), ("in_features", 1)),
    "Conv1d": (("out_channels", 0), ("in_channels", 1)),
    "Conv2d": (("out_channels", 0), ("in_channels", 1)),
    "Conv3d": (("out_channels", 0), ("in_channels", 1)),
    "BatchNorm1d": (("num_features", 0),),
    "BatchNorm2d": (("num_features", 0),),
    "BatchNorm3d": (("num_features", 0),),
    "Conv1D": (("nx", 0), ("nf", 1)),
}
"""Attributes that hold a dimension of the weight, by the name of the class."""


def resized(module: "torch.nn.Module", weights: Weights) -> "torch.nn.Module":
    """A copy of the module that holds these weights, whatever their shapes."""
    import torch

    changed = copy.deepcopy(module)
    made: dict[Any, Any] = {}  # tensors that were tied stay so
    for name, value in weights.items():
        prefix, _, leaf = name.rpartition(".")
        owner = changed.get_submodule(prefix)
        old: Any = getattr(owner, leaf)
        fresh = torch.from_numpy(np.array(value)).to(old)
        if isinstance(old, torch.nn.Parameter):
            fresh = torch.nn.Parameter(fresh, requires_grad=old.requires_grad)
        setattr(owner, leaf, made.setdefault(old, fresh))
        if leaf == "weight":
            for attribute, axis in _SIZES.get(type(owner).__name__, ()):
                setattr(owner, attribute, fresh.shape[axis])
    return changed


def renumbered(
    module: "torch.nn.Module", tokens: Vocabulary, numbers: Indices
) -> "torch.nn.Module":
    """A copy of the module whose tokens were numbered anew, as it is behind its new tokenizer.

    Hooks stand for the tokenizer: old numbers go in and come out.
    """
    import torch

    changed = copy.deepcopy(module)
    new = torch.from_numpy(np.array(numbers, np.int64))
    for side in tokens.inputs:
        changed.get_submodule(_owner(side)).register_forward_pre_hook(
            lambda _, given: (new.to(given[0].device)[given[0]], *given[1:])
        )
    for owner in {_owner(side) for side in tokens.outputs if side.tensor.endswith("weight")}:
        changed.get_submodule(owner).register_forward_hook(
            lambda _, given, scores: scores[..., new.to(scores.device)],
            prepend=True,  # what was renumbered last is the first to be undone
        )
    return changed


def _owner(side: Side) -> str:
    return side.tensor.rpartition(".")[0]
