"""What is attacked: a checkpoint, a table of weights, or a live module, all seen alike."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralmark.anchors.heads import heads_of
from neuralmark.attacks.contract import Array, Data, Outcome, Weights
from neuralmark.checkpoints import open_checkpoint
from neuralmark.checkpoints.readers.dtypes import FLOATS, decode, rounded
from neuralmark.checkpoints.readers.memory import MemoryCheckpoint
from neuralmark.core.foreign import guarded
from neuralmark.core.names import canonical_name
from neuralmark.errors import (
    AttackError,
    DataMismatchError,
    NonFiniteError,
    ParameterError,
    UnknownTensorError,
)
from neuralmark.marking.beside import FROM_FILE
from neuralmark.marking.placement import suggestion
from neuralmark.marking.reading import FileSuspect, Suspect

if TYPE_CHECKING:
    import torch

BATCH = 256
_PIECE = 4096
"""Examples whose values are looked at at once."""
TOLERANCE = 1e-3
"""Outputs count as equal when they differ by less than this share of their scale."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A model under attack: its floating-point tensors, and the module where there is one."""

    label: str
    weights: Weights
    dtypes: Mapping[str, str] = field(default_factory=dict)
    module: "torch.nn.Module | None" = None
    heads: int = 0
    """Attention heads that the model's configuration tells of; 0: not known."""

    def select(self, names: Sequence[str] | None) -> tuple[str, ...]:
        """The tensors to attack: those named (stored or canonical names), or every matrix."""
        if not names:
            return tuple(name for name, value in self.weights.items() if value.ndim >= 2)
        wanted = [names] if isinstance(names, str) else names
        return tuple(dict.fromkeys(self._stored_name(name) for name in wanted))

    def _stored_name(self, name: str) -> str:
        if name in self.weights:
            return name
        plain = canonical_name(str(name))
        found = [stored for stored in self.weights if canonical_name(stored) == plain]
        if len(found) > 1:
            raise UnknownTensorError(f"{name!r} may be any of {', '.join(found)}: name one of them")
        if not found:
            near = suggestion(str(name), self.weights)
            raise UnknownTensorError(f"there is no tensor {name!r}{near}")
        return found[0]

    def suspect(self) -> Suspect:
        """What verification reads."""
        if self.module is not None:
            from neuralmark.training.live import LiveSuspect

            return LiveSuspect(self.module)
        return FileSuspect(MemoryCheckpoint(self.weights), self.label)

    def after(self, outcome: Outcome) -> "Subject":
        """The subject as the attack left it; weights alone where no module holds them."""
        if outcome.model is not None:
            return subject_of(outcome.model)
        if outcome.weights is None:
            return self
        for name, value in outcome.weights.items():
            if not np.isfinite(value).all():
                require_finite(self.weights, [name], self.label)
                raise AttackError(f"the attack left NaN or infinity in {name!r}")
        changed = {name: self._stored(name, value) for name, value in outcome.weights.items()}
        weights = {**self.weights, **changed}
        for name in outcome.gone:
            del weights[name]
        former = {name: value.shape for name, value in self.weights.items()}
        fits = {name: value.shape for name, value in weights.items()} == former
        module = _loaded(self.module, changed) if fits and self.module is not None else None
        return replace(self, weights=weights, module=module)

    def _stored(self, name: str, value: Array) -> Array:
        """As the file's dtype can hold it."""
        dtype = self.dtypes.get(name, "F32")
        if dtype in ("F32", "F64"):
            return _frozen(np.asarray(value, np.float32))
        flat = rounded(value.reshape(-1).astype(np.float64), dtype)
        return _frozen(flat.astype(np.float32).reshape(value.shape))

    def distance(self, other: "Subject", names: Iterable[str]) -> float:
        """‖Δw‖/‖w‖ over the tensors of these names; infinite when most of them changed shape.

        A fresh classifier of another size is left out.
        """
        square = norm = 0.0
        kept = lost = 0
        for name in names:
            old, new = other.weights[name], self.weights.get(name)
            if new is None or new.shape != old.shape:
                lost += old.size
                continue
            kept += old.size
            if new is not old:
                square += float(np.square(new - old, dtype=np.float64).sum())
            norm += float(np.square(old, dtype=np.float64).sum())
        if lost > kept:
            return float("inf")
        return float(np.sqrt(square / norm)) if norm else 0.0

    def accuracy(self, data: Data | None) -> float | None:
        """Share of the test examples that the module gets right, where that can be asked."""
        if data is None or self.module is None:
            return None
        outputs = _outputs(self.module, data.test_inputs)
        if outputs.ndim != 2:
            return None
        return float((outputs.argmax(1) == data.test_labels).double().mean())


