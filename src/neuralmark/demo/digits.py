"""The handwritten digits that scikit-learn ships, and a small network that reads them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralmark.errors import MissingExtraError

try:
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ImportError as error:  # the base install has neither
    raise MissingExtraError(
        f"the demo needs {error.name}: pip install 'neuralmark[demo]'"
    ) from None

HIDDEN = 1024
EPOCHS = 12
BATCH = 64


@dataclass(frozen=True)
class Digits:
    """Real images of 8 x 8 pixels, split once and for all."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


def load() -> Digits:
    """Three quarters to train on, one quarter to test."""
    images, labels = load_digits(return_X_y=True)
    parts: list[Any] = train_test_split(
        images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels
    )
    train_x, test_x, train_y, test_y = parts
    return Digits(
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


def train(digits: Digits, *, seed: int = 0, epochs: int = EPOCHS) -> torch.nn.Module:
    """Plain training, as any owner would do it."""
    torch.manual_seed(seed)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        order = torch.randperm(len(digits.train_x))
        for batch in order.split(BATCH):
            loss = torch.nn.functional.cross_entropy(
                model(digits.train_x[batch]), digits.train_y[batch]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def accuracy(state: dict[str, torch.Tensor], digits: Digits) -> float:
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


def read(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file."""
    from safetensors.torch import load_file

    return load_file(path)
