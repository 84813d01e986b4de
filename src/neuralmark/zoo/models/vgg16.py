"""VGG-16, torchvision's."""

from dataclasses import dataclass
from typing import Any

from neuralmark.zoo.architectures import Architecture


@dataclass(frozen=True)
class VGG16(Architecture):
    """Its adaptive pooling takes any size; marked: the last 256·256·3·3 convolution."""

    name = "vgg16"
    title = "VGG-16"
    tensors = ("features.14.weight",)

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        from neuralmark.torchvision_loading import load

        return load().models.vgg16(weights=None, num_classes=classes)
