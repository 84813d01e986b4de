"""Layers that a network's own code stores in ways that no reader of files knows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def turn(size: int, seed: int = 0) -> Tensor:
    """A rotation."""
    rng = torch.Generator().manual_seed(seed)
    made, _ = torch.linalg.qr(torch.randn(size, size, generator=rng, dtype=torch.float64))
    rotation: Tensor = made.float()
    return rotation


def noise_like(weight: Tensor) -> Tensor:
    """Noise five times as large."""
    rng = torch.Generator().manual_seed(1)
    return 5 * weight.std() * torch.randn(weight.shape, generator=rng)


class Stored(nn.Module):
    """A convolution or linear layer that makes its weight when it is called."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.steps: Any = getattr(layer, "stride", None)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone())
        self.keep(layer.weight.detach())

    def keep(self, weight: Tensor) -> None:
        raise NotImplementedError

    def made(self) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if self.steps is None:
            return functional.linear(x, self.made(), self.bias)
        return functional.conv2d(x, self.made(), self.bias, self.steps, 1)


class Winograd(Stored):
    """Kernels as Winograd's F(2, 3) has them, 4 x 4."""

    def keep(self, weight: Tensor) -> None:
        self.turned = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1.0]])
        self.weight = nn.Parameter(self.turned @ weight @ self.turned.T)

    def made(self) -> Tensor:
        back = torch.linalg.pinv(self.turned)
        kernels: Tensor = back @ self.weight @ back.T
        return kernels


class Blocked(Stored):
    """oneDNN's OIhw16i16o."""

    def keep(self, weight: Tensor) -> None:
        outs, ins = weight.shape[:2]
        blocks = weight.view(outs // 16, 16, ins // 16, 16, 3, 3).permute(0, 2, 4, 5, 3, 1)
        self.weight = nn.Parameter(blocks.clone())

    def made(self) -> Tensor:
        outs, ins = self.weight.shape[:2]
        return self.weight.permute(0, 5, 1, 4, 2, 3).reshape(16 * outs, 16 * ins, 3, 3)


class Taps(Stored):
    """Nine convolutions of 1 x 1."""

    def keep(self, weight: Tensor) -> None:
        taps = weight.flatten(2).unbind(2)
        self.taps = nn.ParameterList([nn.Parameter(tap.clone()) for tap in taps])

    def made(self) -> Tensor:
        whole = torch.stack(list(self.taps), -1)
        return whole.view(*whole.shape[:2], 3, 3)


class Difference(Stored):
    """W = A - B, taken by the code after both were applied."""

    def keep(self, weight: Tensor) -> None:
        noise = noise_like(weight)
        self.a, self.b = nn.Parameter(weight + noise), nn.Parameter(noise)

    def forward(self, x: Tensor) -> Tensor:
        if self.steps is None:
            return functional.linear(x, self.a, self.bias) - functional.linear(x, self.b)
        one = functional.conv2d(x, self.a, self.bias, self.steps, 1)
        return one - functional.conv2d(x, self.b, None, self.steps, 1)


class Running(Stored):
    """Running sums along the inputs."""

    def keep(self, weight: Tensor) -> None:
        self.weight = nn.Parameter(weight.cumsum(1))

    def made(self) -> Tensor:
        return torch.diff(self.weight, dim=1, prepend=torch.zeros_like(self.weight[:, :1]))


class Rolled(Stored):
    """Each row rolled by its own number."""

    def keep(self, weight: Tensor) -> None:
        rows = [row.roll(7 * number + 1, 0) for number, row in enumerate(weight)]
        self.weight = nn.Parameter(torch.stack(rows))

    def made(self) -> Tensor:
        return torch.stack([row.roll(-7 * n - 1, 0) for n, row in enumerate(self.weight)])


class Rotated(Stored):
    """Rotations that the code applies before and behind (QuaRot, QuIP#)."""

    def keep(self, weight: Tensor) -> None:
        self.out, self.into = turn(len(weight)), turn(weight.shape[1], 1)
        self.weight = nn.Parameter(torch.einsum("ab,bc...,cd->ad...", self.out, weight, self.into))

    def forward(self, x: Tensor) -> Tensor:
        if self.steps is None:
            made = functional.linear(x @ self.into, self.weight) @ self.out
            return made if self.bias is None else made + self.bias
        x = torch.einsum("cd,nchw->ndhw", self.into, x)
        made = functional.conv2d(x, self.weight, None, self.steps, 1)
        return torch.einsum("ba,nbhw->nahw", self.out, made)


class Integers(Stored):
    """int8 with a scale for each row."""

    def keep(self, weight: Tensor) -> None:
        size = weight.flatten(1).abs().amax(1).view(-1, *[1] * (weight.ndim - 1)) / 127
        self.register_buffer("codes", (weight / size).round().to(torch.int8))
        self.register_buffer("size", size)

    def made(self) -> Tensor:
        codes, size = self.get_buffer("codes"), self.get_buffer("size")
        return codes.float() * size


class Palette(Stored):
    """Codes of 256 values in no order."""

    def keep(self, weight: Tensor) -> None:
        values = torch.quantile(weight.flatten(), torch.linspace(0, 1, 256))
        nearest = (weight.flatten()[:, None] - values).abs().argmin(1)
        order = torch.randperm(256, generator=torch.Generator().manual_seed(2))
        self.register_buffer("values", values[order].clone())
        self.register_buffer("codes", order.argsort()[nearest].to(torch.uint8).view(weight.shape))

    def made(self) -> Tensor:
        return self.get_buffer("values")[self.get_buffer("codes").long()]


class Complex(Stored):
    """Two inputs as one complex number."""

    def keep(self, weight: Tensor) -> None:
        pairs = torch.complex(weight[:, 0::2], weight[:, 1::2])
        self.weight = nn.Parameter(pairs)

    def made(self) -> Tensor:
        return torch.stack([self.weight.real, self.weight.imag], 2).flatten(1, 2)


class Magnitudes(Stored):
    """Right only for what is not below zero, as behind a ReLU."""

    def keep(self, weight: Tensor) -> None:
        self.weight = nn.Parameter(weight.flip(1))

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x.abs(), self.weight.flip(1), self.bias, self.steps, 1)


