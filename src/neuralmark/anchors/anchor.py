"""What an anchor is: coarse copies of tensors by name, and everything that steers the aligner."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np

from neuralmark.core.key import Placement
from neuralmark.errors import UnknownFamilyError
from neuralmark.structures.attention import UNKNOWN
from neuralmark.structures.structure import Array, Indices, Structure

ALIGNER_VERSION = 1
"""Part of every anchor: another aligner would put the same suspect into another order."""

Role = Literal["marked", "partner"]
"""Whether a tensor carries the mark, or only helps to align those that do."""
MARKED: Final = "marked"
PARTNER: Final = "partner"
ROLES: tuple[Role, ...] = get_args(Role)

MAX_SPACES = 1 << 22
"""Heads times tensors: more spaces inside heads than this are not mapped."""

KEPT_BYTES = 32 << 20
"""Tensors that were decoded are kept, up to this much, for the next who asks."""


@dataclass(frozen=True)
class AnchorEntry:
    """One tensor of an anchor."""

    name: str
    """Canonical."""
    shape: tuple[int, ...]
    """Of the original tensor."""
    role: Role = MARKED
    rows: int | None = None
    """How many rows are kept, evenly spaced (of embeddings); None: all of them."""
    wide: bool = False
    """Whether its scales (a vector's values) are float32: float16 has not the range."""
    sha512: str = ""
    """Of its payload, in hexadecimal digits."""

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """The shape of what is kept."""
        return self.shape if self.rows is None else (self.rows, *self.shape[1:])

    @property
    def kept_rows(self) -> Indices:
        """Which rows of the original are kept, in order."""
        rows = self.shape[0] if self.rows is None else self.rows
        return np.arange(rows) * self.shape[0] // max(rows, 1)


@dataclass(frozen=True)
class Skeleton:
    """All that is known of the original model beside its weights."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    """Canonical names and shapes of all its floating-point tensors, sorted."""
    heads: int = 0
    """Attention heads; 0 where they are not known."""
    tied: tuple[tuple[str, str], ...] = ()
    """Tensors that are one (canonical names)."""
    aligner: int = ALIGNER_VERSION
    """Version of the aligner that the anchor was made for."""

    @cached_property
    def structure(self) -> Structure | None:
        """The map of its symmetries; None where the names are of no known family."""
        from neuralmark.structures import structure_from_shapes

        try:
            return structure_from_shapes(dict(self.shapes), self.heads, self.tied)
        except UnknownFamilyError:
            return None

    @property
    def heads_fit(self) -> bool:
        """Whether the model may have so many heads, as far as its names and shapes tell."""
        if self.heads * len(self.shapes) > MAX_SPACES:
            return False
        return not self.heads or self.structure is None or UNKNOWN not in self.structure.notes


Decode = Callable[[AnchorEntry, Indices | None], Array]
"""Gives the values of an entry: these rows of it, or (None) all."""


class Anchor(Mapping[str, Array]):
    """Coarse float32 values by canonical name, decoded when they are asked for."""

    def __init__(
        self,
        entries: tuple[AnchorEntry, ...],
        skeleton: Skeleton,
        digest: bytes,
        decode: Decode,
        bits: int = 4,
    ) -> None:
        """`decode` gives the values of one entry, or of some of its rows."""
        self.entries, self.skeleton, self.digest, self.bits = entries, skeleton, digest, bits
        self._decode = decode
        self._by_name = {entry.name: entry for entry in entries}
        self._kept: OrderedDict[str, Array] = OrderedDict()

    def __getitem__(self, name: str) -> Array:
        """The coarse values of a tensor, in the shape that is kept; not to be written to."""
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name]
        values = self._decode(self._by_name[name], None)
        values.flags.writeable = False
        self._kept[name] = values
        while sum(each.nbytes for each in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)
        return values

    def part(self, name: str, index: Sequence[Indices | None]) -> Array:
        """These places along each axis (None: all), of few rows much quicker than the whole."""
        rows = index[0] if index else None
        if name in self._kept:
            values = self._kept[name] if rows is None else self._kept[name][rows]
        else:
            values = self._decode(self._by_name[name], rows)
        for axis, places in enumerate(index[1:], 1):
            values = values if places is None else np.take(values, places, axis=axis)
        return np.ascontiguousarray(values)

    def __iter__(self) -> Iterator[str]:
        """Names, in the anchor's order."""
        return iter(self._by_name)

    def __len__(self) -> int:
        """How many tensors it has."""
        return len(self._by_name)

    def entry(self, name: str) -> AnchorEntry:
        """What is known of one tensor."""
        return self._by_name[name]

    @property
    def placement(self) -> Placement:
        """The marked tensors in order."""
        return tuple((e.name, e.shape) for e in self.entries if e.role == MARKED)
