"""What an anchor is made of: the tensors of a checkpoint, or arrays by name, in pieces."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints import Checkpoint
from neuralmark.checkpoints.readers.dtypes import FLOATS, decode
from neuralmark.core.names import canonical_name

Piece = npt.NDArray[np.floating]

_PIECE = 1 << 19


@dataclass(frozen=True)
class OriginalTensor:
    """A tensor of the original model."""

    name: str
    """Canonical, or as stored where two would have one name."""
    stored: str
    shape: tuple[int, ...]
    readable: bool
    """Whether it holds floating-point weights that can be read as they are stored."""


class Original(Protocol):
    """A model before it is marked."""

    def tensors(self) -> list[OriginalTensor]:
        """All its tensors."""

    def pieces(self, stored: str) -> Iterator[Piece]:
        """The values of a tensor in order, a few megabytes at a time."""

    def shared(self, one: str, other: str) -> bool:
        """Whether two tensors of one shape are the same by where they lie (tied weights)."""

    def equal(self, one: str, other: str) -> bool:
        """Whether two tensors of one shape hold the same values."""


class OriginalCheckpoint:
    """The tensors of a file or a folder."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Nothing is read yet."""
        self._checkpoint = checkpoint

    def tensors(self) -> list[OriginalTensor]:
        """All its tensors, in the order of the file."""
        infos = [self._checkpoint.info(name) for name in self._checkpoint.names()]
        names = _canonical([info.name for info in infos])
        return [
            OriginalTensor(
                names[info.name],
                info.name,
                info.shape,
                info.obstacle is None and info.dtype in FLOATS and info.size > 0,
            )
            for info in infos
        ]

    def pieces(self, stored: str) -> Iterator[Piece]:
        """Decoded pieces of what is stored."""
        dtype = self._checkpoint.info(stored).dtype
        return (decode(raw, dtype) for raw in self._checkpoint.read(stored))

    def shared(self, one: str, other: str) -> bool:
        """Whether they have the same bytes of the same file."""
        spans = [self._checkpoint.span(name) for name in (one, other)]
        places = [(span.file, span.offset, span.strides, span.info.dtype) for span in spans]
        return places[0] == places[1]

    def equal(self, one: str, other: str) -> bool:
        """By their values, up to the first that differ."""
        pairs = zip_longest(self.pieces(one), self.pieces(other))
        return all(a is not None and b is not None and np.array_equal(a, b) for a, b in pairs)


class OriginalArrays:
    """Arrays by name: a state dict, or what a live module holds."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        """Arrays of numpy, or what it takes for one; nothing is copied."""
        self._arrays = arrays

    def tensors(self) -> list[OriginalTensor]:
        """All of them, in order."""
        names = _canonical(self._arrays)
        return [
            OriginalTensor(name, stored, tuple(self._arrays[stored].shape), self._readable(stored))
            for stored, name in names.items()
        ]

    def _readable(self, stored: str) -> bool:
        array = np.asarray(self._arrays[stored])
        return array.dtype.kind == "f" and array.size > 0

    def pieces(self, stored: str) -> Iterator[Piece]:
        """Stretches of the flattened array."""
        flat = np.ascontiguousarray(self._arrays[stored]).reshape(-1)
        return (flat[at : at + _PIECE] for at in range(0, flat.size, _PIECE))

    def shared(self, one: str, other: str) -> bool:
        """Whether they have the same memory."""
        a, b = (np.asarray(self._arrays[name]) for name in (one, other))
        places = [(x.__array_interface__["data"], x.strides, x.dtype) for x in (a, b)]
        return places[0] == places[1]

    def equal(self, one: str, other: str) -> bool:
        """By their values."""
        return bool(np.array_equal(self._arrays[one], self._arrays[other]))


def _canonical(stored: Iterable[str]) -> dict[str, str]:
    """Canonical names by stored ones; where two would have one name, both keep what they have."""
    every = list(stored)
    counts = Counter(map(canonical_name, every))
    return {
        name: plain if counts[plain] == 1 else name
        for name, plain in ((name, canonical_name(name)) for name in every)
    }
