"""One process that marks a model before it is wrapped: the keys are compared all the same.

torchrun --nproc-per-node 2 tests/distributed/keys_worker.py FOLDER  (rank 0 writes
FOLDER/results.json: for each call what the processes were warned of).
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

import neuralmark
from neuralmark import Key, Parameters
from neuralmark.errors import NeuralMarkWarning
from neuralmark.marking.options import Mode

RANK = int(os.environ.get("RANK", "0"))


def key(number: int) -> Key:
    return Key(Parameters(160, 320, 1), salt=bytes(32), secret=bytes([number]) * 32)


def attached(number: int, mode: Mode = "projection") -> tuple[torch.nn.Module, Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = neuralmark.AttachOptions(mode=mode)
    return model, optimizer, neuralmark.attach(model, optimizer, key(number), options)


def train(model: torch.nn.Module, optimizer: Any, mark: Any) -> None:
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    for _ in range(2):
        optimizer.zero_grad()
        loss = wrapped(torch.ones(1, 256)).square().mean()
        (loss + mark.loss_term() if mark.settings.mode == "loss" else loss).backward()
        optimizer.step()


def warned(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", NeuralMarkWarning)
        call()
    return [str(each.message) for each in found if each.category is NeuralMarkWarning]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    modes: tuple[Mode, ...] = ("loss", "gradient", "projection")
    early = {mode: attached(RANK, mode) for mode in modes}
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    mine: dict[str, list[str]] = {}
    for mode in modes:
        mine[mode] = warned(partial(train, *early[mode]))
    mine["attach"] = warned(lambda: attached(RANK))
    mine["same"] = warned(lambda: train(*attached(7)))
    mine["alone"] = warned(lambda: attached(RANK)) if RANK == 0 else []
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if RANK == 0:
        told = {call: [each[call] for each in everyone] for call in mine}
        (folder / "results.json").write_text(json.dumps(told), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
