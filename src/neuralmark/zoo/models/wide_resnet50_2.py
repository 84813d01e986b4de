"""WideResNet-50, torchvision's."""

from dataclasses import dataclass
from typing import Any

from neuralmark.zoo.architectures import Architecture


@dataclass(frozen=True)
class WideResNet50(Architecture):
    """Twice as wide as ResNet-50; marked where ResNet-18 is (512·512·3·3)."""

    name = "wide_resnet50_2"
    title = "WideResNet-50"
    tensors = ("layer3.0.conv2.weight",)

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        from neuralmark.torchvision_loading import load

        return load().models.wide_resnet50_2(weights=None, num_classes=classes)
