"""Swin-V2-B, torchvision's, with windows that fit."""

from dataclasses import dataclass
from typing import Any

from neuralmark.zoo.architectures import Architecture
from neuralmark.zoo.models._swin import swin_v2


@dataclass(frozen=True)
class SwinV2B(Architecture):
    """Marked: the last block of the longest stage (2048·512)."""

    name = "swin_v2_b"
    title = "Swin-V2-B"
    tensors = ("features.5.17.mlp.0.weight",)

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        return swin_v2(128, (4, 8, 16, 32), 0.5, classes)
