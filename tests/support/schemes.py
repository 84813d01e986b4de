"""Every registered scheme at a size for tests, and a network trained with its mark."""

from typing import Any

import torch
from torch import nn

import neuralmark
from neuralmark import Key, Parameters, schemes
from neuralmark.core.key import Filter, Placement
from neuralmark.marking.options import Mode
from tests.support.images import LAYER, network

SIZES: dict[str, dict[str, Any]] = {
    "neuralmark": {"pools": 320, "rounds": 2},
    "clean": {"pools": 320, "rounds": 2},
    "greedymark": {"own": {"row": 51}},
    "stdm": {"own": {"beta": 1.0}},
    "trapdoor": {"own": {"side": 4}},
}
"""What fits the network of tests/support/images. Its task moves a projection by more than the
published cell of ST-DM is wide, whatever the scheme: wider cells make its mark last."""

STRENGTH = {"greedymark": 300.0, "stdm": 0.1}
"""GreedyMark's published weight takes hundreds of epochs; a test has a few hundred steps. ST-DM's
slope is α·β times that of the others."""

SHAPES = {"0.weight": (64, 3, 3, 3), LAYER: (128, 64, 3, 3)}
"""The convolutions of the network of tests/support/images."""

ALL = [name for name in schemes.names() if schemes.get(name).reads == "weights"]
"""Those that read weights; those that read activations are in tests/schemes/test_triggered.py."""

MARKING = [name for name in ALL if schemes.get(name).marks]


def layers(name: str) -> list[str]:
    """What is marked: one layer; both where a bit takes an output channel."""
    by_channel = isinstance(schemes.get(name), schemes.PassportScheme)
    return list(SHAPES) if by_channel else [LAYER]


def placement(name: str) -> Placement:
    return tuple((layer, SHAPES[layer]) for layer in layers(name))


def parameters(name: str, how: Filter = "none") -> Parameters:
    if how != "none" and isinstance(schemes.get(name), schemes.PassportScheme):
        return schemes.parameters(name, bits=160, filter=how, **SIZES.get(name, {}))
    if how != "none":
        return schemes.parameters(name, bits=160, pools=320, rounds=1, filter=how)
    return schemes.parameters(name, bits=160, **SIZES.get(name, {}))


def key_of(chosen: Parameters, number: int = 1) -> Key:
    return Key(chosen, b"owner=A", salt=bytes(32), secret=bytes([number]) * 32)


def trained(key: Key, steps: int = 500, mode: Mode = "gradient") -> nn.Sequential:
    model = network(10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    strength = STRENGTH.get(key.parameters.scheme, 1.0) if mode == "gradient" else 2.0
    marked = layers(key.parameters.scheme)
    options = neuralmark.AttachOptions(tensors=marked, mode=mode, strength=strength)
    mark = neuralmark.attach(model, optimizer, key, options=options)
    inputs = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), torch.arange(4)).backward()
        optimizer.step()
        if mark.steps % 100 == 0 and mark.rate == 1.0:
            break
    mark.detach()
    return model
