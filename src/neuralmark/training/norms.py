"""Norms that passports take the place of: finding them, replacing them, and going back."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from neuralmark.errors import MissingNormError, ParameterError
from neuralmark.registry import unknown
from neuralmark.schemes import PassportScheme

NORMS = (_BatchNorm, nn.GroupNorm)
SLOPE = 0.01
"""Of the LeakyReLU in the private MLP."""


def norms_behind(model: nn.Module, layers: Sequence[str], told: Any = None) -> list[str]:
    """The names of the norms behind the marked layers, each of its own, as told where it is."""
    told = {} if told is None else told
    if not isinstance(told, Mapping) or not all(isinstance(each, str) for each in told.values()):
        raise ParameterError(
            f'norms name the norm behind each layer, as in {{"{layers[0]}": NAME}}, not'
            f" {str(told)[:80]}"
        )
    if others := [layer for layer in told if layer not in layers]:
        raise ParameterError(
            f"norms names {others[0]!r}, which is none of the layers that take passports:"
            f" {', '.join(map(repr, layers))}"
        )
    found = [norm_behind(model, layer, told) for layer in layers]
    if twice := [norm for norm in found if found.count(norm) > 1]:
        raise ParameterError(
            f"{twice[0]!r} is named as the norm behind two layers: it is behind one"
        )
    return found


def norm_behind(model: nn.Module, layer: str, told: Mapping[str, str]) -> str:
    """The name of the norm behind a layer: as told, or the next module that is one and fits."""
    modules = dict(model.named_modules())
    norms = [name for name, module in modules.items() if isinstance(module, NORMS)]
    if not norms:
        raise MissingNormError(
            "this network has no batch norm and no group norm, and passports take the place of"
            " norms: put one behind the layers that are to be marked, or use a scheme without"
            " passports (neuralmark schemes)"
        )
    rows = modules[layer].weight.shape[0]
    if layer in told:
        if told[layer] not in norms:
            raise MissingNormError(f"there is no norm {unknown(told[layer], norms[:40])}")
        found: str | None = told[layer]
    else:
        found = norm_after(model, layer)
    if found is None or found not in norms or _channels(modules[found]) != rows:
        raise MissingNormError(
            f"{layer!r} has {rows} output channels, and no norm of as many stands behind it: name"
            f' the norm (norms={{"{layer}": NAME}}), or another layer'
        )
    if modules[found].weight is None:
        raise MissingNormError(
            f"{found!r} has no factors of its own (affine=False), so a passport has nothing to take"
            " the place of: name another layer"
        )
    return found


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm by channels, with or without passports."""
    return isinstance(module, (*NORMS, PassportNorm))


def norm_after(model: nn.Module, layer: str) -> str | None:
    """The first norm after a layer in the order of the network, before the next such layer."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    names = list(modules)
    for name in names[names.index(layer) + 1 :]:
        if is_norm(modules[name]):
            return name
        if isinstance(modules[name], nn.Conv2d | nn.Linear):
            return None
    return None


def _channels(norm: Any) -> int:
    return int(norm.num_channels if isinstance(norm, nn.GroupNorm) else norm.num_features)


def without_factors(norm: nn.Module) -> nn.Module:
    """A copy of a norm that only normalises."""
    bare = copy.deepcopy(norm)
    bare.weight = bare.bias = None  # type: ignore[assignment]
    bare.affine = False  # type: ignore[assignment]
    return bare


class PassportNorm(nn.Module):
    """A norm whose factors follow from the layer before it and from passports."""

    scale: torch.Tensor
    offset: torch.Tensor

    def __init__(
        self, layer: nn.Module, norm: nn.Module, scheme: PassportScheme, passports: Any
    ) -> None:
        """Layer and norm stay the network's own: they are not part of this module."""
        super().__init__()
        self._of = (layer, norm)  # a tuple, so that torch does not take them for its children
        self._scheme, self._shape = scheme, passports.shape
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        self.register_buffer("scale", _like(passports.scale, weight))
        self.register_buffer("offset", _like(passports.offset, weight))
        mask = None if passports.mask is None else _like(passports.mask, weight)
        self.register_buffer("mask", mask, persistent=False)
        self.normal = without_factors(norm)
        self.mlp = _mlp(scheme, passports.shape.rows, weight)

    @property
    def channels(self) -> int:
        """How many factors it has."""
        return int(self._shape.rows)

    @property
    def layer(self) -> nn.Module:
        """The layer that makes its factors."""
        return self._of[0]

    @property
    def before(self) -> nn.Module:
        """The norm that it takes the place of."""
        return self._of[1]

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """γ and β, as they multiply and move what was normalised."""
        gamma, beta = self.signed(), self.moving()
        return (gamma, beta) if self.mlp is None else (self.mlp(gamma), self.mlp(beta))

    def signed(self) -> torch.Tensor:
        """γ before the MLP: its signs are the bits."""
        return self._pooled(self.scale)

    def moving(self) -> torch.Tensor:
        """β before the MLP."""
        return self._pooled(self.offset)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise, multiply, move."""
        if not self._scheme.own_statistics:
            self._share()
        gamma, beta = self.factors()
        shape = (1, -1, *(1 for _ in inputs.shape[2:]))
        moved: torch.Tensor = self.normal(inputs) * gamma.view(shape) + beta.view(shape)
        return moved

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """A plain norm that does the same, without passports."""
        norm = copy.deepcopy(self._of[1])
        for name, value in self.normal.named_buffers():
            norm.get_buffer(name).copy_(value)
        gamma, beta = self.factors()
        norm.weight.copy_(gamma)  # type: ignore[operator]
        norm.bias.copy_(beta)  # type: ignore[operator]
        return norm.train(self.training)

    def _pooled(self, passport: torch.Tensor) -> torch.Tensor:
        weight = self._of[0].weight
        assert isinstance(weight, torch.Tensor)
        rows = weight.reshape(len(weight), -1)
        if self.mask is not None:
            rows = rows * self.mask.view_as(rows)  # type: ignore[operator]
        pooled: torch.Tensor = self._scheme.pooled_over(rows, self._shape.windows(passport))
        return pooled

    def _share(self) -> None:
        """Count means and variances together with the network's own norm."""
        for name in self.normal._buffers:
            self.normal._buffers[name] = self._of[1]._buffers[name]


def _like(values: Any, weight: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values).to(weight.detach())


def _mlp(scheme: PassportScheme, channels: int, like: torch.Tensor) -> nn.Sequential | None:
    """What γ and β go through in the private branch, if anything."""
    if not scheme.hidden:
        return None
    width = max(channels // scheme.hidden, 1)
    between = nn.ReLU() if scheme.biases else nn.LeakyReLU(SLOPE)
    return nn.Sequential(
        nn.Linear(channels, width, bias=scheme.biases),
        between,
        nn.Linear(width, channels, bias=scheme.biases),
    ).to(like)
