"""Carrying out one run: train, attack or measure; resumes from what a killed one had saved."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralmark import attacks, schemes, zoo
from neuralmark.errors import ParameterError, ResultsError
from neuralmark.lab.execution import probes
from neuralmark.lab.execution.devices import AUTO, Device, device_for, name_of
from neuralmark.lab.execution.store import MODEL, Row, Store
from neuralmark.lab.plan.keys import fitting, key_for
from neuralmark.lab.plan.spec import (
    Assault,
    ImprintSpec,
    Spec,
    Training,
    TuningSpec,
    Victim,
    identity,
)
from neuralmark.records import Claim
from neuralmark.storage import files
from neuralmark.version import __version__

if TYPE_CHECKING:
    import torch

    from neuralmark.zoo import DataSet

Notify = Callable[[int, int], None]

LORA_DELTA = "lora_delta"
"""How the names of LoRA products end: computed, not stored."""
BINS = 101
"""Bins of the marked layer's weights, for the figure of distributions."""


@dataclass(frozen=True)
class Workbench:
    """What runs are carried out with: the folders of results and data, and the device."""

    store: Store
    data: Path | None = None
    device: Device = AUTO


def performer(bench: Workbench) -> Callable[[Spec, Notify], None]:
    """What an engine calls with each run."""
    return partial(perform, bench)


