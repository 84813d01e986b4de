"""Passports and blocks of a forger's own: factors for any signature, over weights that stay."""

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neuralmark.errors import AttackError
from neuralmark.training.norms import SLOPE, PassportNorm, is_norm, norm_after, without_factors

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from neuralmark.training.passports import Passports

SHARE = 8
"""A block's hidden units are this part of its channels, as published."""


class ExpandedNorm(nn.Module):
    """A norm with factors γ + MLP(γ): the signs of γ may be anything (CERB)."""

    def __init__(self, norm: Any) -> None:
        """γ begins at 1, β at 0; how it normalises is the norm's own."""
        super().__init__()
        self.normal = norm.normal if isinstance(norm, PassportNorm) else without_factors(norm)
        first = norm.scale if isinstance(norm, PassportNorm) else norm.weight
        channels = norm.channels if isinstance(norm, PassportNorm) else len(norm.weight)
        self.gamma = nn.Parameter(torch.ones(channels).to(first.detach()))
        self.beta = nn.Parameter(torch.zeros(channels).to(first.detach()))
        width = max(channels // SHARE, 1)
        self.block = nn.Sequential(
            nn.Linear(channels, width), nn.LeakyReLU(SLOPE), nn.Linear(width, channels)
        ).to(first.detach())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise, multiply by γ + MLP(γ), add β."""
        factors = self.gamma + self.block(self.gamma)
        shape = (1, -1, *(1 for _ in inputs.shape[2:]))
        moved: torch.Tensor = self.normal(inputs) * factors.view(shape) + self.beta.view(shape)
        return moved


def expand(model: nn.Module, marked: "Sequence[str]") -> list[ExpandedNorm]:
    """Put a block into every norm behind these layers; with none named, into every norm."""
    modules = dict(model.named_modules())
    homes = [norm_after(model, layer) for layer in marked if layer in modules]
    if not marked:
        homes = [name for name, module in modules.items() if is_norm(module) and _factors(module)]
    found = [home for home in homes if home is not None]
    if not found:
        raise AttackError(
            "there is no batch norm and no group norm where the mark lies: no factors to expand"
        )
    blocks = []
    for home in found:
        above, _, leaf = home.rpartition(".")
        block = ExpandedNorm(copy.deepcopy(modules[home]))
        setattr(model.get_submodule(above), leaf, block)
        blocks.append(block)
    return blocks


def _factors(norm: nn.Module) -> bool:
    """Whether a norm has factors; what only normalises has none."""
    return isinstance(norm, PassportNorm) or isinstance(norm.weight, torch.Tensor)


def short_of(gammas: "Sequence[torch.Tensor]", signs: "Sequence[torch.Tensor]") -> torch.Tensor:
    """What the factors lack of 0.1 on their side of a signature, added up."""
    parts = [(0.1 - s * g).clip(min=0).sum() for g, s in zip(gammas, signs, strict=True)]
    return torch.stack(parts).sum()


@torch.no_grad()
def fit_private(branch: "Passports") -> None:
    """Give every MLP the values that turn its γ and β into those of the deployed network.

    Two inputs, two outputs: the second matrix is solved for. No data is needed. (A layer of one
    hidden unit has no room for both.)
    """
    for part, norm in zip(branch.norms, branch.plain_norms, strict=True):
        if part.mlp is None:
            continue
        first, between, second = part.mlp.children()
        assert isinstance(second, nn.Linear)
        inputs = torch.stack([part.signed(), part.moving()])
        hidden = between(first(inputs)).double()
        wanted = torch.stack([norm.weight, norm.bias]).double()
        if isinstance(second.bias, torch.Tensor):
            second.bias.zero_()
        second.weight.copy_((torch.linalg.pinv(hidden) @ wanted).T)


def solved(
    weights: "npt.NDArray[np.float64]", windows: "npt.NDArray[np.float64]", wanted: Any
) -> "npt.NDArray[np.float64]":
    """The smallest passport for which a layer's factors are the wanted ones, or nearly.

    Args:
        weights: The layer, rows x inputs x kernel.
        windows: The mean that each place of a kernel sees of each number of one input's passport:
            kernel x side².
        wanted: One number per row.

    Returns:
        The passport, inputs x side².
    """
    import numpy as np

    rows, inputs, kernel = weights.shape
    seen = np.linalg.lstsq(weights.reshape(rows, -1), wanted, rcond=None)[0]
    passport: npt.NDArray[np.float64] = seen.reshape(inputs, kernel) @ np.linalg.pinv(windows).T
    return passport
