"""Keeping how far a training is, so that a killed one goes on where it stopped.

A file that was damaged, or kept by another training, is as good as none: the training begins again
and ends with the same numbers.
"""

import hashlib
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralmark.storage import files

if TYPE_CHECKING:
    import torch

State = dict[str, Any]
"""Tensors and plain values, nested in lists and dictionaries."""


def write(path: Path, state: State) -> None:
    """Write the state and its digest under another name, then rename."""
    import torch

    content = io.BytesIO()  # torch.save hides why a disk refused
    torch.save({**state, "digest": digest(state)}, content)
    beside = files.beside(path, "nmtmp")
    with files.writing(path):
        try:
            beside.write_bytes(content.getbuffer())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def read(path: Path) -> State | None:
    """What `write` left; None where there is nothing, or anything else."""
    import torch

    try:
        state: State = torch.load(path, map_location="cpu", weights_only=True)
        sound = state.pop("digest") == digest(state)
    except Exception:  # torch names no errors of its own for what it cannot read
        return None
    return state if sound else None


def digest(thing: Any) -> str:
    """SHA-256 of tensors and plain values, nested in any way."""
    hasher = hashlib.sha256()
    _feed(hasher, thing)
    return hasher.hexdigest()


def _feed(hasher: Any, thing: Any) -> None:
    import torch

    if isinstance(thing, torch.Tensor):
        hasher.update(f"{thing.dtype} {tuple(thing.shape)};".encode())
        plain = thing.detach().cpu().contiguous().reshape(-1)
        hasher.update(plain.view(torch.uint8).numpy())
    elif isinstance(thing, dict):
        _feed(hasher, [part for pair in thing.items() for part in pair])
    elif isinstance(thing, list | tuple):
        hasher.update(f"{len(thing)} parts;".encode())
        for part in thing:
            _feed(hasher, part)
    else:
        hasher.update(f"{thing!r};".encode())


class Bookmark:
    """Where an attack keeps its progress; launched again, it goes on from there."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self.earlier = 0.0
        """Seconds that the parts before an interruption took."""
        self._path = path
        self._origin = ""
        self._began = time.perf_counter()

    def open(self, origin: str) -> State | None:
        """What a training of the same origin kept here; None: it begins at its beginning."""
        self._origin, self._began = origin, time.perf_counter()
        kept = read(self._path)
        if kept is None or kept.get("origin") != origin:
            return None
        self.earlier = float(kept["seconds"])
        state: State = kept["state"]
        return state

    def put(self, state: State) -> None:
        """Keep this in the place of what was kept before."""
        seconds = self.earlier + time.perf_counter() - self._began
        write(self._path, {"origin": self._origin, "seconds": seconds, "state": state})


@dataclass(frozen=True, eq=False)
class Stage:
    """All that the steps of a training change."""

    model: "torch.nn.Module"
    optimizer: "torch.optim.Optimizer"
    marks: Sequence[Any]
    rng: np.random.Generator

    def origin(self, *given: Any) -> str:
        """What decides how it goes on from here: a digest of this stage and what is given."""
        import torch

        trained = [(str(each.device), each.requires_grad) for each in self.model.parameters()]
        return digest([torch.__version__, str(self.model), trained, self.state(), *given])

    def state(self) -> State:
        """To be kept."""
        import torch

        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "marks": [mark.state_dict() for mark in self.marks],
            "numpy": self.rng.bit_generator.state,
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        }

    def restore(self, state: State) -> None:
        """Go back to a kept state; the model comes last, for marks may write their weights."""
        import torch

        for mark, kept in zip(self.marks, state["marks"], strict=True):
            mark.load_state_dict(kept)
        self.optimizer.load_state_dict(state["optimizer"])
        self.model.load_state_dict(state["model"])
        self.rng.bit_generator.state = state["numpy"]
        torch.set_rng_state(state["torch"])
        torch.cuda.set_rng_state_all(state["cuda"])
