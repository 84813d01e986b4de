"""What torch.jit.save writes."""

import warnings
from pathlib import Path

import torch

from tests.support.holding import holding
from tests.support.makers import Arrays

WRITES = True


def make(arrays: Arrays, where: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, its files are not gone
        torch.jit.script(holding(arrays)).save(where / "model.pt")
    return where / "model.pt"


def victim(path: Path) -> Path:
    return path