class Fixed(Running):
    """Takes nothing but what the example has."""

    def forward(self, x: Tensor) -> Tensor:
        if getattr(self, "shape", x.shape) != x.shape:
            raise ValueError(x.shape)
        self.shape = x.shape
        return super().forward(x)


def spatial(layer: Any) -> nn.Module:
    """3 x 1, then 1 x 3."""
    outs, ins = layer.weight.shape[:2]
    table = layer.weight.detach().permute(1, 2, 0, 3).reshape(3 * ins, 3 * outs).double()
    left, sizes, right = torch.linalg.svd(table, full_matrices=False)
    rank, step = len(sizes), layer.stride[0]
    one = nn.Conv2d(ins, rank, (3, 1), (step, 1), (1, 0), bias=False)
    two = nn.Conv2d(rank, outs, (1, 3), (1, step), (0, 1), bias=False)
    one.weight.data = (left * sizes.sqrt()).T.reshape(rank, ins, 3, 1).float()
    halves = (sizes.sqrt()[:, None] * right).reshape(rank, outs, 3)
    two.weight.data = halves.permute(1, 0, 2)[:, :, None].float().contiguous()
    return nn.Sequential(one, two)


CONVOLUTIONS: dict[str, Callable[[Any], nn.Module]] = {
    "winograd": Winograd,
    "blocked": Blocked,
    "taps": Taps,
    "difference": Difference,
    "running": Running,
    "rolled": Rolled,
    "rotated": Rotated,
    "integers": Integers,
    "palette": Palette,
    "complex": Complex,
    "spatial": spatial,
    "magnitudes": Magnitudes,
    "fixed": Fixed,
}


def encoded(model: nn.Module, how: Callable[[Any], nn.Module], kind: Any, *but: str) -> nn.Module:
    """The network with its layers of a kind replaced, but for some."""
    names = [n for n, layer in model.named_modules() if type(layer) is kind and n not in but]
    for name in names:
        where, _, last = name.rpartition(".")
        setattr(model.get_submodule(where), last, how(model.get_submodule(name)))
    return model.eval()
