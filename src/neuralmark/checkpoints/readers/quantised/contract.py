"""The contract of a quantisation: which tensors of a checkpoint are its, and what they hold.

A module (one file beside this one; its name is the quantisation's) has one function:

    layers(table) -> Iterator[Layer]     every tensor of the model that it can put together

It takes only what is its by names, types and shapes. What then does not fit together is a
`MalformedError`; what it does not know is left alone, and keeps its obstacle.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from neuralmark.checkpoints.contract import Checkpoint, Decoder
from neuralmark.checkpoints.readers.blocks import Kept, Part
from neuralmark.errors import MalformedError
from neuralmark.storage import places
from neuralmark.storage.places import Place

MAX_CONFIG = 4 << 20
CONFIGS = ("config.json", "quantize_config.json")


@dataclass(frozen=True)
class Layer:
    """A tensor of the model, computed from stored ones."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    """The stored tensors that it takes the place of; the first holds the weights."""
    decoder: Decoder
    stored: str
    """Name of the quantisation, as users know it."""
    aside: tuple[str, ...] = ()
    """Further stored names that say nothing else: scales of activations, formats."""


class QuantisedTable:
    """The stored tensors of a checkpoint, and what its configuration says of them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Only names are looked at."""
        self.checkpoint = checkpoint
        self._kept = Kept()
        self._names = set(checkpoint.names())

    def __contains__(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._names

    def ending(self, end: str) -> Iterator[tuple[str, Part]]:
        """All tensors whose names end so, with what stands before the ending."""
        for name in self.checkpoint.names():
            if name.endswith(end):
                part = self.part(name)
                if part is not None:
                    yield name.removesuffix(end), part

    def part(self, name: str) -> Part | None:
        """The tensor of this name, if it is there and can be read in runs."""
        if name not in self._names:
            return None
        part = Part(self.checkpoint, name, self._kept)
        return part if part.readable and part.size else None

    def among(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the names that are there."""
        return tuple(name for name in names if name in self._names)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """What config.json beside the weights says of the quantisation; nothing without one."""
        path = self.checkpoint.path
        folder = path if path.is_dir() else path.parent
        for name in CONFIGS:
            if (folder / name).is_file():
                found = _config(folder / name)
                nested = found.get("quantization_config", found.get("compression_config"))
                if name != CONFIGS[0]:
                    nested = found
                if isinstance(nested, dict):
                    return nested
        return {}


def _config(path: Place) -> dict[str, Any]:
    data = places.read_small(path, MAX_CONFIG)
    if len(data) > MAX_CONFIG:
        raise MalformedError(
            f"{path}: is larger than a configuration may be ({MAX_CONFIG:,} bytes)"
        )
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise MalformedError(f"{path}: is not valid JSON ({why})") from None
    if not isinstance(found, dict):
        raise MalformedError(f"{path}: is not a configuration")
    return found


def nbytes_of(part: Part) -> int:
    """How many bytes hold a stored tensor."""
    return part.checkpoint.info(part.name).nbytes


def require_shape(part: Part, *shapes: tuple[int, ...]) -> None:
    """Refuse a tensor of none of these shapes."""
    if part.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise part.bad(f"has the shape {list(part.shape)[:8]} where its layer needs {wanted}")


def sound_shape(part: Part, shape: Any, most: int) -> tuple[int, ...]:
    """A shape that a file tells, of at most so many elements."""
    counts = isinstance(shape, list | tuple) and 1 <= len(shape) <= 8
    if not counts or not all(type(n) is int and 0 < n < 1 << 40 for n in shape):
        raise part.bad("tells of no shape")
    if math.prod(shape) > most:
        raise part.bad(f"tells of {math.prod(shape):,} weights, but {most:,} at most are stored")
    return tuple(shape)


def require_order(part: Part, length: int) -> None:
    """Refuse a list of groups that is not one whole number for each input."""
    require_shape(part, (length,))
    if part.dtype not in ("I32", "I64"):
        raise part.bad(f"has the dtype {part.dtype} instead of an integer one")
