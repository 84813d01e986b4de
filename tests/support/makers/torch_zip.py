"""What torch.save writes, in its present form."""

from pathlib import Path

import torch

from tests.support.makers import Arrays

WRITES = True


def make(arrays: Arrays, where: Path) -> Path:
    path = where / "model.pt"
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    torch.save({"state_dict": state}, path, _use_new_zipfile_serialization=True)
    return path


def victim(path: Path) -> Path:
    return path
