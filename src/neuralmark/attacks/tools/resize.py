"""A live module whose tensors get other shapes: parameters, buffers, and the sizes modules keep."""

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralmark.attacks.contract import Weights

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
    for name, value in weights.items():
        prefix, _, leaf = name.rpartition(".")
        owner = changed.get_submodule(prefix)
        old: Any = getattr(owner, leaf)
        fresh = torch.from_numpy(np.array(value)).to(old)
        if isinstance(old, torch.nn.Parameter):
            setattr(owner, leaf, torch.nn.Parameter(fresh, requires_grad=old.requires_grad))
        else:
            setattr(owner, leaf, fresh)
        if leaf == "weight":
            for attribute, axis in _SIZES.get(type(owner).__name__, ()):
                setattr(owner, attribute, fresh.shape[axis])
    return changed