def subject_of(model: "str | Path | Weights | torch.nn.Module | Subject") -> Subject:
    """A path, a table of arrays or a live module as something to attack."""
    if isinstance(model, Subject):
        return model
    if isinstance(model, str | Path):
        return _from_file(Path(model), str(model))
    if isinstance(model, Mapping):
        return Subject("weights in memory", {n: _frozen(v) for n, v in model.items()})
    return _from_module(model)


def read_weights(model: "str | Path | Weights") -> Weights:
    """The floating-point tensors of a checkpoint, or the table itself."""
    return subject_of(model).weights


def require_finite(weights: Weights, names: Iterable[str], label: str) -> None:
    """Raise if one of these tensors holds NaN or infinity before anybody attacked it."""
    for name in names:
        if name in weights and not np.isfinite(weights[name]).all():
            raise NonFiniteError(
                f"{label}: {name!r} holds NaN or infinity already: give a sound model, or name the"
                " tensors to attack (tensors=[...])"
            )


@contextmanager
def taking(inputs: "torch.Tensor", data: Data | None = None) -> Iterator[None]:
    """Around a network that is run on inputs: whatever it raises becomes an error with a name.

    With the data, the loss is taken as well, in which its classes count.
    """

    def named(why: str) -> DataMismatchError:
        kind = str(inputs.dtype).removeprefix("torch.")
        classes = "" if data is None else f" with {data.classes} classes"
        return DataMismatchError(
            f"the data does not fit the model: inputs of shape {tuple(inputs.shape[1:])} and type"
            f" {kind}{classes} fail in it ({why})"
        )

    with guarded("the network's code", named):
        yield


def copied(module: "torch.nn.Module") -> "torch.nn.Module":
    """A copy to attack, no longer what a file holds; a network that cannot be copied is refused."""
    with guarded(
        "the network's code",
        lambda why: AttackError(
            f"the network cannot be copied ({why}), and attacks never touch what they are given"
        ),
    ):
        made = copy.deepcopy(module)
    vars(made).pop(FROM_FILE, None)
    return made


def check_data(data: Any, subject: Subject) -> None:
    """Raise unless the data is what attacks take, and the network (if there is one) takes it."""
    if data is None:
        return
    if not isinstance(data, Data):
        raise DataMismatchError(
            "data must be neuralmark.attacks.Data(inputs, labels, test_inputs, test_labels), four"
            f" torch tensors, not {type(data).__name__}"
        )
    for part in ("", "test_"):
        inputs, labels = getattr(data, f"{part}inputs"), getattr(data, f"{part}labels")
        _check_part(part, inputs, labels)
    for part in ("inputs", "test_inputs") if subject.module is not None else ():
        _outputs(subject.module, getattr(data, part)[:2])


