"""A small network with norms on digits, and the same with a private branch trained along."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import neuralmark
from neuralmark import AttachOptions, Claim, Key, Passports, schemes
from neuralmark.core.key import Filter
from tests.support.learnt import digits, fit

LAYERS = ["4", "7"]
BITS = 160


def normed(norm: type[nn.Module] | None = nn.BatchNorm2d) -> nn.Sequential:
    """Three convolutions, each with a norm behind it; the last two have 192 output channels."""
    torch.manual_seed(0)

    def behind(channels: int) -> nn.Module:
        if norm is None:
            return nn.Identity()
        return nn.GroupNorm(4, channels) if norm is nn.GroupNorm else norm(channels)

    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), behind(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 96, 3, padding=1), behind(96), nn.ReLU()),
        *(nn.Conv2d(96, 96, 3, padding=1), behind(96), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10)),
    )


def key_for(name: str, number: int = 1, how: Filter = "none", **own: Any) -> Key:
    chosen = schemes.parameters(name, bits=BITS, filter=how, own={"side": 4, **own})
    return Key(chosen, b"", salt=bytes(32), secret=bytes([number]) * 32)


@torch.no_grad()
def right(network: Any) -> float:
    """Share of the test digits that a network, or a private branch, tells right."""
    data = digits()
    said = network(data.test_inputs).argmax(1)
    return float((said == data.test_labels).double().mean())


@dataclass(frozen=True)
class Branched:
    key: Key
    state: dict[str, torch.Tensor]
    private: dict[str, torch.Tensor]
    claim: Claim

    def model(self) -> nn.Sequential:
        made = normed()
        made.load_state_dict(self.state)
        return made.eval()

    def branch(self, model: nn.Module) -> Passports:
        found = Passports(model, self.key, claim=self.claim)
        found.load_state_dict(self.private)
        return found


@cache
def branched(name: str = "passport-aware") -> Branched:
    """Both branches trained on both losses, and the sign loss as published."""
    key, model, data = key_for(name), normed(), digits()
    private = Passports(model, key, LAYERS)
    optimizer = torch.optim.Adam([*model.parameters(), *private.parameters()], 2e-3)
    options = AttachOptions(tensors=private.tensors, mode="gradient", strength=3.0)
    mark = neuralmark.attach(model, optimizer, key, options)
    generator = torch.Generator().manual_seed(7)
    model.train()
    for _ in range(4):
        for some in torch.randperm(len(data.labels), generator=generator).split(64):
            inputs, labels = data.inputs[some], data.labels[some]
            optimizer.zero_grad()
            public = functional.cross_entropy(model(inputs), labels)
            (public + functional.cross_entropy(private(inputs), labels)).backward()
            optimizer.step()
    claim = mark.claim()
    mark.detach()
    return Branched(key, _copied(model), _copied(private), claim)


@cache
def _learnt() -> dict[str, torch.Tensor]:
    model = normed()
    fit(model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), 2)
    return _copied(model)


def learnt() -> nn.Sequential:
    """The network without any mark, trained."""
    model = normed()
    model.load_state_dict(_learnt())
    return model.eval()


def _copied(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
