"""AlexNet, in its form for CIFAR."""

from dataclasses import dataclass
from typing import Any

from neuralmark.zoo.architectures import Architecture


@dataclass(frozen=True)
class AlexNet(Architecture):
    """The paper marks the last convolution (256·256·3·3)."""

    name = "alexnet"
    title = "AlexNet"
    tensors = ("conv5.weight",)

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        from neuralmark.zoo.models import _cifar

        return _cifar.CifarAlexNet(classes)
