"""One of four processes that share a model in several ways and save it, each in its own manner.

torchrun --nproc-per-node 4 tests/distributed/saving_worker.py FOLDER  (FOLDER/whole.pt holds the
state; FOLDER/dcp-NAME and FOLDER/ranks-NAME are written)
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

FOLDER = Path(*sys.argv[1:2])
CUT = {"0": ColwiseParallel, "2": RowwiseParallel}


def network() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(64, 257), nn.ReLU(), nn.Linear(257, 96), nn.Linear(96, 5))
    model.load_state_dict(torch.load(FOLDER / "whole.pt"))
    return model


def rows() -> nn.Module:
    model = network()
    fully_shard(model[0])
    fully_shard(model)
    return model


def columns() -> nn.Module:
    mesh = init_device_mesh("cpu", (4,))
    return parallelize_module(network(), mesh, {name: way() for name, way in CUT.items()})


def both() -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    plan = {name: way() for name, way in CUT.items()}
    model = parallelize_module(network(), mesh["tensor"], plan)
    fully_shard(model, mesh=mesh["data"])
    return model


def half() -> nn.Module:
    model = network().to(torch.bfloat16)
    fully_shard(model)
    return model


def keep(name: str, state: dict[str, object]) -> None:
    (FOLDER / f"ranks-{name}").mkdir(exist_ok=True)
    torch.save(state, FOLDER / f"ranks-{name}" / f"model_rank_{dist.get_rank()}.pt")
    if name != "local":
        save({"model": state, "step": 3}, checkpoint_id=FOLDER / f"dcp-{name}")


def old(kind: StateDictType, name: str) -> None:
    """FSDP as it was before DTensor."""
    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    with FullyShardedDataParallel.state_dict_type(model, kind):
        keep(name, model.state_dict())


def main() -> None:
    dist.init_process_group("gloo")
    ways: dict[str, Callable[[], nn.Module]] = {"rows": rows, "columns": columns, "both": both}
    for name, way in (ways | {"half": half}).items():
        keep(name, dict(way().state_dict()))
    old(StateDictType.SHARDED_STATE_DICT, "old")
    old(StateDictType.LOCAL_STATE_DICT, "local")
    writer = HuggingFaceStorageWriter(path=str(FOLDER / "dcp-hub"), save_distributed=True)
    save(rows().state_dict(), storage_writer=writer)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
