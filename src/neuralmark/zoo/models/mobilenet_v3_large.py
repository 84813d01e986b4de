"""MobileNet-V3-L, torchvision's."""

from dataclasses import dataclass
from typing import Any

from neuralmark.zoo.architectures import Architecture


@dataclass(frozen=True)
class MobileNetV3Large(Architecture):
    """Marked: the last convolution (960·160·1·1), the largest before the classifier."""

    name = "mobilenet_v3_large"
    title = "MobileNet-V3-L"
    tensors = ("features.16.0.weight",)

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        from neuralmark.torchvision_loading import load

        return load().models.mobilenet_v3_large(weights=None, num_classes=classes)
