"""A small CNN that still has a 256·256·3·3 layer: what a laptop can train."""

from dataclasses import dataclass
from typing import Any

from neuralmark.errors import ParameterError
from neuralmark.zoo.architectures import Architecture


@dataclass(frozen=True)
class SmallCNN(Architecture):
    """Four convolutions; with `stride` 2 the first halves the image, and all is quicker."""

    name = "smallcnn"
    title = "small CNN"
    tensors = ("conv4.weight",)

    stride: int = 1

    def __post_init__(self) -> None:
        """Refuse a stride that leaves no image."""
        if isinstance(self.stride, bool) or self.stride not in (1, 2):
            raise ParameterError(f"stride must be 1 or 2, not {self.stride!r}")

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        from neuralmark.zoo.models import _cifar

        return _cifar.SmallConvNet(classes, self.stride)
