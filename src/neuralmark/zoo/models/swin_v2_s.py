"""Swin-V2-S, torchvision's, with windows that fit."""

from dataclasses import dataclass
from typing import Any

from neuralmark.zoo.architectures import Architecture
from neuralmark.zoo.models._swin import swin_v2


@dataclass(frozen=True)
class SwinV2S(Architecture):
    """Marked: the last block of the longest stage (1536·384)."""

    name = "swin_v2_s"
    title = "Swin-V2-S"
    tensors = ("features.5.17.mlp.0.weight",)

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        return swin_v2(96, (3, 6, 12, 24), 0.3, classes)
