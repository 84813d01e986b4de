"""Element types of GGUF files: their blocks, and how values are computed from them.

The `gguf` package knows how to dequantise; its formulas are used, piece by piece. The tests hold
the table against the package's.
"""

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints.readers.dtypes import ITEMSIZE, Raw, decode
from neuralmark.errors import MalformedError, MissingExtraError
from neuralmark.storage.places import Place, bytes_at, read_at

INSTALL = "pip install 'neuralmark[gguf]'"
AT_ONCE = 1 << 18
"""Elements that are dequantised at once."""
NEAR = 1 << 20
"""Rows are read with what lies between them while that is not more than so many bytes."""

Positions = npt.NDArray[np.int64]


class BlockType(NamedTuple):
    """A type of a tensor: elements in a block, and the bytes that it takes."""

    name: str
    block: int
    size: int

    @property
    def plain(self) -> bool:
        """Whether its elements are stored as themselves."""
        return self.name in ITEMSIZE


TYPES = {
    number: BlockType(*row)
    for number, row in {
        **{0: ("F32", 1, 4), 1: ("F16", 1, 2), 28: ("F64", 1, 8), 30: ("BF16", 1, 2)},
        **{24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8)},
        **{2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24)},
        **{8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 41: ("Q1_0", 128, 18)},
        **{10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144)},
        **{13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292)},
        **{16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 22: ("IQ2_S", 256, 82)},
        **{18: ("IQ3_XXS", 256, 98), 21: ("IQ3_S", 256, 110), 19: ("IQ1_S", 256, 50)},
        **{29: ("IQ1_M", 256, 56), 20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136)},
        **{34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66)},
        **{39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36)},
    }.items()
}
"""Every type that has a number today, by its number."""

UNDECODED = {"Q8_1", "Q8_K", "Q1_0"}
"""Types that the package cannot dequantise: the first two are made while computing only."""


@cache
def quants() -> ModuleType:
    """The package's formulas."""
    try:
        from gguf import quants as found
    except ImportError:
        raise MissingExtraError(
            f"quantised GGUF tensors need the gguf package: {INSTALL}"
        ) from None
    return found


def dequantised(blocks: Raw, kind: BlockType) -> npt.NDArray[np.float32]:
    """The values of whole blocks."""
    from gguf import GGMLQuantizationType

    formulas = quants()
    with np.errstate(all="ignore"):
        values = formulas.dequantize(blocks.reshape(1, -1), GGMLQuantizationType[kind.name])
    flat: npt.NDArray[np.float32] = np.asarray(values, np.float32).reshape(-1)
    return flat


@dataclass(frozen=True)
class BlockDecoder:
    """Dequantises a tensor in pieces of whole blocks; its rows may lie in another order."""

    file: Place
    offset: int
    kind: BlockType
    size: int
    """Elements of the tensor."""
    width: int
    """Elements of a row: a whole number of blocks."""
    half: int = 0
    """Half of the rows of a head, where each head's rows lie in pairs (see `order`); else 0."""
    factor: int = 0
    """Where the number lies by which all of it is multiplied (NVFP4); 0: there is none."""

    @property
    def unit(self) -> int:
        """A block."""
        return self.kind.block

    @property
    def nbytes(self) -> int:
        """The bytes of all its blocks."""
        return self.size // self.kind.block * self.kind.size

    def values(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The elements start … stop-1."""
        quants()  # says what is missing before anything is read
        parts = []
        block = self.kind.block
        step = max(1, AT_ONCE // block)
        for low in range(start // block, -(-stop // block), step):
            high = min(low + step, -(-stop // block))
            values = dequantised(self._blocks(low, high), self.kind)
            first = max(0, start - low * block)
            parts.append(values[first : stop - low * block])
        found = np.concatenate(parts) if parts else np.empty(0, np.float32)
        return found if not self.factor else self._scaled(found)

    def _scaled(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The values times the number that belongs to the whole tensor."""
        with self.file.open("rb", buffering=0) as file:
            raw = bytes_at(file, 4, self.factor)
        if len(raw) < 4:
            raise MalformedError(f"{self.file}: ends inside the scale of a tensor")
        with np.errstate(all="ignore"):
            return np.asarray(values * np.frombuffer(raw, "<f4")[0], np.float32)

    def _blocks(self, low: int, high: int) -> Raw:
        """The bytes of the blocks low … high-1, in the order of the tensor's rows."""
        if not self.half:
            return self._bytes(low, high - low)
        across = self.width // self.kind.block
        first, last = low // across, -(-high // across)
        places = order(np.arange(first, last), self.half)
        at = int(places.min())
        span = int(places.max()) + 1 - at
        wanted = high - low
        if span * across * self.kind.size <= 4 * wanted * self.kind.size + NEAR:
            rows = self._bytes(at * across, span * across).reshape(span, -1)[places - at]
            whole = rows.reshape(-1, self.kind.size)
            return whole[low - first * across : high - first * across].reshape(-1)
        parts = []
        for row, place in zip(range(first, last), places.tolist(), strict=True):
            begin, end = max(low, row * across), min(high, (row + 1) * across)
            parts.append(self._bytes(place * across + begin - row * across, end - begin))
        return np.concatenate(parts)

    def _bytes(self, first: int, count: int) -> Raw:
        """The bytes of so many blocks as they lie in the file."""
        raw = np.empty(count * self.kind.size, np.uint8)
        with self.file.open("rb", buffering=0) as file:
            if read_at(file, raw.data, self.offset + first * self.kind.size) < len(raw):
                raise MalformedError(f"{self.file}: ends inside a quantised tensor")
        return raw


def order(rows: Positions, half: int) -> Positions:
    """Where rows of query and key lie that the converter put in pairs, head by head.

    Row s·half + j of a head (s is 0 or 1) lies at 2j + s: llama.cpp turns neighbours, where
    transformers turns the two halves of a head.
    """
    head, inside = np.divmod(rows, 2 * half)
    side, pair = np.divmod(inside, half)
    return np.asarray(head * 2 * half + 2 * pair + side)


@dataclass(frozen=True)
class ShiftedDecoder:
    """A norm's weights, to which the converter has added 1."""

    file: Place
    offset: int
    dtype: str
    size: int
    unit: int = 1

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return self.size * ITEMSIZE[self.dtype]

    def values(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The elements start … stop-1, less 1."""
        itemsize = ITEMSIZE[self.dtype]
        raw = np.empty((stop - start) * itemsize, np.uint8)
        with self.file.open("rb", buffering=0) as file:
            if read_at(file, raw.data, self.offset + start * itemsize) < len(raw):
                raise MalformedError(f"{self.file}: ends inside a norm")
        with np.errstate(all="ignore"):
            return np.asarray(decode(raw, self.dtype) - 1, np.float32)
