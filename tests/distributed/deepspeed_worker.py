"""One process of a real DeepSpeed run: ZeRO's stages, each with what this process found.

torchrun --nproc-per-node 2 tests/distributed/deepspeed_worker.py FOLDER  (rank 0 writes
FOLDER/results.json: for each stage the list of what the processes found).
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict
from torch import distributed as dist

import neuralmark
from neuralmark import Key, Parameters
from neuralmark.errors import UsageError
from neuralmark.marking.options import Mode

KEY = Key(Parameters(160, 320, 1), salt=bytes(32), secret=bytes(range(32)))
STEPS = 200
Result = dict[str, Any]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)]
    return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(256, 10))


def settings(stage: int) -> Result:
    return {
        "train_micro_batch_size_per_gpu": 32,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
    }


def whole(stage: int, folder: Path) -> Result:
    """Stages 1 and 2 keep whole weights: marked by the loss."""
    model = network().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    mark = neuralmark.attach(
        model, optimizer, KEY, options=neuralmark.AttachOptions(tensors=["2.weight"], mode="loss")
    )
    engine, zero, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=settings(stage)
    )
    refusals = {mode: refusal(engine.module, zero, mode) for mode in ("gradient", "projection")}
    torch.manual_seed(dist.get_rank())
    for _ in range(STEPS):
        x = torch.randn(32, 64)
        given = engine(x.bfloat16()).float()
        loss = torch.nn.functional.cross_entropy(given, (x[:, 0] > 0).long())
        engine.backward(loss + mark.loss_term())
        engine.step()
    verdict = neuralmark.verify(engine.module, KEY, claim=mark.claim())
    return {"refusals": refusals, "matched": verdict.matched, "verified": verdict.verified}


def sharded(stage: int, folder: Path) -> Result:
    """Stage 3 holds no whole weights: refused while training, marked when gathered."""
    model = network()
    engine, zero, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config=settings(stage),
    )
    plain = torch.optim.AdamW(model.parameters(), lr=1e-3)
    refusals = {mode: refusal(engine.module, plain, mode) for mode in ("loss", "gradient")}
    refusals["engine"] = refusal(engine.module, zero, "gradient")
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        verdict = neuralmark.verify(model, KEY, tensors=["2.weight"])
    engine.save_checkpoint(str(folder / "zero"), tag="last")
    dist.barrier()
    if dist.get_rank() == 0:
        convert_zero_checkpoint_to_fp32_state_dict(
            str(folder / "zero"), str(folder / "whole"), tag="last", safe_serialization=True
        )
    return {"refusals": refusals, "matched": verdict.matched, "verified": verdict.verified}


def refusal(model: torch.nn.Module, optimizer: Any, mode: Mode) -> str:
    try:
        neuralmark.attach(
            model, optimizer, KEY, options=neuralmark.AttachOptions(tensors=["2.weight"], mode=mode)
        )
    except UsageError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    sums: Any = importlib.import_module("deepspeed.comm.torch")
    sums.build_shm_op = lambda: None  # sums in shared memory: faster, but compiled on first use
    deepspeed.init_distributed("gloo")
    results: dict[str, list[Result]] = {}
    for stage, run in ((1, whole), (2, whole), (3, sharded)):
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, run(stage, folder))
        results[str(stage)] = found
    if dist.get_rank() == 0:
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