def perform(bench: Workbench, spec: Spec, notify: Notify) -> None:
    """Carry out a run and write its row; does nothing where there is one, with its model."""
    import torch

    store, data = bench.store, bench.data
    if store.complete(spec):
        return
    torch.set_num_threads(1)
    device = device_for(identity(spec), bench.device)
    start = time.perf_counter()
    if isinstance(spec, Training):
        row = _train(store, data, device, spec, notify)
    elif isinstance(spec, TuningSpec):
        from neuralmark.lab.execution import texts

        row = texts.tune(store, data, device, spec, notify)
    elif isinstance(spec, ImprintSpec):
        row = _imprint(store, data, device, spec)
    elif isinstance(spec, Assault):
        row = _assault(store, data, device, spec, notify)
    else:
        row = probes.measure(spec.probe, dict(spec.settings), spec.seed, device)
    row.setdefault("seconds", time.perf_counter() - start)
    store.finish(spec, {**row, "versions": versions(), "device": name_of(device)})


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    import torch

    return {
        "neuralmark": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _built(spec: Training, classes: int) -> "tuple[torch.nn.Module, tuple[str, ...]]":
    """The network, channels-last: convolutions of owners and attackers are quicker so."""
    import torch

    architecture = zoo.architecture(spec.architecture, dict(spec.options))
    model = architecture.build(classes=classes)
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return model, spec.tensors or architecture.marked


@lru_cache(maxsize=4)
def _data(
    name: str, folder: Path | None, device: "torch.device", images: int | None, tests: int | None
) -> "DataSet":
    """A data set, read once for all the runs of a worker."""
    return zoo.data(name, folder, limit=images, test_limit=tests).to(device)


def _settled(
    store: Store,
    name: str,
    folder: Path | None,
    device: "torch.device",
    images: int | None,
    tests: int | None,
) -> "DataSet":
    """A data set that is the same in all runs of the store."""
    data = _data(name, folder, device, images, tests)
    store.settle(f"{name}-{images or 'all'}-{tests or 'all'}", data.digest)
    return data


def _train(
    store: Store, folder: Path | None, device: "torch.device", spec: Training, notify: Notify
) -> Row:
    import torch

    from neuralmark.lab.execution.training import TrainingCourse, train

    data = _settled(store, spec.data, folder, device, spec.images, spec.test_images)
    torch.manual_seed(spec.seed)
    model, tensors = _built(spec, data.classes)
    model.to(device)
    home = store.folder(spec)
    outcome = train(
        model,
        data,
        TrainingCourse(
            spec.epochs,
            spec.rate,
            spec.batch,
            momentum=spec.momentum,
            decay=spec.decay,
            seed=spec.seed,
            drops=spec.drops,
        ),
        _attached(spec, tensors),
        home / "state.pt",
        notify,
        tensors,
    )
    row = outcome.row
    row["data"] = {"name": data.name, "digest": data.digest, "note": data.note}
    row["distribution"] = _distribution(model, tensors)
    _save(model, home / MODEL)
    if outcome.claim is not None:
        outcome.claim.save(home / "claim.json", overwrite=True)
    return row


def _attached(spec: Training, tensors: tuple[str, ...]) -> Any:
    if spec.mark is None:
        return None
    from neuralmark.marking.options import AttachOptions
    from neuralmark.training.attach import attach as attach_to

    marking = spec.mark

    def attach(model: "torch.nn.Module", optimizer: Any) -> Any:
        return key_for(
            spec,
            lambda key: attach_to(
                model,
                optimizer,
                key,
                AttachOptions(list(tensors), marking.mode, marking.strength),
            ),
        )

    return attach


def _distribution(model: "torch.nn.Module", tensors: tuple[str, ...]) -> Row | None:
    """Counts of the marked tensors' weights between -4 and 4 deviations; LoRA products have none.

    None where there is nothing to count, or where the training diverged.
    """
    stored = [name for name in tensors if not name.endswith(LORA_DELTA)]
    if not stored:
        return None
    values = np.concatenate(
        [model.get_parameter(name).detach().double().reshape(-1).cpu().numpy() for name in stored]
    )
    if not np.isfinite(values).all():
        return None
    deviation = float(values.std()) or 1.0
    counts, _ = np.histogram(values / deviation, np.linspace(-4, 4, BINS + 1))
    return {"counts": counts.tolist(), "deviation": deviation, "mean": float(values.mean())}


def _save(model: "torch.nn.Module", path: Path) -> None:
    from safetensors.torch import save

    state = {name: value.cpu().contiguous() for name, value in model.state_dict().items()}
    with files.replacing(path, overwrite=True) as beside:
        beside.write_bytes(save(state))


def _imprint(store: Store, folder: Path | None, device: "torch.device", spec: ImprintSpec) -> Row:
    """Write the mark into the clean model, its strength chosen for the movement."""
    from neuralmark.lab.execution.training import accuracy

    base, out = spec.base, store.folder(spec) / MODEL
    clean = store.row(base)
    if clean is None:
        raise ParameterError(f"{base.label} is not finished")
    classes = int(clean["classes"])
    row = (_embedded if schemes.get(spec.mark.scheme).writes else _pressed)(store, spec, classes)
    data = _settled(store, base.data, folder, device, base.images, base.test_images)
    row["accuracy"] = accuracy(_loaded(base, classes, out).to(device), data)
    row["data"] = {"name": data.name, "digest": data.digest, "note": data.note}
    return {**row, "classes": classes}


def _embedded(store: Store, spec: ImprintSpec, classes: int) -> Row:
    """By the smallest change that gives every bit the same margin: what `embed` does."""
    from neuralmark.marking.embedding import embed
    from neuralmark.marking.options import EmbedOptions

    home, source = store.folder(spec), store.folder(spec.base) / MODEL
    options = EmbedOptions(
        tensors=list(_tensors(spec.base)), budget=100 * spec.movement, anchor=spec.anchored
    )
    made = key_for(spec, lambda key: embed(source, key, home / MODEL, options, overwrite=True))
    assert made.claim is not None
    assert made.verdict is not None
    made.claim.save(home / "claim.json", overwrite=True)
    return {
        "rate": made.verdict.rate,
        "moved": made.change_relative,
        "largest": made.change_largest,
        "strength": made.strength,
    }


def _pressed(store: Store, spec: ImprintSpec, classes: int) -> Row:
    """By the embedding loss alone, where a scheme has no other way."""
    from neuralmark.lab.execution.pressing import press

    home, tensors = store.folder(spec), _tensors(spec.base)
    model = _loaded(spec.base, classes, store.folder(spec.base) / MODEL)
    made = key_for(spec, lambda key: press(model, key, tensors, spec.movement))
    _save(model, home / MODEL)
    made.claim.save(home / "claim.json", overwrite=True)
    return {"rate": made.rate, "moved": made.moved, "largest": made.largest}


def _tensors(spec: Training) -> tuple[str, ...]:
    return spec.tensors or zoo.architecture(spec.architecture, dict(spec.options)).marked


def victim_of(store: Store, spec: Victim) -> "torch.nn.Module":
    """The model that a training or an imprint left."""
    row = store.row(spec)
    if row is None:
        raise ParameterError(f"{spec.label} is not finished")
    base = spec.base if isinstance(spec, ImprintSpec) else spec
    return _loaded(base, int(row["classes"]), store.folder(spec) / MODEL)


def _loaded(spec: Training, classes: int, path: Path) -> "torch.nn.Module":
    """The network of a training with the weights of a file."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ResultsError(
            f"{path} cannot be read ({error}): remove its folder and run again"
        ) from None
    torch.manual_seed(spec.seed)
    model, _ = _built(spec, classes)
    model.load_state_dict(state)
    return model.eval()


def _assault(
    store: Store, folder: Path | None, device: "torch.device", spec: Assault, notify: Notify
) -> Row:
    start = time.perf_counter()
    attack = attacks.get(spec.attack)(**dict(spec.settings))
    victim = spec.victim
    model = victim_of(store, victim).to(device)
    base = victim.base if isinstance(victim, ImprintSpec) else victim
    images = spec.images if spec.images is not None else base.images
    name, tests = spec.data or victim.data, base.test_images
    source = _settled(store, name, folder, device, images, tests)
    home = store.folder(victim)
    claim = None if victim.mark is None else Claim.load(home / "claim.json")
    key = None if claim is None else key_for(victim, partial(fitting, claim.placement))
    result = attacks.launch(
        attack,
        model,
        key,
        options=attacks.LaunchOptions(
            tensors=list(spec.tensors) or None,
            seed=spec.seed,
            demand=False,
            keep=store.folder(spec) / "state.pt",
            anchor=_anchor(home, victim),
        ),
        claim=claim,
        data=None if attack.kind == "key" else source.as_data(),
        progress=lambda what, done, total: notify(done, total),
    )
    told = result.to_dict()
    return {
        "accuracy": result.accuracy_after,
        "rate": None if result.after is None else result.after.rate,
        "matched": None if result.after is None else result.after.matched,
        "status": None if result.after is None else result.after.status,
        "survived": result.survived,
        "unreadable": result.unreadable,
        "aligned": told["aligned"],
        "note": result.note,
        "change": told["change"],
        "figures": told["figures"],
        "steps": result.steps,
        "queries": result.queries,
        "attack_seconds": result.seconds,
        "seconds": result.earlier + time.perf_counter() - start,
        "data": {"name": source.name, "digest": source.digest, "note": source.note},
    }


def _anchor(home: Path, victim: Victim) -> Path | None:
    """The anchor beside the victim's model, if its mark is bound to one."""
    bound = isinstance(victim, ImprintSpec) and victim.anchored
    return home / f"{MODEL}.anchor" if bound else None
