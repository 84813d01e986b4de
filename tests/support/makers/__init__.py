"""Small files of every checkpoint format; one module each, named like the format.

make(arrays, where) -> Path     a file or folder with exactly these float32 arrays
WRITES                          whether a mark can be written into it
victim(path) -> Path            the file of it that a truncation cuts (by default: it itself)
"""

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.checkpoints.readers.dtypes import decode

Arrays = dict[str, npt.NDArray[np.float32]]


class Maker(Protocol):
    """What a module here has."""

    WRITES: bool

    def make(self, arrays: Arrays, where: Path) -> Path: ...

    def victim(self, path: Path) -> Path: ...


def maker(form: str) -> Maker:
    """The module of a format; a format without one fails its tests."""
    return cast(Maker, import_module(f"tests.support.makers.{form}"))


def arrays() -> Arrays:
    """Weights of a small model; one tensor is large enough for a mark."""
    rng = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {"layer.bias": (9,), "layer.weight": (200, 300)}
    shapes |= {"other.scalar": (), "other.weight": (40, 50)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def values(checkpoint: Checkpoint | Path, name: str) -> npt.NDArray[Any]:
    """One tensor of a checkpoint, or of the file of one."""
    opened = open_checkpoint(checkpoint) if isinstance(checkpoint, Path) else checkpoint
    info = opened.info(name)
    pieces = [decode(piece, info.dtype).copy() for piece in opened.read(name)]
    return np.concatenate(pieces or [np.empty(0)]).reshape(info.shape)


def content(checkpoint: Checkpoint) -> Arrays:
    """All tensors of a checkpoint."""
    return {name: values(checkpoint, name) for name in checkpoint.names()}
