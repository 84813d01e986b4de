"""A checkpoint that lies in memory: read like a file, so that everything that reads files can."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints.contract import Checkpoint, StoredTensor, TensorInfo
from neuralmark.checkpoints.readers.dtypes import Raw
from neuralmark.storage.places import Place


class MemoryCheckpoint(Checkpoint):
    """float32 arrays by stored name; cannot be written."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """The arrays are kept, not copied."""
        nowhere = Path()
        self._arrays = arrays
        super().__init__(
            nowhere,
            "memory",
            {
                name: StoredTensor(TensorInfo(name, "F32", array.shape), nowhere, 0)
                for name, array in arrays.items()
            },
        )

    def files(self) -> list[Place]:
        """There are none."""
        return []

    def tied(self) -> set[str]:
        """Every array has its own bytes."""
        return set()

    def read(self, name: str) -> Iterator[Raw]:
        """The whole tensor in one piece."""
        raw = np.ascontiguousarray(self._arrays[name], "<f4").reshape(-1).view(np.uint8)
        raw.flags.writeable = False  # whoever marks it makes a copy
        yield raw

    def read_run(self, name: str, start: int, stop: int) -> Raw:
        """A part of the array."""
        flat = np.ascontiguousarray(self._arrays[name], "<f4").reshape(-1)
        return flat[start:stop].view(np.uint8)
