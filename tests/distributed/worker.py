"""One process of a real distributed run: named scenarios, each with a result for every process.

torchrun --nproc-per-node 2 tests/distributed/worker.py FOLDER SCENARIO...  (rank 0 writes
FOLDER/results.json: for each scenario the list of what the processes found).
"""

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import neuralmark
from neuralmark import Key, LiveMark, Parameters, Verdict
from neuralmark.anchors.sealed import load_anchor
from neuralmark.core.carriers import Carriers
from neuralmark.core.imprint import LeastChange
from neuralmark.errors import InfeasibleError
from neuralmark.integrations._shared import Waiting

POOLS = 320
KEY = Key(Parameters(160, POOLS, 1), salt=bytes(32), secret=bytes(range(32)))
ALL = ["up.weight", "down.weight", "out.weight"]
"""Laid end to end; `auto` takes the first two. Rows: 203 or 202, 59 and 3, so never even."""

Result = dict[str, Any]


class Net(torch.nn.Module):
    """Two layers to shard by columns and rows, and one with fewer rows than four processes."""

    def __init__(self, width: int = 203) -> None:
        super().__init__()
        self.up = torch.nn.Linear(96, width)
        self.down = torch.nn.Linear(width, 59)
        self.out = torch.nn.Linear(59, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given: torch.Tensor = self.out(self.down(self.up(x).relu()).relu())
        return given


def network(width: int, seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net(width)


@dataclass(frozen=True)
class Engine:
    """A way to distribute the network, and what this process gets of the data."""

    shard: Callable[[torch.nn.Module], torch.nn.Module]
    width: int = 203
    part: int = 0
    parts: int = 1
    place: int = 0
    """Processes of the same place hold replicas of each other."""


def ddp() -> Engine:
    rank, world = dist.get_rank(), dist.get_world_size()
    return Engine(DistributedDataParallel, part=rank, parts=world)


def fsdp2(mesh: DeviceMesh | None = None) -> Engine:
    rank, world = dist.get_rank(), dist.get_world_size()
    return Engine(lambda model: fully(model, mesh), part=rank, parts=world, place=rank)


def fully(model: torch.nn.Module, mesh: DeviceMesh | None) -> torch.nn.Module:
    """Two parameter groups: a layer of its own, and the root."""
    for module in (model.up, model):
        fully_shard(module, mesh=mesh)  # type: ignore[arg-type]
    return model


def tensor_parallel() -> Engine:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return Engine(lambda model: split(model, mesh), width=202, place=dist.get_rank())


def split(model: torch.nn.Module, mesh: DeviceMesh) -> torch.nn.Module:
    """Columns, then rows; `out` stays a plain tensor."""
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def fsdp2_tensor_parallel() -> Engine:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    part = mesh.get_local_rank("dp")
    return Engine(
        lambda model: fully(split(model, mesh["tp"]), mesh["dp"]), 202, part, 2, dist.get_rank()
    )


def hsdp() -> Engine:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return Engine(
        lambda model: fully(model, mesh),
        part=dist.get_rank(),
        parts=4,
        place=mesh.get_local_rank("shard"),
    )


ENGINES: dict[str, Callable[[], Engine]] = {
    "ddp": ddp,
    "fsdp2": fsdp2,
    "tp": tensor_parallel,
    "fsdp2_tp": fsdp2_tensor_parallel,
    "hsdp": hsdp,
}


# What is done to all engines.


def battery(name: str, folder: Path) -> Result:
    engine = ENGINES[name]()
    return {
        "term": the_term(engine),
        "gradient": training(engine, folder, ALL, mode="gradient", strength=40.0),
        "projection": training(engine, folder, "auto", mode="projection"),
        "imprint": imprinted(engine),
        "seal": sealed(engine, folder / f"{name}.safetensors"),
    }


def the_term(engine: Engine) -> Result:
    """The mark's gradient alone, beside that of one process."""
    plain, model = twins(engine)
    alone, mark = (attach(m, mode="gradient")[1] for m in (plain, model))
    before = mark.rate if dist.get_rank() == 0 else None  # nobody else takes part
    with counted() as found:
        mark.before_step(torch.optim.SGD(model.parameters()), (), {})
    alone.before_step(torch.optim.SGD(plain.parameters()), (), {})
    wanted = {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}
    given = {
        n.removeprefix("module."): whole(p.grad)
        for n, p in model.named_parameters()
        if p.grad is not None
    }
    return {
        "error": max(difference(given[n], wanted[n]) for n in ALL),
        "largest": max(float(wanted[n].abs().max()) for n in ALL),
        "others": sorted(set(given) - set(ALL)),
        "rate_before": before == alone.rate if before is not None else True,
        **found,
    }


def training(
    engine: Engine, folder: Path, tensors: Any, *, mode: str, strength: float = 1
) -> Result:
    """Some steps on the same data, beside one process; then verified live and as a file."""
    plain, model = twins(engine)
    settings = {"tensors": tensors, "mode": mode, "strength": strength}
    optimizer, alone = attach(plain, **settings)
    train(plain, optimizer, range(7))
    wanted = [reads(alone)]
    train(plain, optimizer, range(7, 8))
    wanted.append(reads(alone))
    with only_the_first_solves():
        optimizer, mark = attach(model, **settings)
        train(model, optimizer, range(7), engine)
        backward(model, 7, engine)
        with counted() as found:
            optimizer.step()
    read = reads(mark) if dist.get_rank() == 0 else None  # nobody else takes part
    state = gathered(model)
    with torch.no_grad():
        model(data(0, engine)[0])  # the root of FSDP2 shows its parameters unsharded from here on
    claim = mark.claim()
    verdicts = [neuralmark.verify(model, KEY, claim=claim), neuralmark.verify(model, KEY)]
    result = {
        "error": max(difference(state[n], p) for n, p in plain.state_dict().items()),
        "moved": max(
            difference(state[n], p) for n, p in network(engine.width).state_dict().items()
        ),
        "read": read,
        "read_alone": wanted,
        "measured": [mark.measure().rate, mark.measure().loss, mark.measure().margin],
        "digests": sorted(claim.marked_digest.tensors),
        "verdicts": [summary(verdict) for verdict in verdicts],
        "replicas": replicas(model, engine),
        **found,
    }
    if dist.get_rank() == 0:
        path = folder / f"{time.monotonic_ns()}.safetensors"
        save_file(state, path)
        files = [neuralmark.verify(path, KEY, claim=claim), neuralmark.verify(path, KEY)]
        result["files"] = [summary(verdict) for verdict in files]
        result["headers"] = files[0].checkpoint_digest.headers == claim.marked_digest.headers
    mark.detach()
    return result


def imprinted(engine: Engine) -> Result:
    """Without training, beside one process."""
    plain, model = twins(engine)
    alone = neuralmark.imprint(plain, KEY, tensors=ALL, strength=2.0)
    done = neuralmark.imprint(model, KEY, tensors=ALL, strength=2.0)
    assert alone.verdict is not None
    assert done.verdict is not None
    return {
        "error": max(difference(gathered(model)[n], p) for n, p in plain.state_dict().items()),
        "changes": [done.change_relative, done.change_largest],
        "changes_alone": [alone.change_relative, alone.change_largest],
        "verdict": summary(done.verdict),
        "verdict_alone": summary(alone.verdict),
        "replicas": replicas(model, engine),
    }


def sealed(engine: Engine, out: Path) -> Result:
    """A training that ends with a mark bound to an anchor, which the first process writes."""
    model = engine.shard(network(engine.width))
    optimizer, mark = attach(model, tensors=ALL, mode="projection")
    train(model, optimizer, range(3), engine)
    done = mark.seal(out, neuralmark.EmbedOptions(tensors=ALL, strength=2.0))
    dist.barrier()
    assert done.claim is not None
    assert done.verdict is not None
    anchor = load_anchor(f"{out}.anchor", KEY)
    ((before, after),) = done.others
    file = gathered(model)
    return {
        "anchor": done.claim.anchor_digest.hex(),
        "file": anchor.digest.hex(),
        "matched": done.verdict.matched,
        "saved": neuralmark.verify(file, KEY, claim=f"{out}.claim.json").matched,
        "trained": [before.verified, after.verified],
        "replicas": replicas(model, engine),
    }


# What is done once.


def resume(folder: Path) -> Result:
    """Killed between two projections and started again, from torch's distributed checkpoint."""
    engine = fsdp2()
    settings: dict[str, Any] = {"tensors": ALL, "mode": "projection", "every": 3}
    model = engine.shard(network(engine.width))
    optimizer, mark = attach(model, **settings)
    train(model, optimizer, range(8), engine)
    wanted = gathered(model)

    model = engine.shard(network(engine.width))
    optimizer, mark = attach(model, **settings)
    train(model, optimizer, range(5), engine)
    weights, state = get_state_dict(model, optimizer)
    saved: Result = {"model": weights, "optimizer": state, "mark": mark.state_dict()}
    save(saved, checkpoint_id=folder / "dcp")

    errors = {}
    for attach_first in (True, False):
        model = engine.shard(network(engine.width, seed=1))
        if attach_first:
            optimizer, mark = attach(model, **settings)
        else:
            optimizer = sgd(model)
        weights, state = get_state_dict(model, optimizer)
        loaded = {"model": weights, "optimizer": state, "mark": saved["mark"] | {"steps": 0}}
        load(loaded, checkpoint_id=folder / "dcp")
        if attach_first:  # before the optimizer's state, whose loading takes a step that is none
            mark.load_state_dict(loaded["mark"])
        set_state_dict(
            model, optimizer, model_state_dict=weights, optim_state_dict=loaded["optimizer"]
        )
        if not attach_first:
            mark = neuralmark.attach(model, optimizer, KEY, neuralmark.AttachOptions(**settings))
            mark.load_state_dict(loaded["mark"])
        train(model, optimizer, range(5, 8), engine)
        found = gathered(model)
        errors[str(attach_first)] = max(difference(found[n], p) for n, p in wanted.items())
    return {"errors": errors, "steps": mark.steps}


def saving_changes_nothing(folder: Path) -> Result:
    """Reading an optimizer's state takes a step that is none, with a learning rate of 0."""
    results: Result = {}
    for mode in ("gradient", "projection"):
        model = fsdp2().shard(network(203))
        optimizer, mark = attach(model, mode=mode, momentum=0.0)
        train(model, optimizer, range(1), fsdp2())
        before = gathered(model)
        get_state_dict(model, optimizer)
        after = gathered(model)
        results[mode] = [mark.steps, max(difference(after[n], p) for n, p in before.items())]
        mark.detach()
    return results


def replicated(folder: Path) -> Result:
    """A replicated DTensor fed with sharded inputs has partial sums for a gradient."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plain, model = network(203), network(203)
    settings: dict[str, Any] = {"tensors": ALL, "mode": "gradient", "strength": 40.0}
    distribute_module(model, mesh)
    (optimizer, _), (sharded, mark) = attach(plain, **settings), attach(model, **settings)
    x, y = data(0, Engine(lambda m: m))
    torch.nn.functional.cross_entropy(plain(x), y).backward()
    sharded_x, sharded_y = (distribute_tensor(part, mesh, [Shard(0)]) for part in (x, y))
    torch.nn.functional.cross_entropy(model(sharded_x), sharded_y).backward()
    kinds = {str(p.grad.placements) for p in model.parameters() if p.grad is not None}  # type: ignore[attr-defined]
    optimizer.step()
    sharded.step()
    state = {n: whole(p) for n, p in model.named_parameters()}
    return {
        "error": max(difference(state[n], p) for n, p in plain.named_parameters()),
        "partial": any("Partial" in kind or "P(" in kind for kind in kinds),
        "digests": sorted(mark.claim().marked_digest.tensors),
        "placements": [str(p.placements) == str((Replicate(),)) for p in model.parameters()],  # type: ignore[attr-defined]
    }


def one_shard(folder: Path) -> Result:
    """A mesh dimension of one process shards nothing."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    with counted() as found:
        _, mark = attach(fully(network(203), mesh), mode="projection")
    return {"digests": sorted(mark.claim().marked_digest.tensors), **found}


def half_precision(folder: Path) -> Result:
    """bfloat16 shards: rounding is settled together."""
    model = fsdp2().shard(network(203).bfloat16())
    done = neuralmark.imprint(model, KEY, tensors=ALL, strength=2.0)
    assert done.verdict is not None
    return summary(done.verdict)


def grids(folder: Path) -> Result:
    """What the shards hold decides together how they are written."""
    short = network(203)
    with torch.no_grad():
        for parameter in short.parameters():
            parameter.copy_(parameter.bfloat16().float())
    model = fsdp2().shard(short)
    done = neuralmark.imprint(model, KEY, tensors=ALL, strength=2.0)
    assert done.verdict is not None
    state = gathered(model)
    results: Result = {
        "short": {
            "matched": done.verdict.matched,
            "on": all(torch.equal(state[n], state[n].bfloat16().float()) for n in ALL),
            "digest": digest(state),
        }
    }
    for name, make in (("pruned", half_zero), ("still", zero)):
        plain = make(network(203))
        model = fsdp2().shard(make(network(203)))
        done = neuralmark.imprint(model, KEY, spread="all", strength=2.0)
        assert done.verdict is not None
        state = gathered(model)
        results[name] = {
            "matched": done.verdict.matched,
            "zeros": all(torch.equal(p == 0, state[n] == 0) for n, p in plain.state_dict().items()),
            "moved": sorted(n for n, p in plain.state_dict().items() if difference(p, state[n])),
            "warnings": list(done.warnings),
            "digest": digest(state),
        }
    named = fsdp2().shard(zero(network(203)))
    results["named"] = message(lambda: neuralmark.imprint(named, KEY, tensors=ALL))
    broken = network(203)
    placement = tuple((n, tuple(broken.get_parameter(n).shape)) for n in sorted(ALL))
    sizes = [broken.get_parameter(n).numel() for n in sorted(ALL)]  # "up.weight" is the last
    carriers = Carriers.of(KEY.at(placement), sum(sizes))
    inside = set(carriers.between(sum(sizes[:2]), sum(sizes))[1].tolist())
    place = next(i for i in range(sizes[2] - 1, 0, -1) if i not in inside)
    with torch.no_grad():
        broken.up.weight.view(-1)[place] = float("nan")
    sharded = fsdp2().shard(broken)
    results["broken"] = message(lambda: neuralmark.imprint(sharded, KEY, tensors=ALL))
    return results


@torch.no_grad()
def half_zero(model: Net) -> Net:
    """The first rows, all that the first process holds, are zero."""
    model.up.weight[:150] = 0.0
    return model


@torch.no_grad()
def zero(model: Net) -> Net:
    model.down.weight.zero_()
    return model


def digest(state: dict[str, torch.Tensor]) -> str:
    parts = [state[name].contiguous().numpy().tobytes() for name in sorted(state)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def lead_fails(folder: Path) -> Result:
    """What the first process cannot solve is an error on all, at once."""
    results = {}
    for name in ("ddp", "fsdp2"):
        engine = ENGINES[name]()
        model = engine.shard(network(engine.width))
        with mock.patch.object(LeastChange, "change", side_effect=InfeasibleError("no")):
            results[name] = message(partial(attach, model, mode="projection"))
    return results


def refused(folder: Path) -> Result:
    """FSDP1 flattens weights; loss terms need whole ones; optimizers must come after sharding."""
    model = FullyShardedDataParallel(network(203), device_id=torch.device("cpu"))
    results = {"fsdp1": message(lambda: attach(model, mode="gradient"))}
    results["fsdp1_verify"] = message(lambda: neuralmark.verify(model, KEY))
    late = network(203)
    optimizer = sgd(late)
    fully_shard(late)
    gradient = neuralmark.AttachOptions(mode="gradient")
    early = partial(neuralmark.attach, late, optimizer, KEY, gradient)
    results["early_optimizer"] = message(early)
    mark = neuralmark.attach(late, sgd(late), KEY, gradient)
    results["loss_term"] = message(mark.loss_term)
    computed = network(203)
    torch.nn.utils.parametrizations.weight_norm(computed.up)
    fully_shard(computed)
    results["computed"] = message(lambda: attach(computed, mode="gradient"))
    results["computed_verify"] = neuralmark.verify(computed, KEY).status
    return results


def other_keys(folder: Path) -> Result:
    """A key of its own in every process, or other settings, is an error in all of them."""
    results: Result = {}
    mine = Key(KEY.parameters, salt=bytes(32), secret=bytes([dist.get_rank()]) * 32)
    for name in ("ddp", "fsdp2"):
        engine = ENGINES[name]()
        model = engine.shard(network(engine.width))
        calls: dict[str, Callable[[], Any]] = {
            "attach": partial(
                neuralmark.attach, model, sgd(model), mine, neuralmark.AttachOptions(ALL)
            ),
            "imprint": partial(neuralmark.imprint, model, mine, tensors=ALL),
            "verify": partial(neuralmark.verify, model, mine, tensors=ALL),
            "settings": partial(attach, model, strength=1.0 + dist.get_rank()),
            "tensors": partial(attach, model, tensors=[ALL[dist.get_rank()]]),
        }
        results[name] = {call: message(calls[call]) for call in calls}
        results[name]["same"] = message(partial(attach, model))
    options = Waiting(mine, neuralmark.AttachOptions(ALL))
    plain = network(203)  # as a framework shows it: without DDP's shell
    results["framework"] = {"attach": message(partial(options.attach, plain, sgd(plain)))}
    return results


SCENARIOS: dict[str, Callable[[Path], Result]] = {
    "resume": resume,
    "saving": saving_changes_nothing,
    "replicated": replicated,
    "one_shard": one_shard,
    "half": half_precision,
    "grids": grids,
    "lead_fails": lead_fails,
    "refused": refused,
    "other_keys": other_keys,
}


# Tools.


def attach(
    model: torch.nn.Module, *, tensors: Any = ALL, momentum: float = 0.9, **settings: Any
) -> tuple[torch.optim.SGD, LiveMark]:
    optimizer = sgd(model, momentum)
    return optimizer, neuralmark.attach(
        model, optimizer, KEY, neuralmark.AttachOptions(tensors, **settings)
    )


def reads(mark: LiveMark) -> list[float]:
    return [mark.rate, mark.loss, mark.margin]


def sgd(model: torch.nn.Module, momentum: float = 0.9) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)


def twins(engine: Engine) -> tuple[torch.nn.Module, torch.nn.Module]:
    return network(engine.width), engine.shard(network(engine.width))


def data(step: int, engine: Engine) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(64, 96, generator=generator)
    y = torch.randint(3, (64,), generator=generator)
    return x[engine.part :: engine.parts], y[engine.part :: engine.parts]


WHOLE = Engine(lambda model: model)


def train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range, engine: Engine = WHOLE
) -> None:
    for step in steps:
        backward(model, step, engine)
        optimizer.step()
        optimizer.zero_grad()


def backward(model: torch.nn.Module, step: int, engine: Engine) -> None:
    x, y = data(step, engine)
    torch.nn.functional.cross_entropy(model(x), y).backward()


@contextlib.contextmanager
def counted() -> Iterator[Result]:
    """Collectives by kind, and how many numbers each all-reduce of the mark took."""
    found: Result = {}
    numbers: list[int] = []
    real = dist.all_reduce

    def noted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        numbers.append(tensor.numel())
        return real(tensor, *args, **kwargs)

    with CommDebugMode() as mode, mock.patch.object(dist, "all_reduce", noted):
        yield found
    found["collectives"] = {str(kind): n for kind, n in mode.get_comm_counts().items() if n}
    found["numbers"] = numbers


@contextlib.contextmanager
def only_the_first_solves() -> Iterator[None]:
    if dist.get_rank() == 0:
        yield
        return
    with mock.patch.object(LeastChange, "change", side_effect=AssertionError("not the first")):
        yield


def gathered(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    options = StateDictOptions(full_state_dict=True)
    state: dict[str, Any] = get_model_state_dict(model, options=options)
    return {name: whole(value) for name, value in state.items()}


def whole(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.detach() - other.detach()).abs().max())


def replicas(model: torch.nn.Module, engine: Engine) -> bool:
    """Whether processes that hold the same part hold the same bytes."""
    with torch.no_grad():
        mine = {
            name: hashlib.sha256(local(value).contiguous().numpy().tobytes()).hexdigest()
            for name, value in model.state_dict().items()
        }
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (engine.place, mine))
    first: dict[int, dict[str, str]] = {}
    return all(first.setdefault(place, theirs) == theirs for place, theirs in everyone)


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def summary(verdict: Verdict) -> Result:
    return {
        "verified": verdict.verified,
        "matched": verdict.matched,
        "map": list(verdict.margin_histogram.matched),
        "margins": [verdict.smallest_margin, verdict.median_margin],
        "radius": verdict.certified_radius,
        "radius_relative": verdict.certified_radius_relative,
        "trials": verdict.trials,
        "placement": [name for name, _ in verdict.placement],
    }


def message(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = {}
    for name in names:
        began = time.monotonic()
        mine = battery(name, folder) if name in ENGINES else SCENARIOS[name](folder)
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        results[name] = everyone
        if dist.get_rank() == 0:
            print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    if dist.get_rank() == 0:
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads sometimes abort the interpreter's own shutdown


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
