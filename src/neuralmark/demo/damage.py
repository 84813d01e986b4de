"""What a stolen model goes through, as functions from weights to weights."""

from collections.abc import Callable

import torch

State = dict[str, torch.Tensor]
Damage = Callable[[State], State]


def noise(share: float) -> Damage:
    """Gaussian noise of this share of each tensor's deviation."""

    def apply(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return weight + share * weight.std() * torch.randn(weight.shape, generator=generator)

    return _on_matrices(apply)


def prune(share: float) -> Damage:
    """Set a random share of each tensor's weights to zero."""

    def apply(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return weight * (torch.rand(weight.shape, generator=generator) >= share)

    return _on_matrices(apply)


def half(state: State) -> State:
    """Store everything in half precision."""
    return {name: value.half() for name, value in state.items()}


def int8(state: State) -> State:
    """Quantise each output channel to 8 bits, round to nearest, and dequantise."""

    def apply(weight: torch.Tensor, _generator: torch.Generator) -> torch.Tensor:
        scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
        return (weight / scale).round().clamp(-127, 127) * scale

    return _on_matrices(apply)(state)


def _on_matrices(change: Callable[[torch.Tensor, torch.Generator], torch.Tensor]) -> Damage:
    def damage(state: State) -> State:
        generator = torch.Generator().manual_seed(1)
        return {
            name: change(value, generator) if value.dim() >= 2 else value
            for name, value in state.items()
        }

    return damage


NAMED: dict[str, Damage] = {
    "noise, 50 % of the deviation": noise(0.5),
    "noise, 100 %": noise(1.0),
    "random pruning, 30 %": prune(0.3),
    "random pruning, 50 %": prune(0.5),
    "half precision": half,
    "int8 per channel": int8,
}
"""The damages of the demo's table."""
