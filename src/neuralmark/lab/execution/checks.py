"""What can be known to fail before a run is begun."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from neuralmark import attacks, zoo
from neuralmark.errors import MissingExtraError, ParameterError
from neuralmark.lab.execution import datasets
from neuralmark.lab.execution.devices import CUDA, Device, device_for
from neuralmark.lab.plan.spec import Assault, Spec, Training, TuningSpec
from neuralmark.zoo.architectures import InputKind


def check(specs: Iterable[Spec], data: Path | None, device: Device) -> None:
    """Raise for names and settings that are not known, for a folder or a device that is not there.

    Whether the data are whole shows when they are read.
    """
    specs = list(specs)
    for spec in specs:
        if isinstance(spec, Training):
            _require_kind(spec.architecture, dict(spec.options), "image")
        elif isinstance(spec, TuningSpec):
            _require_kind(spec.architecture, {}, "text")
        elif isinstance(spec, Assault):
            attacks.get(spec.attack)(**dict(spec.settings))
    needed = datasets.needed(specs)
    stored = [name for name in needed if name == datasets.E2E or zoo.source(name).folders]
    if stored and data is None:
        raise ParameterError(f"{', '.join(stored)}: read from a folder: name it (data=DIR)")
    if data is not None and not data.is_dir():
        raise ParameterError(f"the data folder {data} is not a folder")
    if find_spec("torch") is None:
        raise MissingExtraError("runs need torch: pip install 'neuralmark[lab]'")
    if device == CUDA:
        device_for("0", device)


def _require_kind(name: str, options: dict[str, Any], kind: InputKind) -> None:
    found = zoo.architecture(name, options).kind
    if found != kind:
        raise ParameterError(f"{name} is for {found}s: it cannot be trained on {kind}s")
