"""Three linear layers for scikit-learn's digits: the second holds a million weights."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from neuralmark.zoo.architectures import Architecture

WIDTH = 1024


@dataclass(frozen=True)
class DigitsMLP(Architecture):
    """Wide enough for a key of the usual size to change its weights by little."""

    name = "digits-mlp"
    title = "digits MLP"
    tensors = ("hidden2.weight",)
    input_size = (1, 8, 8)

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        from torch import nn

        return nn.Sequential(
            OrderedDict(
                flatten=nn.Flatten(),
                hidden1=nn.Linear(64, WIDTH),
                relu1=nn.ReLU(),
                hidden2=nn.Linear(WIDTH, WIDTH),
                relu2=nn.ReLU(),
                classifier=nn.Linear(WIDTH, classes),
            )
        )
