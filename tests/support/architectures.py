"""Small real models of every family, with the names that torchvision and others give them."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class Basic(nn.Module):
    """Two 3x3 convolutions; projection as in torchvision, or padding as in the CIFAR form."""

    def __init__(self, inner: int, outer: int, stride: int, *, padded: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.stride, self.added, self.padded = stride, outer - inner, padded
        if self.added and not padded:
            self.downsample = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        short = x
        if self.added and self.padded:
            side = self.added // 2
            short = functional.pad(
                x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, side, side)
            )
        elif self.added:
            short = self.downsample(x)
        return functional.relu(out + short)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, and a projection where the size changes."""

    def __init__(self, inner: int, width: int, stride: int, *, groups: int = 1) -> None:
        super().__init__()
        outer = 4 * width
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False, groups=groups)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outer, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.downsample: nn.Module | None = None
        if inner != outer or stride != 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(functional.relu(self.bn2(self.conv2(out)))))
        short = x if self.downsample is None else self.downsample(x)
        return functional.relu(out + short)


class CifarResNet(nn.Module):
    """ResNet-20 with shortcuts that have no parameters."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        sizes = (16, 16, 32, 64)
        layers = [
            nn.Sequential(
                Basic(inner, outer, 1 if inner == outer else 2, padded=True),
                *(Basic(outer, outer, 1, padded=True) for _ in range(blocks - 1)),
            )
            for inner, outer in pairwise(sizes)
        ]
        self.layer1, self.layer2, self.layer3 = layers
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer1(functional.relu(self.bn1(self.conv1(x))))
        scores: Tensor = self.linear(self.layer3(self.layer2(out)).mean((2, 3)))
        return scores


class VisionResNet(nn.Module):
    """torchvision's names: two stages, basic or bottleneck blocks."""

    def __init__(self, *, bottleneck: bool, groups: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        if bottleneck:
            self.layer1 = nn.Sequential(
                Bottleneck(16, 32, 1, groups=groups), Bottleneck(128, 32, 1, groups=groups)
            )
            self.layer2 = nn.Sequential(
                Bottleneck(128, 64, 2, groups=groups), Bottleneck(256, 64, 1, groups=groups)
            )
            width = 256
        else:
            self.layer1 = nn.Sequential(*(Basic(16, 16, 1, padded=False) for _ in range(2)))
            self.layer2 = nn.Sequential(
                Basic(16, 64, 2, padded=False), Basic(64, 64, 1, padded=False)
            )
            width = 64
        self.fc = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = self.maxpool(functional.relu(self.bn1(self.conv1(x))))
        scores: Tensor = self.fc(self.layer2(self.layer1(out)).mean((2, 3)))
        return scores


class Vgg(nn.Module):
    """features, classifier; with batch norms (VGG-BN) or without (AlexNet)."""

    def __init__(self, *, norm: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer in ((3, 32), (32, 64), (64, 64)):
            layers.append(nn.Conv2d(inner, outer, 3, 1, 1))
            layers += [nn.BatchNorm2d(outer)] if norm else []
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(64 * 16, 96), nn.ReLU(), nn.Dropout(), nn.Linear(96, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return scores


class Named(nn.Module):
    """A chain whose names say nothing of its order."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64 * 16, 10)
        self.second = nn.Conv2d(32, 64, 3, 1, 1)
        self.bend = nn.BatchNorm2d(64, eps=1e-3)
        self.first = nn.Conv2d(3, 32, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.max_pool2d(functional.relu(self.first(x)), 2)
        out = functional.max_pool2d(torch.relu(self.bend(self.second(out))), 2)
        scores: Tensor = self.out(out.view(out.size(0), -1))
        return scores


class Branched(nn.Module):
    """Two ways that are added: no plain chain."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.left(x) + self.right(x)
        return total


def plain_cnn() -> nn.Sequential:
    """The numbers of a Sequential."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def lived_in(model: nn.Module, seed: int = 0) -> nn.Module:
    """Norms and biases as after training: no gain is one, no mean is zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not value.is_floating_point() or value.ndim != 1:
                continue
            drawn = torch.rand(value.shape, generator=generator)
            positive = name.endswith(("weight", "running_var"))
            value.copy_(0.5 + drawn if positive else 0.4 * (drawn - 0.5))
    return model.eval()


def gpt2() -> nn.Module:
    """A tiny GPT-2 with its tied output layer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(  # type: ignore[no-untyped-call]
        vocab_size=97,
        n_positions=32,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    return lived_in(GPT2LMHeadModel(config))  # type: ignore[no-untyped-call]


def llama(*, tied: bool = False) -> nn.Module:
    """A tiny Llama with grouped-query attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(  # type: ignore[no-untyped-call]
        vocab_size=97,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=32,
        tie_word_embeddings=tied,
        attention_bias=True,
    )
    return lived_in(LlamaForCausalLM(config))  # type: ignore[no-untyped-call]


def tokens(count: int = 4) -> Tensor:
    """Sequences for the two language models."""
    return torch.randint(0, 97, (count, 16), generator=torch.Generator().manual_seed(3))


def images(count: int = 8, side: int = 32) -> Tensor:
    """Inputs for the convolutional ones."""
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(4))
