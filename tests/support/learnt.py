"""Networks that learnt scikit-learn's digits, and their training: seconds, and nothing to fetch."""

from collections.abc import Callable
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from neuralmark import zoo
from neuralmark.attacks import Data


@cache
def digits() -> Data:
    """The digits; every fourth is for testing."""
    pixels, labels = load_digits(return_X_y=True)
    x = (torch.from_numpy(pixels.reshape(-1, 1, 8, 8) / 16).float() - 0.3053) / 0.376
    y = torch.from_numpy(labels).long()
    test = torch.arange(len(y)) % 4 == 3
    return Data(x[~test], y[~test], x[test], y[test])


def convolutions() -> Any:
    """The zoo's: two convolutions, the second of 96·96·3·3 weights."""
    return zoo.architecture("digits").make(10)


def narrow() -> nn.Sequential:
    """So small that a mark of 160 bits takes half of its hidden weights."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU()),
        nn.Linear(48, 10),
    )


KINDS: dict[str, tuple[Callable[[], Any], float, int]] = {
    "digits": (convolutions, 0.02, 2),
    "narrow": (narrow, 0.05, 40),
}


def fit(model: Any, optimizer: Any, epochs: int) -> None:
    data, generator = digits(), torch.Generator().manual_seed(7)
    model.train()
    for _ in range(epochs):
        for some in torch.randperm(len(data.labels), generator=generator).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(model(data.inputs[some]), data.labels[some]).backward()
            optimizer.step()
    model.eval()


@torch.no_grad()
def accuracy(model: Any) -> float:
    """Share of the test digits that are told right."""
    data = digits()
    return float((model.eval()(data.test_inputs).argmax(1) == data.test_labels).double().mean())


@cache
def _state(kind: str) -> dict[str, torch.Tensor]:
    make, rate, epochs = KINDS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
        fit(model, torch.optim.SGD(model.parameters(), rate, momentum=0.9), epochs)
    return {name: value.clone() for name, value in model.state_dict().items()}


def learnt(kind: str) -> Any:
    """A trained network, fresh for every caller."""
    model = KINDS[kind][0]()
    model.load_state_dict(_state(kind))
    return model.eval()


def weights_of(kind: str) -> MappingProxyType[str, np.ndarray]:
    """Its weights, by name."""
    return MappingProxyType({name: value.numpy() for name, value in _state(kind).items()})
