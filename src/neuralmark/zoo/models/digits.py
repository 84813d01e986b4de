"""A very small CNN for scikit-learn's digits: seconds to train, to see that everything runs."""

from dataclasses import dataclass
from typing import Any

from neuralmark.core.key import TILED, Parameters
from neuralmark.zoo.architectures import Architecture


@dataclass(frozen=True)
class Digits(Architecture):
    """Two convolutions; the marked one (96·96·3·3) holds a key of 160 bits and one round."""

    name = "digits"
    title = "digits CNN"
    tensors = ("conv2.weight",)
    parameters = Parameters(bits=160, pools=320, rounds=1, filter=TILED)
    input_size = (1, 8, 8)

    def make(self, classes: int) -> Any:
        """Fresh weights."""
        from neuralmark.zoo.models import _cifar

        return _cifar.DigitsNet(classes)
