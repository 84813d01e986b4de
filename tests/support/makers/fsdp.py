"""What two processes save that hold their models in DTensors: torch.save of the state_dict, each.

tests/checkpoints/test_sharded.py holds the reader against real processes.
"""

from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.makers import Arrays

WRITES = False


def make(arrays: Arrays, where: Path) -> Path:
    folder = where / "model"
    folder.mkdir()
    for rank in range(2):
        dist.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (2,))
            state = {}
            for name, array in arrays.items():
                whole = torch.from_numpy(array)
                cut = whole.ndim > 0
                local = whole.chunk(2)[rank].clone() if cut else whole
                state[name] = DTensor.from_local(
                    local,
                    mesh,
                    [Shard(0) if cut else Replicate()],
                    run_check=False,
                    shape=whole.shape,
                    stride=whole.stride(),
                )
            torch.save(state, folder / f"model_world_size_2_rank_{rank}.pt")
        finally:
            dist.destroy_process_group()
    return folder


def victim(path: Path) -> Path:
    return path / "model_world_size_2_rank_1.pt"
