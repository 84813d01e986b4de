"""Measurements that need no trained model: overlap of carriers, cost of a step, forging."""

import difflib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralmark import schemes
from neuralmark.attacks import LaunchOptions, get, launch
from neuralmark.core.carriers import Tiled
from neuralmark.core.key import TILED, Filter
from neuralmark.errors import ParameterError
from neuralmark.keys.key import Key
from neuralmark.lab.execution.devices import CUDA

if TYPE_CHECKING:
    import torch

Row = dict[str, Any]
Settings = dict[str, Any]


def measure(name: str, settings: Settings, seed: int, device: "torch.device") -> Row:
    """Make a measurement by name; only some need the device."""
    if name not in PROBES:
        near = difflib.get_close_matches(name, PROBES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ParameterError(f"there is no probe {name!r}{hint}")
    return PROBES[name](settings, seed, device)


def overlap(settings: Settings, seed: int, device: "torch.device") -> Row:
    """Share of an owner's carriers that each counterfeit key selects too."""
    weights, keys = int(settings["weights"]), int(settings["keys"])
    rounds = int(settings["rounds"])
    rng = np.random.default_rng(seed)

    def selected() -> np.ndarray:
        b = rng.integers(0, 2, 256).astype(np.uint8)
        carriers = Tiled.under(b, rounds, weights, 1)
        chosen = np.zeros(weights, bool)
        chosen[carriers.positions()] = True
        return chosen

    owner = selected()
    if not owner.any():
        raise ParameterError(f"{weights:,} weights leave no carrier after {rounds} rounds")
    shares = [float((owner & selected()).sum() / owner.sum()) for _ in range(keys)]
    return {"shares": shares, "mean": float(np.mean(shares)), "carriers": int(owner.sum())}


_OF_COST = ("architecture", "batch", "repeats", "scheme", "rounds")
"""Settings of the measurement itself; the others are the architecture's."""


def cost(settings: Settings, seed: int, device: "torch.device") -> Row:
    """Time of a training step with a scheme's mark, and of a clean one, taken in turn."""
    import torch
    from torch.nn.functional import cross_entropy

    from neuralmark import zoo
    from neuralmark.marking.options import AttachOptions
    from neuralmark.training.attach import attach

    torch.manual_seed(seed)
    options = {name: value for name, value in settings.items() if name not in _OF_COST}
    architecture = zoo.architecture(str(settings["architecture"]), options)
    model = architecture.build(classes=10).to(device)
    size = architecture.input_size
    inputs = torch.randn(int(settings["batch"]), *size).to(device)
    labels = torch.randint(0, 10, (len(inputs),)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    name = str(settings["scheme"])
    own: Filter | None = TILED if name == "neuralmark" else None
    chosen = schemes.parameters(name, rounds=settings.get("rounds"), filter=own)
    key = Key(chosen, b"", salt=bytes(32), secret=bytes([seed % 256]) * 32)

    def step() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if device.type == CUDA:
            torch.cuda.synchronize(device)  # steps are only queued there
        return time.perf_counter() - start

    step()
    clean, marked = [], []
    for _ in range(int(settings["repeats"])):
        clean.append(step())
        mark = attach(
            model, optimizer, key, options=AttachOptions(tensors=list(architecture.marked))
        )
        step()  # the first builds what the others use
        marked.append(step())
        mark.detach()
    low, ratio, high = np.quantile(np.array(marked) / np.array(clean), (0.25, 0.5, 0.75))
    return {
        "clean": float(np.median(clean)),
        "marked": float(np.median(marked)),
        "ratio": float(ratio),
        "low": float(low),
        "high": float(high),
    }


def forge(settings: Settings, seed: int, device: "torch.device") -> Row:
    """A forger on a layer that carries no mark."""
    given = dict(settings)
    attack, shape = str(given.pop("attack")), tuple(map(int, str(given.pop("shape")).split("x")))
    count = int(given.pop("count", 1))
    rng = np.random.default_rng(seed)
    weights = {
        f"layers.{i}.weight": (0.02 * rng.standard_normal(shape)).astype(np.float32)
        for i in range(count)
    }
    result = launch(get(attack)(**given), weights, options=LaunchOptions(seed=seed))
    assert result.after is not None
    return {
        "matched": result.after.matched,
        "bits": result.after.bits,
        "boundary": result.after.boundary,
        "status": result.after.status,
        "rate": result.after.rate,
        "queries": result.queries,
        "figures": dict(result.figures),
        "attack_seconds": result.seconds,
    }


PROBES: dict[str, Callable[[Settings, int, "torch.device"], Row]] = {
    "cost": cost,
    "forge": forge,
    "overlap": overlap,
}
