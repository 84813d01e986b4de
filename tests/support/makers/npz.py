"""What numpy.savez writes."""

from pathlib import Path

import numpy as np

from tests.support.makers import Arrays

WRITES = True


def make(arrays: Arrays, where: Path) -> Path:
    np.savez(where / "model.npz", allow_pickle=False, **arrays)
    return where / "model.npz"


def victim(path: Path) -> Path:
    return path
