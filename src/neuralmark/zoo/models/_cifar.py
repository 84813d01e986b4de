"""Networks written for images of 32 by 32 pixels: AlexNet, ResNet and a small CNN."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class CifarAlexNet(nn.Module):
    """Five convolutions with batch norm and ReLU, three poolings, one linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        widths, kernels = [3, 64, 192, 384, 256, 256], [5, 5, 3, 3, 3]
        for i, ((inner, outer), kernel) in enumerate(
            zip(pairwise(widths), kernels, strict=True), 1
        ):
            conv = nn.Conv2d(inner, outer, kernel, padding=kernel // 2, bias=False)
            setattr(self, f"conv{i}", conv)
            setattr(self, f"bn{i}", nn.BatchNorm2d(outer))
        self.fc = nn.Linear(4 * 4 * 256, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        for i in range(1, 6):
            x = functional.relu(getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x)))
            if i in (1, 2, 5):
                x = functional.max_pool2d(x, 2)
        scores: Tensor = self.fc(x.flatten(1))
        return scores


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            shortcut = nn.Conv2d(inner, outer, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        """The block's residual added to its input."""
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class CifarResNet(nn.Module):
    """ResNet with a 3x3 stem of stride 1 and without the max-pool; names as torchvision's."""

    def __init__(self, depths: Sequence[int], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inner = 64
        for i, depth in enumerate(depths):
            outer, stride = 64 << i, 1 if i == 0 else 2
            first = _Block(inner, outer, stride)
            rest = [_Block(outer, outer, 1) for _ in range(depth - 1)]
            setattr(self, f"layer{i + 1}", nn.Sequential(first, *rest))
            inner = outer
        self.fc = nn.Linear(inner, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = functional.relu(self.bn1(self.conv1(x)))
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


class SmallConvNet(nn.Module):
    """Four convolutions, the last with 256·256·3·3 weights; with stride 2 a quick one."""

    def __init__(self, classes: int, stride: int) -> None:
        super().__init__()
        for i, (inner, outer) in enumerate(pairwise([3, 32, 64, 256, 256]), 1):
            step = stride if i == 1 else 1
            conv = nn.Conv2d(inner, outer, 3, stride=step, padding=1, bias=False)
            setattr(self, f"conv{i}", conv)
            setattr(self, f"bn{i}", nn.BatchNorm2d(outer))
        self.fc = nn.Linear(256, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = x.contiguous(memory_format=torch.channels_last)  # the quicker layout on a CPU
        for i in range(1, 5):
            x = functional.relu(getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x)))
            if i < 4:
                x = functional.max_pool2d(x, 2)
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


class DigitsNet(nn.Module):
    """Two convolutions for images of 8 by 8 pixels; the second has 96·96·3·3 weights."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 96, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(96)
        self.conv2 = nn.Conv2d(96, 96, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(96)
        self.fc = nn.Linear(96 * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 2)
        x = functional.max_pool2d(functional.relu(self.bn2(self.conv2(x))), 2)
        scores: Tensor = self.fc(x.flatten(1))
        return scores
