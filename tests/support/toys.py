"""Small networks and loops that the training tests share."""

from collections.abc import Callable

import torch

from neuralmark import Key, Parameters

PARAMETERS = Parameters(bits=64, pools=128, rounds=2)
NAME = "2.weight"


def network(seed: int = 0, *, dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 96), torch.nn.ReLU(), torch.nn.Linear(96, 96), torch.nn.Linear(96, 4)
    ).to(dtype)


def key(parameters: Parameters = PARAMETERS) -> Key:
    return Key.new(parameters)


def task_loss(model: torch.nn.Module, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(32, 16, generator=generator)
    y = torch.randint(4, (32,), generator=generator)
    weight = next(model.parameters())
    return torch.nn.functional.cross_entropy(model(x.to(weight.dtype)).float(), y)


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    extra: Callable[[], torch.Tensor] | None = None,
) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss = task_loss(model, step)
        if extra is not None:
            loss = loss + extra()
        loss.backward()
        optimizer.step()


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().float().reshape(-1) for p in model.parameters()])
