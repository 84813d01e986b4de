"""Networks whose own code fails, each in a way of its own."""

from typing import Any

import torch
from torch import nn

RAISED: tuple[Exception, ...] = (
    AssertionError("Wrong image width!"),
    KeyError("pixels"),
    StopIteration(),
    RuntimeError("sizes differ\nand more"),
    ValueError(""),
    AttributeError("no such thing"),
    OSError(5, "cannot be read"),
    ZeroDivisionError("of nothing"),
    Exception("whatever"),
)


class Failing(nn.Sequential):
    """The layers of a network, and a forward pass that raises."""

    def __init__(self, network: nn.Sequential, error: BaseException) -> None:
        super().__init__(*network)
        self.error = error

    def forward(self, given: torch.Tensor) -> Any:
        raise self.error
