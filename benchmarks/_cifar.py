"""Real CIFAR images as tensors, and the small network that benchmarks train on them."""

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from neuralmark.attacks import Data

NAME = "conv4.weight"
"""The marked tensor: 256·256·3·3 weights."""

CLASSES = {"cifar10": 10, "cifar100": 100}


class SmallCNN(nn.Module):
    """Four convolutions, the last with 256·256·3·3 weights; with stride 2 a quick one."""

    def __init__(self, classes: int = 10, stride: int = 1) -> None:
        super().__init__()
        widths = [3, 32, 64, 256, 256]
        for i, (inner, outer) in enumerate(pairwise(widths), 1):
            step = stride if i == 1 else 1
            conv = nn.Conv2d(inner, outer, 3, stride=step, padding=1, bias=False)
            setattr(self, f"conv{i}", conv)
            setattr(self, f"bn{i}", nn.BatchNorm2d(outer))
        self.fc = nn.Linear(256, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = x.contiguous(memory_format=torch.channels_last)
        for i in range(1, 5):
            x = functional.relu(getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x)))
            if i < 4:
                x = functional.max_pool2d(x, 2)
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


def load(folder: Path, name: str, images: int, test_images: int = 10_000) -> Data:
    """The first images of CIFAR-10 or CIFAR-100; the pickles are the data set's own."""
    if name == "cifar10":
        root, label = folder / "cifar-10-batches-py", "labels"
        train, test = [f"data_batch_{i}" for i in range(1, 6)], ["test_batch"]
    else:
        root, label, train, test = folder / "cifar-100-python", "fine_labels", ["train"], ["test"]

    def part(names: list[str], most: int) -> tuple[Tensor, Tensor]:
        pixels, labels = [], []
        for each in names:
            with (root / each).open("rb") as file:
                read = pickle.load(file, encoding="bytes")
            batch = {k if isinstance(k, str) else k.decode(): v for k, v in read.items()}
            pixels.append(np.asarray(batch["data"]).reshape(-1, 3, 32, 32))
            labels += list(batch[label])
        stack = torch.from_numpy(np.concatenate(pixels)[:most]).float() / 255
        return (stack - 0.47) / 0.25, torch.tensor(labels[:most])

    return Data(*part(train, images), *part(test, test_images))
