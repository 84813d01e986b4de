"""Tiny transformers that have learned a little, of text that ships with Python or of digits."""

import argparse
import inspect
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from tests.support import families

_STEPS, _ROWS, _LENGTH = 60, 8, 24


@cache
def _text() -> Tensor:
    """The source of a module of the standard library, letter by letter."""
    letters = np.frombuffer(inspect.getsource(argparse).encode(), np.uint8).astype(np.int64)
    return torch.from_numpy(np.clip(letters - 30, 1, 96))


@cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.from_numpy((data.images / 8 - 1).astype(np.float32))
    wide = images.repeat_interleave(4, 1).repeat_interleave(4, 2)
    return wide[:, None].expand(-1, 3, -1, -1), torch.from_numpy(data.target.astype(np.int64) % 2)


def trained(name: str, seed: int = 0) -> nn.Module:
    """A model of one of the families after some steps of training; another one for each seed."""
    torch.manual_seed(seed)
    model = families.FAMILIES[name]()
    if seed:
        for value in model.parameters():
            nn.init.normal_(value, 1.0 if value.ndim < 2 else 0.0, 0.1)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(_STEPS):
        loss = _loss(model, name, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def _loss(model: nn.Module, name: str, generator: torch.Generator) -> Tensor:
    if name in families.VISION:
        images, labels = _digits()
        rows = torch.randint(0, len(labels), (_ROWS,), generator=generator)
        scores = families.scores(model, images[rows])
        return nn.functional.cross_entropy(scores, labels[rows])
    text = _text()
    starts = torch.randint(0, len(text) - _LENGTH - 1, (_ROWS,), generator=generator)
    rows = text[starts[:, None] + torch.arange(_LENGTH + 1)]
    scores = families.scores(model, rows[:, :-1])
    return nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
