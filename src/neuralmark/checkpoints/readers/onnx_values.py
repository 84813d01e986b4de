"""Numbers of ONNX tensors: in any of the fields that can hold them, packed, or quantised."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints.readers.dtypes import FLOATS, ITEMSIZE, decode
from neuralmark.checkpoints.readers.joined import product
from neuralmark.errors import MalformedError
from neuralmark.storage.places import Place, bytes_at

MAX_VARINTS = 16 << 20
DTYPES = {
    **{1: "F32", 2: "U8", 3: "I8", 4: "U16", 5: "I16", 6: "I32", 7: "I64", 9: "BOOL", 10: "F16"},
    **{11: "F64", 12: "U32", 13: "U64", 14: "C64", 15: "C128", 16: "BF16", 17: "F8_E4M3"},
    **{18: "F8_E4M3FNUZ", 19: "F8_E5M2", 20: "F8_E5M2FNUZ", 24: "F8_E8M0"},
}
"""Element types by their numbers in ONNX."""
NIBBLES = {21: "U4", 22: "I4"}
OTHERS = {8: "string", 23: "F4_E2M1", 25: "U2", 26: "I2"}
_INTEGERS = {
    **{"U8": "u1", "I8": "i1", "BOOL": "u1", "U16": "<u2", "I16": "<i2"},
    **{"U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8"},
}
Values = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Numbers:
    """Where a tensor's elements are, and how they are written."""

    file: Place
    offset: int
    length: int
    held: str
    """raw, F32, F64 or varint."""
    dtype: str
    """A name of `dtypes`, or U4, I4."""
    size: int

    @np.errstate(all="ignore")
    def values(self, start: int, stop: int) -> Values:
        """The elements start … stop-1."""
        if self.held == "varint":
            return self._varints()[start:stop]
        if self.dtype in ("U4", "I4"):
            first = start // 2
            raw = self._bytes(first, -(-stop // 2) - first)
            pairs = np.stack([raw & 15, raw >> 4], axis=1).reshape(-1).astype(np.int16)
            if self.dtype == "I4":
                pairs = np.where(pairs > 7, pairs - 16, pairs)
            return pairs[start - 2 * first : stop - 2 * first].astype(np.float32)
        itemsize = ITEMSIZE[self.dtype]
        return self._numbers(self._bytes(start * itemsize, (stop - start) * itemsize))

    def _numbers(self, raw: npt.NDArray[np.uint8]) -> Values:
        if self.dtype in FLOATS:
            return decode(raw, self.dtype).astype(np.float32)
        return raw.view(_INTEGERS[self.dtype]).astype(np.float32)

    def _bytes(self, start: int, count: int) -> npt.NDArray[np.uint8]:
        with self.file.open("rb", buffering=0) as file:
            data = bytes_at(file, count, self.offset + start)
        if len(data) < count:
            raise MalformedError(f"{self.file}: ends inside a tensor")
        return np.frombuffer(data, np.uint8)

    def _varints(self) -> Values:
        """All elements of a field of varints; floats stand there as their bits."""
        raw = self._bytes(0, self.length)
        ends = np.flatnonzero(raw < 0x80)
        if len(ends) != self.size or (len(raw) and raw[-1] >= 0x80):
            raise MalformedError(f"{self.file}: a tensor has more or fewer numbers than it says")
        starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)[: len(ends)]
        places = np.arange(len(raw)) - np.repeat(starts, ends - starts + 1)
        if len(raw) and places.max() > 9:
            raise MalformedError(f"{self.file}: a tensor has a number that is too long")
        bits = (raw & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
        numbers = np.add.reduceat(bits, starts) if len(raw) else bits
        if self.dtype in FLOATS:
            width = f"<u{ITEMSIZE[self.dtype]}"
            return self._numbers(np.ascontiguousarray(numbers.astype(width)).view(np.uint8))
        return numbers.view(np.int64).astype(np.float32)


class OnnxDecoder:
    """A `Decoder` of numbers as they are, turned if asked for."""

    nbytes = 0

    def __init__(self, shape: tuple[int, ...], read: Callable[[int, int], Values], turned: bool):
        """`read` gives the elements in the order of the shape before it is turned."""
        self._shape, self._read, self._turned = shape, read, turned

    @property
    def unit(self) -> int:
        """A row; everything, if the rows lie across."""
        return max(1, product(self._shape if self._turned else self._shape[1:]))

    def values(self, start: int, stop: int) -> Values:
        """The elements start … stop-1."""
        if not self._turned:
            return self._read(start, stop)
        whole = self._read(0, product(self._shape)).reshape(self._shape)
        return np.ascontiguousarray(whole.T).reshape(-1)[start:stop]


@dataclass(frozen=True)
class Dequantised:
    """Integers times scales: one for all, one for each channel, or one for each block."""

    numbers: Numbers
    shape: tuple[int, ...]
    scale: Numbers
    zero: Numbers | None
    scales: tuple[int, ...]
    """The shape of the scales (and of the zero points)."""
    axis: int
    block: int

    @property
    def fits(self) -> bool:
        """Whether the scales are of a shape that goes with the tensor's."""
        if self.scale.size == 1:
            return True
        if not 0 <= self.axis < len(self.shape):
            return False
        if not self.block:
            return self.scales == (self.shape[self.axis],)
        expected = list(self.shape)
        expected[self.axis] = -(-expected[self.axis] // self.block)
        return self.scales == tuple(expected)

    @np.errstate(all="ignore")
    def read(self, start: int, stop: int) -> Values:
        """The elements start … stop-1."""
        if not self.shape or self.scale.size == 1:
            scale, zero = self.scale.values(0, 1)[0], self._zeros(1)[0]
            whole: Values = (self.numbers.values(start, stop) - zero) * scale
            return whole
        unit = max(1, product(self.shape[1:]))
        first, last = start // unit, -(-stop // unit)
        rows = self.numbers.values(first * unit, last * unit).reshape(-1, *self.shape[1:])
        scale = self._spread(self.scale.values(0, self.scale.size), first, last)
        zero = self._spread(self._zeros(self.scale.size), first, last)
        found = ((rows - zero) * scale).reshape(-1)[start - first * unit : stop - first * unit]
        return found.astype(np.float32, copy=False)

    def _zeros(self, count: int) -> Values:
        if self.zero is None:
            return np.zeros(count, np.float32)
        found = self.zero.values(0, self.zero.size)
        return np.resize(found, count) if self.zero.size == 1 else found

    def _spread(self, flat: Values, first: int, last: int) -> Values:
        """Scales for the rows first … last-1, of a shape that goes with them."""
        if not self.block:
            sides = [1] * len(self.shape)
            sides[self.axis] = -1
            values = flat.reshape(sides)
            return values[first:last] if self.axis == 0 else values
        values = flat.reshape(self.scales)
        rows = np.arange(first, last)
        if self.axis == 0:
            return values[rows // self.block]
        return np.repeat(values[rows], self.block, axis=self.axis)[
            (slice(None),) * self.axis + (slice(self.shape[self.axis]),)
        ]


@dataclass(frozen=True)
class Packed:
    """The weights of MatMulNBits: for each output, blocks of 4 or 8 bits with a scale each."""

    numbers: Numbers
    shape: tuple[int, int]
    scale: Numbers
    zero: Numbers | None
    bits: int
    block: int

    @property
    def blocks(self) -> int:
        """Blocks in a row."""
        return -(-self.shape[1] // self.block)

    @property
    def fits(self) -> bool:
        """Whether all parts have the size that they must have."""
        if self.bits not in (4, 8) or self.block < 16 or self.block & (self.block - 1):
            return False
        rows, blob = self.shape[0], self.block * self.bits // 8
        zeros = -(-self.blocks * self.bits // 8) if self.zero is not None else 0
        if self.zero is not None and self.zero.dtype != "U8":
            zeros = self.blocks
        return (
            self.numbers.dtype == "U8"
            and self.numbers.size == rows * self.blocks * blob
            and self.scale.size == rows * self.blocks
            and (self.zero is None or self.zero.size == rows * zeros)
        )

    @np.errstate(all="ignore")
    def read(self, start: int, stop: int) -> Values:
        """The elements start … stop-1."""
        width = self.shape[1]
        first, last = start // width, -(-stop // width)
        bytes_in_row = self.blocks * self.block * self.bits // 8
        raw = self.numbers.values(first * bytes_in_row, last * bytes_in_row).astype(np.uint8)
        codes = self._unpacked(raw).reshape(last - first, self.blocks, self.block)
        scale = self.scale.values(first * self.blocks, last * self.blocks)
        scale = scale.reshape(last - first, self.blocks, 1)
        found = (codes - self._zeros(first, last)) * scale
        rows = found.reshape(last - first, -1)[:, :width]
        return np.ascontiguousarray(rows).reshape(-1)[start - first * width : stop - first * width]

    def _unpacked(self, raw: npt.NDArray[np.uint8]) -> Values:
        if self.bits == 8:
            return raw.astype(np.float32)
        return np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1).astype(np.float32)

    def _zeros(self, first: int, last: int) -> Values | float:
        if self.zero is None:
            return float(1 << (self.bits - 1))
        wide = self.zero.size // self.shape[0]
        values = self.zero.values(first * wide, last * wide)
        if self.zero.dtype == "U8":
            values = self._unpacked(values.astype(np.uint8))
        return values.reshape(last - first, -1)[:, : self.blocks, None]
