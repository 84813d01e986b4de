"""A model, its owner's key, and copies of it for buyers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from neuralmark import CopyOptions, CopyRegister, Key, Parameters, issue_copies
from tests.support.models import gaussian

Weights = dict[str, npt.NDArray[np.float32]]

LABELS = ("Acme Ltd.", "Bolt GmbH", "Müller & Söhne", "Doe, J.")


def chain_model(path: Path, seed: int = 0) -> Path:
    """Three layers in a row, as a file; 196,608 weights."""
    layers: Weights = {f"{i}.weight": gaussian(256, 256, seed=seed + i) for i in (0, 2, 4)}
    layers |= {f"{i}.bias": gaussian(256, seed=seed + i + 10) for i in (0, 2, 4)}
    save_file(layers, path, metadata={"format": "pt"})
    return path


def owners_key(number: int = 3) -> Key:
    """A key that is always the same."""
    return Key(Parameters(), b"owner=me", salt=bytes(32), secret=bytes([number]) * 32)


@dataclass(frozen=True)
class Sold:
    """Copies that were made."""

    model: Path
    key: Key
    folder: Path
    register: CopyRegister

    def path(self, buyer: str) -> Path:
        """The copy of a buyer."""
        issued = self.register.of(buyer)
        assert issued is not None
        return self.folder / issued.path

    def weights(self, buyer: str) -> Weights:
        """What is in it."""
        return load_file(self.path(buyer))

    @property
    def claim(self) -> Path:
        """The claim of the owner's copy."""
        return self.folder / f"{self.register.base}.claim.json"


def sold(folder: Path, labels: Sequence[str] = LABELS, options: CopyOptions | None = None) -> Sold:
    """A chain of layers, sold to these buyers."""
    model, key = chain_model(folder / "model.safetensors"), owners_key()
    register, _ = issue_copies(model, key, labels, folder / "copies", options)
    return Sold(model, key, folder / "copies", register)
