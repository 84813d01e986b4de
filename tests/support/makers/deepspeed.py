"""The files of two processes of ZeRO stage 2, as DeepSpeed lays them out.

tests/checkpoints/test_deepspeed.py holds the reader against DeepSpeed itself.
"""

from collections import OrderedDict
from pathlib import Path

import torch

from tests.support.makers import Arrays

WRITES = False


def make(arrays: Arrays, where: Path) -> Path:
    folder = where / "model" / "global_step7"
    folder.mkdir(parents=True)
    (where / "model" / "latest").write_text("global_step7")
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    names = list(state)
    groups = [names[: len(names) // 2], names[len(names) // 2 :]]
    flats = [torch.cat([state[name].reshape(-1) for name in group]) for group in groups]
    flats = [torch.nn.functional.pad(flat, (0, -len(flat) % 4)) for flat in flats]
    halves = [flat.chunk(2) for flat in flats]
    shapes = [OrderedDict((name, state[name].shape) for name in group) for group in groups]
    module = {name: tensor.bfloat16() for name, tensor in state.items()}
    torch.save(
        {"module": module, "buffer_names": [], "param_shapes": shapes, "shared_params": {}},
        folder / "mp_rank_00_model_states.pt",
    )
    for rank in range(2):
        optimizer = {
            "zero_stage": 2,
            "partition_count": [2] * len(groups),
            "single_partition_of_fp32_groups": [half[rank].clone() for half in halves],
        }
        torch.save(
            {"optimizer_state_dict": optimizer},
            folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )
    return where / "model"


def victim(path: Path) -> Path:
    return path / "global_step7" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
