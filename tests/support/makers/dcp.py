"""What torch.distributed.checkpoint writes, in one process."""

import warnings
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict_saver import save

from tests.support.makers import Arrays

WRITES = False


def make(arrays: Arrays, where: Path) -> Path:
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    moments = {name: {"exp_avg": tensor + 1} for name, tensor in state.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(
            {"model": state, "optimizer": {"state": moments}, "step": 3},
            checkpoint_id=where / "model",
            no_dist=True,
        )
    return where / "model"


def victim(path: Path) -> Path:
    return path / "__0_0.distcp"
