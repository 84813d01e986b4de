"""What torch.export.save writes."""

import warnings
from pathlib import Path

import torch

from tests.support.holding import holding
from tests.support.makers import Arrays

WRITES = True


def make(arrays: Arrays, where: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(holding(arrays), (torch.ones(2),))
        torch.export.save(program, where / "model.pt2")
    return where / "model.pt2"


def victim(path: Path) -> Path:
    return path
