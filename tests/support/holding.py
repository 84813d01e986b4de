"""Modules that hold given arrays as their parameters, and do nothing with them."""

import torch

from tests.support.makers import Arrays


class Holder(torch.nn.Module):
    """Gives back what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def holding(arrays: Arrays) -> Holder:
    """A module whose state_dict has these arrays, under these names."""
    top = Holder()
    for name, array in arrays.items():
        *path, last = name.split(".")
        here: torch.nn.Module = top
        for part in path:
            if not hasattr(here, part):
                here.add_module(part, Holder())
            here = getattr(here, part)
        here.register_parameter(last, torch.nn.Parameter(torch.from_numpy(array.copy())))
    return top.eval()
