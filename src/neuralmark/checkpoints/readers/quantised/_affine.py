"""Weights as (code - zero) · scale: where codes, zeros and scales of a block come from."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neuralmark.checkpoints.readers.blocks import ComputedBlocks, Numbers, Part, Values, stacked
from neuralmark.checkpoints.readers.quantised._packing import (
    EXPONENTS,
    nibbles,
    unpacked,
    words_for,
)

Source = Callable[[int, int, int, int], Numbers]
"""Gives the rows top … below-1 of the columns left … right-1, or what broadcasts to them."""

USUAL_BLOCK = 128


class Affine(ComputedBlocks):
    """A matrix of codes with scales, and zero points where they are not 0."""

    def __init__(
        self, shape: tuple[int, ...], nbytes: int, codes: Source, scale: Source, zero: Source | None
    ) -> None:
        """The first axes of the shape count as rows."""
        super().__init__(*stacked(shape), nbytes)
        self._codes, self._scale, self._zero = codes, scale, zero

    def block(self, top: int, below: int, left: int, right: int) -> Values:
        """Computed in float32."""
        values = self._codes(top, below, left, right).astype(np.float32)
        if self._zero is not None:
            values -= self._zero(top, below, left, right)
        values *= self._scale(top, below, left, right)
        return values


@dataclass(frozen=True)
class RowsOf:
    """Codes that are stored one by one, row after row."""

    part: Part
    length: int

    def __call__(self, top: int, below: int, left: int, right: int) -> Numbers:
        """As stored."""
        if below - top == 1:
            start = top * self.length
            return self.part.run(start + left, start + right)[np.newaxis]
        run = self.part.run(top * self.length, below * self.length)
        return run.reshape(-1, self.length)[:, left:right]


@dataclass(frozen=True)
class NibblesOf:
    """Codes of four bits, two in a byte, the first in its low half; by a table."""

    part: Part
    length: int
    table: Values

    def __call__(self, top: int, below: int, left: int, right: int) -> Numbers:
        """The values that the codes stand for."""
        packed = RowsOf(self.part, self.length // 2)(top, below, left // 2, -(-right // 2))
        first = left - left % 2
        codes = nibbles(packed.view(np.uint8))
        return self.table[codes[:, left - first : right - first]]


@dataclass(frozen=True)
class WordsOf:
    """Codes of a few bits along the rows of 32-bit words; the middle of their range is 0."""

    part: Part
    length: int
    bits: int

    def __call__(self, top: int, below: int, left: int, right: int) -> Numbers:
        """Signed."""
        wide = words_for(self.length, self.bits)
        first = left // 32  # 32 codes fill whole words, whatever their bits
        low, high = first * self.bits, min(wide, -(-right // 32) * self.bits)
        words = RowsOf(self.part, wide)(top, below, low, high)
        codes = unpacked(words, self.bits, axis=1)[:, left - 32 * first : right - 32 * first]
        return codes.astype(np.int16) - (1 << (self.bits - 1))


@dataclass(frozen=True)
class Spread:
    """One scale (or zero point) for each block of a tensor."""

    part: Part
    of: tuple[int, ...]
    """The shape of the tensor."""
    shape: tuple[int, ...]
    """How many blocks there are along each of its axes."""
    sizes: tuple[int, ...]
    """How many elements a block has along each of its axes."""
    factor: Callable[[], float] = lambda: 1.0
    """What all are multiplied with."""
    order: Part | None = None
    """Which column belongs to which block, where not to one after the other."""

    def __call__(self, top: int, below: int, left: int, right: int) -> Numbers:
        """Read for these rows only."""
        rows = np.zeros(below - top, np.int64)
        rest = np.arange(top, below)
        place = 1
        for length, count, size in zip(
            reversed(self.of[:-1]),
            reversed(self.shape[:-1]),
            reversed(self.sizes[:-1]),
            strict=True,
        ):
            rows += place * ((rest % length) // size)
            rest, place = rest // length, place * count
        first, last = int(rows.min()), int(rows.max()) + 1
        wide = self.shape[-1]
        found = self.part.run(first * wide, last * wide).reshape(-1, wide)
        if self.part.dtype in ("U8", "F8_E8M0"):
            found = EXPONENTS[found]
        if wide > 1:
            found = found[:, self.columns(left, right)]
        taken = found[rows - first].astype(np.float32, copy=False)
        factor = self.factor()
        return taken if factor == 1.0 else taken * np.float32(factor)

    def columns(self, left: int, right: int) -> Numbers:
        """Which block each of the columns belongs to."""
        if self.order is None:
            return np.arange(left, right) // self.sizes[-1]
        order = self.order.whole()[left:right]
        if len(order) and not 0 <= int(order.min()) <= int(order.max()) < self.shape[-1]:
            raise self.order.bad("names groups that are not there")
        return order


def spread(
    part: Part, of: tuple[int, ...], usual: tuple[int, ...] = (), order: Part | None = None
) -> Spread:
    """How scales of this shape lie over a tensor: one for all, for each row, for each block.

    Blocks are all of one size but the last, which may be cut off where the size is a usual one.
    """
    shape = part.shape
    if part.size == 1:
        shape = (1,) * len(of)
    elif len(shape) == 1 and len(of) == 2 and shape[0] == of[0]:
        shape = (shape[0], 1)
    elif len(shape) == 1 and len(of) == 3 and shape[0] == of[0]:
        shape = (shape[0], 1, 1)
    if len(shape) != len(of):
        raise part.bad(f"has the shape {list(part.shape)[:8]}, which fits no tensor of {list(of)}")
    usual = usual if len(usual) == 2 else (USUAL_BLOCK, USUAL_BLOCK)
    wanted = (*(0,) * (len(of) - 2), *usual)
    sizes = []
    for axis, (length, count) in enumerate(zip(of, shape, strict=True)):
        size = wanted[axis]
        if not size or -(-length // size) != count:
            size = length // max(count, 1)
            if not size or length % count:
                raise part.bad(f"has the shape {list(shape)[:8]}, which does not divide {list(of)}")
        sizes.append(size)
    return Spread(part, of, shape, tuple(sizes), order=order)
