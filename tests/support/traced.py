"""Small networks of no known family, for what is traced."""

import torch
from torch import Tensor, nn


def images() -> Tensor:
    """Four of them."""
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def vectors() -> Tensor:
    """Four of them."""
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def tokens() -> Tensor:
    """Four rows of five."""
    return torch.randint(0, 20, (4, 5), generator=torch.Generator().manual_seed(0))


class _Inverted(nn.Module):
    """A block with a depthwise layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Conv2d(width, 2 * width, 1, bias=False)
        self.norm = nn.BatchNorm2d(2 * width)
        self.deep = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.mid = nn.BatchNorm2d(2 * width)
        self.down = nn.Conv2d(2 * width, width, 1, bias=False)
        self.out = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.mid(self.deep(torch.relu(self.norm(self.up(x))))))
        total: Tensor = x + self.out(self.down(inner))
        return total


class Residual(nn.Module):
    """Residual blocks with depthwise layers, of any width."""

    def __init__(self, width: int = 12, blocks: int = 2, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.blocks = nn.Sequential(*(_Inverted(width) for _ in range(blocks)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return scores


class Gated(nn.Module):
    """Channels multiplied by gates (squeeze and excite)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.squeeze, self.excite = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.out, self.act = nn.Conv2d(12, 8, 1), nn.PReLU(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.silu(self.norm(self.body(x)))
        x = x * torch.sigmoid(self.excite(torch.relu(self.squeeze(self.pool(x)))))
        scores: Tensor = self.head(torch.flatten(self.pool(self.act(self.out(x))), 1))
        return scores


class Dense(nn.Module):
    """Each layer reads what all before it made."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1)
        self.norm, self.three = nn.BatchNorm2d(10), nn.Conv2d(10, 5, 1)
        self.head = nn.Linear(15, 3)

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x)
        two = torch.cat([one, self.two(torch.relu(one))], 1)
        three = torch.cat([two, self.three(torch.relu(self.norm(two)))], dim=1)
        scores: Tensor = self.head(three.mean([2, 3]))
        return scores


class Converted(nn.Module):
    """Channels taken to the last axis and back, normed there and scaled (ConvNeXt)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 8, 2, 2), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(24, 8)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8)[:, None, None])
        self.temperature = nn.Parameter(torch.tensor([0.7]))
        self.whole, self.head = nn.GroupNorm(1, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        inner = self.norm(self.deep(x).permute(0, 2, 3, 1))
        inner = self.narrow(nn.functional.gelu(self.wide(inner))).permute(0, 3, 1, 2)
        x = self.whole(x + self.scale * inner * self.temperature)
        scores: Tensor = self.head(x.mean((-2, -1)))
        return scores


class Tied(nn.Module):
    """Tokens are read out with the weights that they are looked up in."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(20, 8), nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)
        self.read = nn.Linear(8, 20, bias=False)
        self.read.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        x = x + self.narrow(torch.tanh(self.wide(self.norm(x))))
        scores: Tensor = self.read(x)
        return scores


class Reused(nn.Module):
    """One layer is called twice, and one norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 12), nn.BatchNorm1d(12)
        self.wide, self.narrow = nn.Linear(12, 16), nn.Linear(16, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        for _ in range(2):
            x = self.norm(self.narrow(torch.relu(self.wide(x))))
        scores: Tensor = self.head(x)
        return scores


class UNet(nn.Module):
    """Down, up again, and what was left out laid beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 6, 2, 2), nn.ConvTranspose2d(6, 4, 2, 2)
        self.pad, self.mix = nn.ZeroPad2d(1), nn.Conv2d(7, 5, 3)
        self.skip, self.last = nn.Conv2d(3, 3, 1), nn.Conv2d(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(nn.functional.pad(torch.relu(self.down(x)), (0, 0, 0, 0)))
        mixed = self.mix(self.pad(torch.cat((up, self.skip(x)), 1)))
        scores: Tensor = self.last(torch.relu(mixed))
        return scores


class LateNorm(nn.Module):
    """Norms before the layers, and behind activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.third = nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(6, 8, 1)
        self.late, self.alone = nn.BatchNorm2d(6), nn.BatchNorm2d(8, affine=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.third(self.late(torch.relu(self.second(torch.relu(self.norm(x))))))
        scores: Tensor = self.head(self.alone(x).mean((2, 3)))
        return scores


class Flattened(nn.Module):
    """Maps laid side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.wide, self.head = nn.Linear(6 * 9, 12), nn.Linear(12, 3)
        self.drop, self.pool = nn.Dropout(), nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        scores: Tensor = self.head(self.drop(self.wide(x.view(x.size(0), -1))))
        return scores


class Grouped(nn.Module):
    """A convolution of two groups, whose channels cannot be told apart from their places."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.grouped = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1, groups=2)
        self.after, self.head = nn.Conv2d(8, 6, 1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.after(torch.relu(self.grouped(torch.relu(self.before(x)))))
        scores: Tensor = self.head(torch.relu(x).mean((2, 3)))
        return scores


class Shuffled(nn.Module):
    """Channels that are looked at in an order of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 6, 1)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.after(torch.flip(self.before(x), [1]))
        scores: Tensor = self.head(torch.relu(x).mean((2, 3)))
        return scores


class Scaled(nn.Module):
    """Multiplied by what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(8, 8), nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.relu(self.two(self.one(x) * x)))
        return scores


class Halved(nn.Module):
    """Nothing that could be moved."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.chunk(self.one(x), 2, -1)
        scores: Tensor = self.two(left * right)
        return scores


class Choosing(nn.Module):
    """What it computes depends on what comes in: it cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        chosen: Tensor = self.one(x) if x.sum() > 0 else self.two(x)
        return chosen
