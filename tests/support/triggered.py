"""A small network on digits whose activations carry a mark, trained once for all tests."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

import neuralmark
from neuralmark import AttachOptions, Claim, Key, Triggers, schemes
from tests.support.learnt import convolutions, digits, fit

BITS = {"deepsigns": 160, "featuremap": 160}
LAYER = {"deepsigns": "3", "featuremap": "conv2"}
TRIGGERED = tuple(BITS)


def perceptron() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()),
        nn.Linear(128, 10),
    )


def fresh(name: str) -> Any:
    torch.manual_seed(0)
    return perceptron() if name == "deepsigns" else convolutions()


def key_for(name: str, number: int = 1, **own: Any) -> Key:
    if name == "featuremap":
        own = {"channels": 32, "side": 4, **own}
    parameters = schemes.parameters(name, bits=BITS[name], own=own)
    return Key(parameters, b"", salt=bytes(32), secret=bytes([number]) * 32)


def everything() -> Triggers:
    data = digits()
    return Triggers.of(data.inputs.numpy(), data.labels.numpy())


def drawn(key: Key) -> Triggers:
    count = 8 if key.parameters.scheme == "deepsigns" else 5
    return Triggers.draw(everything(), key, count=count)


@dataclass(frozen=True)
class Marked:
    key: Key
    triggers: Triggers
    state: dict[str, torch.Tensor]
    claim: Claim

    def model(self) -> Any:
        made = fresh(self.key.parameters.scheme)
        made.load_state_dict(self.state)
        return made.eval()

    def read(self, model: Any) -> neuralmark.Verdict:
        return neuralmark.verify(model, self.key, claim=self.claim, triggers=self.triggers)


@cache
def marked(name: str, form: str = "released") -> Marked:
    key = key_for(name, form=form) if name == "deepsigns" else key_for(name)
    triggers, model = drawn(key), fresh(name)
    optimizer: torch.optim.Optimizer
    if name == "deepsigns":
        optimizer, strength, epochs = torch.optim.Adam(model.parameters(), 1e-3), 1.0, 25
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
        strength, epochs = 20.0, 2
    options = AttachOptions(tensors=[LAYER[name]], triggers=triggers, strength=strength)
    mark = neuralmark.attach(model, optimizer, key, options)
    fit(model, optimizer, epochs)
    claim = mark.claim()
    mark.detach()
    return Marked(key, triggers, {k: v.clone() for k, v in model.state_dict().items()}, claim)
