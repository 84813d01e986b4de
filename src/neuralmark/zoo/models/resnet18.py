"""ResNet-18, in its form for CIFAR."""

from dataclasses import dataclass
from typing import Any

from neuralmark.zoo.architectures import Architecture


@dataclass(frozen=True)
class ResNet18(Architecture):
    """The paper marks the second convolution of layer3[0] (256·256·3·3)."""

    name = "resnet18"
    title = "ResNet-18"
    tensors = ("layer3.0.conv2.weight",)

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        from neuralmark.zoo.models import _cifar

        return _cifar.CifarResNet((2, 2, 2, 2), classes)
