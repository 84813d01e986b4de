"""GoogLeNet, torchvision's."""

from dataclasses import dataclass
from typing import Any

from neuralmark.zoo.architectures import Architecture


@dataclass(frozen=True)
class GoogLeNet(Architecture):
    """Without the auxiliary heads, which need larger maps; marked: its largest kernel."""

    name = "googlenet"
    title = "GoogLeNet"
    tensors = ("inception5b.branch2.1.conv.weight",)

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        from neuralmark.torchvision_loading import load

        return load().models.googlenet(
            weights=None, num_classes=classes, aux_logits=False, init_weights=True
        )
