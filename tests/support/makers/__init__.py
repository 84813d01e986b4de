"""Small files of every checkpoint format; one module each, named like the format.

make(arrays, where) -> Path     a file or folder with exactly these float32 arrays
WRITES                          whether a mark can be written into it
victim(path) -> Path            the file of it that a truncation cuts (by default: it itself)
"""

from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[np.float32]]


class Maker(Protocol):
    """What a module here has."""

    WRITES: bool

    def make(self, arrays: Arrays, where: Path) -> Path: ...

    def victim(self, path: Path) -> Path: ...


def maker(form: str) -> Maker:
    """The module of a format; a format without one fails its tests."""
    return cast(Maker, import_module(f"tests.support.makers.{form}"))
