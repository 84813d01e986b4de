"""GPTQ: codes along the inputs in 32-bit words, zero points along the outputs, groups of inputs.

Its matrix is stored turned, [in, out]. `g_idx` says to which group an input belongs (act-order).
The first version stores zero points less one; the second does not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neuralmark.checkpoints.readers.blocks import Columns, ComputedBlocks, Numbers, Part, Values
from neuralmark.checkpoints.readers.quantised._packing import unpacked, words_for
from neuralmark.checkpoints.readers.quantised.contract import (
    Layer,
    QuantisedTable,
    nbytes_of,
    require_order,
)

_BITS = (4, 8, 2, 3)
_SECOND = "gptq_v2"
_THIRD_FORMS = ("marlin", "bitblas", "ipex", "awq")


def layers(table: QuantisedTable) -> Iterator[Layer]:
    """`X.qweight`, `X.qzeros` and `X.scales` whose columns are the outputs; perhaps `X.g_idx`."""
    for stem, weight in table.ending(".qweight"):
        zeros, scales = table.part(f"{stem}.qzeros"), table.part(f"{stem}.scales")
        if zeros is None or scales is None or not _fits(weight, zeros, scales):
            continue
        version = table.config.get("checkpoint_format")
        if version in _THIRD_FORMS:
            continue
        order = table.part(f"{stem}.g_idx")
        bits, length = _sizes(weight, zeros, scales, order)
        rows = scales.shape[1]
        size = _group_size(table, scales, length) if order is None else 0
        if order is not None:
            require_order(order, length)
        parts = [weight, zeros, scales, *([] if order is None else [order])]
        decoder = _Turned(parts, bits, (rows, length), size, version)
        yield Layer(f"{stem}.weight", (rows, length), tuple(parts), decoder, f"GPTQ {bits}-bit")


def _fits(weight: Part, zeros: Part, scales: Part) -> bool:
    two = len(weight.shape) == len(zeros.shape) == len(scales.shape) == 2
    words = weight.dtype == zeros.dtype == "I32" and scales.dtype in ("F16", "BF16", "F32")
    return two and words and weight.shape[1] == scales.shape[1]


def _sizes(weight: Part, zeros: Part, scales: Part, order: Part | None) -> tuple[int, int]:
    """Bits of a code, and the number of inputs."""
    groups, rows = scales.shape
    for bits in _BITS:
        if zeros.shape == (groups, words_for(rows, bits)):
            break
    else:
        raise zeros.bad(f"has the shape {list(zeros.shape)}, which fits no {rows:,} zero points")
    length = weight.shape[0] * 32 // bits
    if order is not None and words_for(order.size, bits) == weight.shape[0]:
        length = order.size
    if words_for(length, bits) != weight.shape[0] or length < groups:
        raise weight.bad(f"has {weight.shape[0]:,} rows, which hold no codes of {bits} bits")
    return bits, length


def _group_size(table: QuantisedTable, scales: Part, length: int) -> int:
    groups = scales.shape[0]
    told = table.config.get("group_size")
    if type(told) is int and told > 0 and -(-length // told) == groups:
        return told
    if length % groups:
        raise scales.bad(f"has {groups:,} groups for {length:,} inputs")
    return length // groups


@dataclass(frozen=True)
class _Zeros:
    """Zero points of some outputs, along the words of a row."""

    part: Part
    rows: int
    bits: int
    version: object

    def between(self, low: int, high: int) -> Numbers:
        """Of the outputs low … high-1, for each group."""
        groups, wide = self.part.shape
        first = low // 32
        words = Columns(self.part, groups, wide).between(
            first * self.bits, min(wide, -(-high // 32) * self.bits)
        )
        found = unpacked(words, self.bits, axis=1)[:, low - 32 * first : high - 32 * first]
        if self._second():
            return found
        return (found + np.uint8(1)) & np.uint8((1 << self.bits) - 1)

    def _second(self) -> bool:
        """Told, or shown: all zero points in the middle of the range, as symmetric ones are."""
        if self.version is not None:
            return self.version == _SECOND
        return bool(self.part.kept.get((self.part.name, "second"), self._middle)[0])

    def _middle(self) -> Numbers:
        wide = self.part.shape[1]
        row = self.part.run(0, wide)[np.newaxis]
        codes = unpacked(row, self.bits, axis=1)[:, : self.rows]
        return np.array([(codes == 1 << (self.bits - 1)).all()])


class _Turned(ComputedBlocks):
    """Rows of the model are columns of what is stored."""

    def __init__(
        self, parts: list[Part], bits: int, shape: tuple[int, int], size: int, version: object
    ) -> None:
        weight, zeros, scales, *order = parts
        super().__init__(*shape, nbytes_of(weight))
        self._codes = Columns(weight, *weight.shape)
        self._scales = Columns(scales, *scales.shape)
        self._zeros = _Zeros(zeros, shape[0], bits, version)
        self._order, self._bits, self._size = next(iter(order), None), bits, size

    def block(self, top: int, below: int, left: int, right: int) -> Values:
        """(code - zero) · scale, with those of the input's group."""
        first = left // 32
        words = self._codes.between(top, below)
        words = words[first * self._bits : -(-right // 32) * self._bits]
        codes = unpacked(words, self._bits, axis=0)[left - 32 * first : right - 32 * first]
        groups = self._groups(left, right)
        values = codes.astype(np.float32)
        values -= self._zeros.between(top, below)[groups]
        values *= self._scales.between(top, below)[groups]
        return values.T

    def _groups(self, left: int, right: int) -> Numbers:
        if self._order is None:
            return np.arange(left, right) // self._size
        order = self._order.whole()[left:right]
        if not 0 <= int(order.min()) <= int(order.max()) < self._scales.rows:
            raise self._order.bad("names groups that are not there")
        return order
