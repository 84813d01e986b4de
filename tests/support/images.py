"""A small convolutional network and images whose classes it can learn."""

import torch
from torch import nn

from neuralmark.attacks import Data

LAYER = "2.weight"


def network(classes: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


def data(classes: int = 4) -> Data:
    """Images whose mean tells their class."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(96) % classes
    images = torch.randn(96, 3, 6, 6, generator=generator) * 0.3 + labels[:, None, None, None]
    return Data(images[:64], labels[:64], images[64:], labels[64:])