def _check_part(part: str, inputs: Any, labels: Any) -> None:
    import torch

    for name, value in ((f"{part}inputs", inputs), (f"{part}labels", labels)):
        if not isinstance(value, torch.Tensor):
            kind = type(value).__name__
            raise DataMismatchError(f"{name} of the data must be a torch tensor, not {kind}")
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if labels.ndim != 1 or not whole:
        raise DataMismatchError(
            f"{part}labels of the data must be whole numbers in one dimension, one per example, not"
            f" {str(labels.dtype).removeprefix('torch.')} of shape {tuple(labels.shape)}"
        )
    count = len(inputs) if inputs.ndim else 0
    if count != len(labels):
        raise DataMismatchError(
            f"the data has {count} {part}inputs but {len(labels)} {part}labels: give one label for"
            " each example"
        )
    if not count:
        raise DataMismatchError(f"{part}inputs of the data are empty: give some examples")
    _check_finite(part, inputs)


def _check_finite(part: str, inputs: "torch.Tensor") -> None:
    import torch

    if inputs.layout != torch.strided or inputs.is_meta:
        return
    for start in range(0, len(inputs), _PIECE):
        finite = torch.isfinite(inputs[start : start + _PIECE])
        if not bool(finite.all()):
            first = start + int((~finite).nonzero()[0, 0])
            raise NonFiniteError(
                f"{part}inputs of the data hold NaN or infinity (the first in example {first}):"
                " give examples that hold numbers"
            )


def same_outputs(before: Subject, after: Subject, data: Data) -> None:
    """Raise unless both modules compute the same: for attacks that promise it."""
    if before.module is None or after.module is None:
        return
    old, new = (_outputs(each.module, data.test_inputs[:32]) for each in (before, after))
    scale = float(old.abs().max()) or 1.0
    apart = float((old - new).abs().max()) / scale
    if apart > TOLERANCE:
        raise AttackError(f"the attack was to keep the function, but outputs differ by {apart:.2g}")


def _from_file(path: Path, label: str) -> Subject:
    checkpoint = open_checkpoint(path)
    weights, dtypes = {}, {}
    for name in checkpoint.names():
        info = checkpoint.info(name)
        if info.dtype not in FLOATS or info.obstacle is not None:
            continue
        pieces = [decode(raw, info.dtype).astype(np.float32) for raw in checkpoint.read(name)]
        whole = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
        weights[name] = _frozen(whole.reshape(info.shape))
        dtypes[name] = info.dtype
    return Subject(label, weights, dtypes, heads=heads_of(checkpoint))


def _from_module(model: Any) -> Subject:
    import torch

    from neuralmark.training.live import DTYPES, require_values, state_of

    if not isinstance(model, torch.nn.Module):
        raise ParameterError(
            f"expected a path, a table of arrays or a torch module, not {type(model).__name__}"
        )
    state = {n: v for n, v in state_of(model).items() if v.dtype.is_floating_point}
    require_values(model)
    weights = {n: _frozen(v.detach().float().cpu().numpy().copy()) for n, v in state.items()}
    dtypes = {name: DTYPES.get(value.dtype, "F32") for name, value in state.items()}
    heads = getattr(getattr(model, "config", None), "num_attention_heads", 0)
    heads = heads if isinstance(heads, int) else 0
    label = getattr(model, FROM_FILE, None) or f"live {type(model).__name__}"
    return Subject(label, weights, dtypes, model, heads)


def _loaded(module: "torch.nn.Module", weights: Weights) -> "torch.nn.Module":
    import torch

    changed = copied(module)
    state = changed.state_dict()
    with torch.no_grad():
        for name, value in weights.items():
            state[name].copy_(torch.from_numpy(np.array(value)))
    return changed


def _outputs(module: Any, inputs: "torch.Tensor") -> "torch.Tensor":
    import torch

    was = module.training
    module.eval()
    try:
        with taking(inputs), torch.no_grad():
            parts = [module(inputs[i : i + BATCH]) for i in range(0, len(inputs), BATCH)]
            return torch.cat([getattr(part, "logits", part) for part in parts])
    finally:
        module.train(was)


def _frozen(array: Array) -> Array:
    """The array, read-only (a view: the caller's own stays as it is)."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
