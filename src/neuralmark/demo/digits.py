"""The handwritten digits that scikit-learn ships, and a small network that reads them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from neuralmark.keys.key import Key
from neuralmark.marking.options import AttachOptions, Mode
from neuralmark.records import Claim
from neuralmark.training.attach import attach

HIDDEN = 1024
EPOCHS = 12
BATCH = 64


@dataclass(frozen=True)
class DemoDigits:
    """Real images of 8 x 8 pixels, split once and for all."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


def load() -> DemoDigits:
    """Three quarters to train on, one quarter to test."""
    images, labels = load_digits(return_X_y=True)
    parts: list[Any] = train_test_split(
        images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels
    )
    train_x, test_x, train_y, test_y = parts
    return DemoDigits(
        torch.tensor(train_x, dtype=torch.float32),
        torch.tensor(train_y),
        torch.tensor(test_x, dtype=torch.float32),
        torch.tensor(test_y),
    )


def network() -> torch.nn.Module:
    """Two hidden layers; the second has a million weights, enough to carry a mark."""
    from collections import OrderedDict

    return torch.nn.Sequential(
        OrderedDict(
            hidden1=torch.nn.Linear(64, HIDDEN),
            relu1=torch.nn.ReLU(),
            hidden2=torch.nn.Linear(HIDDEN, HIDDEN),
            relu2=torch.nn.ReLU(),
            classifier=torch.nn.Linear(HIDDEN, 10),
        )
    )


@dataclass(frozen=True)
class DemoEpoch:
    """How training stood after one epoch; loss and rate of the mark where there is one."""

    accuracy: float
    loss: float | None = None
    rate: float | None = None


@dataclass(frozen=True)
class Run:
    """A finished training run."""

    state: dict[str, torch.Tensor]
    history: tuple[DemoEpoch, ...]
    moved: float
    """How far the weights moved, relative to where they began."""
    claim: Claim | None = None


def train(
    digits: DemoDigits, *, key: Key | None = None, mode: Mode = "gradient", seed: int = 0
) -> Run:
    """Plain training, as any owner would do it; with a key, one line more."""
    torch.manual_seed(seed)
    model = network()
    start = _flat(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mark = None if key is None else attach(model, optimizer, key, options=AttachOptions(mode=mode))
    history = []
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(digits.train_x)).split(BATCH):
            scores = model(digits.train_x[batch])
            loss = torch.nn.functional.cross_entropy(scores, digits.train_y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        reached = accuracy(model.state_dict(), digits)
        history.append(DemoEpoch(reached, mark.loss, mark.rate) if mark else DemoEpoch(reached))
    claim = None
    if mark is not None:
        claim = mark.claim()
        mark.detach()
    moved = float((_flat(model) - start).norm() / start.norm())
    return Run(model.state_dict(), tuple(history), moved, claim)


def _flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def accuracy(state: dict[str, torch.Tensor], digits: DemoDigits) -> float:
    """Share of the test images that a network with these weights reads correctly."""
    model = network()
    model.load_state_dict({name: value.float() for name, value in state.items()})
    with torch.no_grad():
        right = model(digits.test_x).argmax(dim=1) == digits.test_y
    return float(right.float().mean())


def save(state: dict[str, torch.Tensor], path: Path) -> None:
    """As safetensors."""
    from safetensors.torch import save_file

    save_file({name: value.contiguous() for name, value in state.items()}, path)


def tensor(values: Any) -> torch.Tensor:
    """An array as a tensor of its own."""
    return torch.tensor(values)


def read(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file."""
    from safetensors.torch import load_file

    return load_file(path)
