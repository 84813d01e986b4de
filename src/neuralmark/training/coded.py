"""A live model made of a checkpoint and the code of its network.

The file is read without running anything of it. The code is run, with all that it may do: it should
be the reader's own. Code that came with a suspect is run only to probe it (`probing`), by a judge
who has read it, on a machine that can be thrown away.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neuralmark.anchors.locating.suspect import CheckpointWeights
from neuralmark.checkpoints import Checkpoint, TensorInfo, open_checkpoint
from neuralmark.core.foreign import guarded
from neuralmark.core.names import canonical_name
from neuralmark.errors import ModelCodeError, NeuralMarkError
from neuralmark.marking.beside import FROM_FILE
from neuralmark.storage.places import Place

_SHOWN = 3
_OTHERS = {
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"},
    **{"C64": "<c8", "C128": "<c16"},
}
"""What numpy calls the types of stored tensors that are no real numbers."""


def built_model(code: str, checkpoint: str | Place, *, live_only: bool = False) -> torch.nn.Module:
    """Build a network with code and load a checkpoint's weights into it.

    Args:
        code: `FILE.py:NAME` or `package.module:NAME`; what has the name is called without arguments
            and gives the network.
        checkpoint: The file or folder whose weights it gets.
        live_only: Whether the mark that is looked for is read from live models only.

    Returns:
        The network, in evaluation.

    Raises:
        ModelCodeError: The code cannot be run, gives no network, or one of other weights.

    Examples:
        >>> built_model("nowhere.py:make", "model.safetensors")
        Traceback (most recent call last):
        ...
        neuralmark.errors.ModelCodeError: nowhere.py: is not there
    """
    make = _found(code)
    with _running(code, "does not make a network without arguments"):
        model = make()
    if not isinstance(model, torch.nn.Module):
        raise ModelCodeError(f"{code}: gives a {type(model).__name__}, not a torch.nn.Module")
    with _running(code, "makes a network that cannot be loaded"):
        found = model.eval().state_dict()
    tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
    state = {name: value for name, value in tensors.items() if value.ndim}
    if any(value.is_meta for value in state.values()):
        raise ModelCodeError(
            f"{code}: makes a network on the meta device, where tensors have no values: make it on"
            " the CPU"
        )
    misfit = _load(state, open_checkpoint(checkpoint))
    if misfit:
        hint = "" if live_only else "; to look for a mark in weights, no code is needed"
        raise ModelCodeError(
            f"{checkpoint}: {misfit}, which the network of {code} has: give the code of this very"
            f" network{hint}"
        )
    setattr(model, FROM_FILE, str(checkpoint))  # so that verdicts name it, and its digest
    return model


def _running(code: str, what: str) -> AbstractContextManager[None]:
    """Around what runs the code: whatever it raises is its own fault."""
    return guarded(code, lambda why: ModelCodeError(f"{code}: {what} ({why})"))


def _found(code: str) -> Callable[[], Any]:
    where, _, name = code.rpartition(":")
    if not where or not name.isidentifier():
        raise ModelCodeError(
            f"{code!r}: give FILE.py:NAME or package.module:NAME, where NAME is the class of the"
            " network or a function that makes it"
        )
    found = getattr(_module(where), name, None)
    if not callable(found):
        raise ModelCodeError(f"{where}: has nothing named {name!r} that could be called")
    made: Callable[[], Any] = found
    return made


def _module(where: str) -> Any:
    if not where.endswith(".py"):
        with _running(where, "cannot be imported"):
            return importlib.import_module(where)
    path = Path(where)
    if not path.is_file():
        raise ModelCodeError(f"{where}: is not there")
    spec = importlib.util.spec_from_file_location(f"neuralmark_code_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look there
    try:
        with _running(where, "does not run"):
            spec.loader.exec_module(module)
    except NeuralMarkError:
        del sys.modules[spec.name]
        raise
    return module


def _load(state: dict[str, torch.Tensor], checkpoint: Checkpoint) -> str:
    """Put the weights in; every parameter must be there, in its shape: else, what is not.

    Integers and complex numbers, which networks of their own code may have for weights, are put in
    where they are there.
    """
    weights = CheckpointWeights(checkpoint)
    others = _others(checkpoint)
    shapes = {**{name: info.shape for name, info in others.items()}, **weights.shapes}
    stored = {canonical_name(name): name for name in shapes}
    every = {name: stored.get(canonical_name(name)) for name in state}
    wanted = {n: v for n, v in state.items() if every[n] or v.is_floating_point()}
    known = {name: every[name] for name in wanted}
    missing = [name for name, found in known.items() if found is None]
    other = [n for n, found in known.items() if found and shapes[found] != wanted[n].shape]
    if missing or other:
        names = missing or other
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        what = "lacks" if missing else "has in another shape"
        return f"{what} {', '.join(names[:_SHOWN])}{more}"
    with torch.no_grad():
        for name, value in wanted.items():
            found = known[name]
            assert found is not None
            if found in others:
                value.copy_(_plain(checkpoint, others[found]))
            else:
                value.copy_(torch.from_numpy(weights[found].copy()))
    return ""


def _others(checkpoint: Checkpoint) -> dict[str, TensorInfo]:
    """The tensors that hold integers or complex numbers, by stored name."""
    infos = {name: checkpoint.info(name) for name in checkpoint.names()}
    return {n: info for n, info in infos.items() if info.dtype in _OTHERS and not info.obstacle}


def _plain(checkpoint: Checkpoint, info: TensorInfo) -> torch.Tensor:
    raw = b"".join(piece.tobytes() for piece in checkpoint.read(info.name))
    return torch.from_numpy(np.frombuffer(raw, _OTHERS[info.dtype]).copy()).reshape(info.shape)
