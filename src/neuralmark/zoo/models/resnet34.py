"""ResNet-34, in its form for CIFAR."""

from dataclasses import dataclass
from typing import Any

from neuralmark.zoo.architectures import Architecture


@dataclass(frozen=True)
class ResNet34(Architecture):
    """Marked where ResNet-18 is (256·256·3·3)."""

    name = "resnet34"
    title = "ResNet-34"
    tensors = ("layer3.0.conv2.weight",)

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        from neuralmark.zoo.models import _cifar

        return _cifar.CifarResNet((3, 4, 6, 3), classes)
