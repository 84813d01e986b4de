"""VGG-13, torchvision's."""

from dataclasses import dataclass
from typing import Any

from neuralmark.zoo.architectures import Architecture


@dataclass(frozen=True)
class VGG13(Architecture):
    """Its adaptive pooling takes any size; marked: the last 256·256·3·3 convolution."""

    name = "vgg13"
    title = "VGG-13"
    tensors = ("features.12.weight",)

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        from neuralmark.torchvision_loading import load

        return load().models.vgg13(weights=None, num_classes=classes)
