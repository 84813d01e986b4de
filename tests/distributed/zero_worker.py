"""One of two processes of DeepSpeed that save a model with each of ZeRO's stages, untrained.

torchrun --nproc-per-node 2 tests/distributed/zero_worker.py FOLDER  (FOLDER/whole.pt holds the
state; FOLDER/NAME is written, and FOLDER/NAME.pt by DeepSpeed's own conversion)
"""

import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch import distributed as dist
from torch import nn

FOLDER = Path(*sys.argv[1:2])


class Scaled(nn.Module):
    """Has a buffer, too."""

    factor: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(255))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor.to(x.dtype)


def network() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(64, 255), Scaled(), nn.Linear(255, 96), nn.Linear(96, 5))
    model.load_state_dict(torch.load(FOLDER / "whole.pt"))
    model[3].weight.requires_grad_(False)
    return model


def save(stage: int, half: bool) -> None:
    model = network()
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for n, p in trained if n.endswith("weight")]},
        {"params": [p for n, p in trained if n.endswith("bias")], "weight_decay": 0.0},
    ]
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": half},
    }
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(groups, lr=0.0, weight_decay=0.0), config=settings
    )
    x = torch.randn(4, 64)
    engine.backward(engine(x.bfloat16() if half else x).float().sum())
    engine.step()
    name = f"stage{stage}{'half' if half else ''}"
    engine.save_checkpoint(str(FOLDER / name), tag="global_step1")
    dist.barrier()
    if dist.get_rank() == 0 and stage:
        state = get_fp32_state_dict_from_zero_checkpoint(str(FOLDER / name))
        torch.save({k: v.detach().clone() for k, v in state.items()}, FOLDER / f"{name}.pt")
    dist.barrier()


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    for stage in (0, 1, 2, 3):
        for half in (False, True):
            save(stage, half)
    dist.destroy_process_group()
