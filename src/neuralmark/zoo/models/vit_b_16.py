"""ViT-B/16, torchvision's."""

from dataclasses import dataclass
from typing import Any

from neuralmark.zoo.architectures import Architecture


@dataclass(frozen=True)
class ViTB16(Architecture):
    """Patches of 16 pixels as the paper says (its code has 32): 4 of them and the class token."""

    name = "vit_b_16"
    title = "ViT-B/16"
    tensors = ("encoder.layers.encoder_layer_11.mlp.0.weight",)

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        from neuralmark.torchvision_loading import load

        return load().models.vit_b_16(weights=None, num_classes=classes, image_size=32)
