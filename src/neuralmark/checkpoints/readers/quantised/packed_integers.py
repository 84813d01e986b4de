"""compressed-tensors, pack-quantized: integers of 1 to 8 bits along the rows, in 32-bit words."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neuralmark.checkpoints.readers.blocks import Numbers, Part
from neuralmark.checkpoints.readers.quantised._affine import (
    Affine,
    RowsOf,
    Source,
    Spread,
    WordsOf,
    spread,
)
from neuralmark.checkpoints.readers.quantised._packing import unpacked, words_for
from neuralmark.checkpoints.readers.quantised.contract import (
    Layer,
    QuantisedTable,
    nbytes_of,
    require_order,
    require_shape,
    sound_shape,
)

_ASIDE = ("input_scale", "input_zero_point", "input_global_scale", "output_scale")


def layers(table: QuantisedTable) -> Iterator[Layer]:
    """`X.weight_packed` with `weight_scale` and `weight_shape`; perhaps zero points, `g_idx`."""
    for stem, packed in table.ending(".weight_packed"):
        scale, shape = table.part(f"{stem}.weight_scale"), table.part(f"{stem}.weight_shape")
        if packed.dtype != "I32" or scale is None or shape is None or len(packed.shape) != 2:
            continue
        of = _shape(packed, shape)
        bits = _bits(packed, of)
        order = table.part(f"{stem}.weight_g_idx")
        if order is not None:
            require_order(order, of[1])
        scales = spread(scale, of, order=order)
        zero = table.part(f"{stem}.weight_zero_point")
        zeros = None if zero is None else _zeros(zero, scales, bits)
        decoder = Affine(of, nbytes_of(packed), WordsOf(packed, of[1], bits), scales, zeros)
        parts = tuple(part for part in (packed, scale, shape, zero, order) if part is not None)
        aside = table.among(tuple(f"{stem}.{end}" for end in _ASIDE))
        told = f"compressed-tensors int{bits}"
        yield Layer(f"{stem}.weight", of, parts, decoder, told, aside)


def _shape(packed: Part, shape: Part) -> tuple[int, int]:
    if shape.dtype not in ("I64", "I32") or shape.size != 2:
        raise shape.bad("is no shape of a matrix")
    told = [int(each) for each in shape.run(0, 2)]
    rows, length = sound_shape(shape, told, 32 * packed.size)
    return rows, length


def _bits(packed: Part, of: tuple[int, int]) -> int:
    for bits in range(1, 9):
        if packed.shape == (of[0], words_for(of[1], bits)):
            return bits
    raise packed.bad(f"has the shape {list(packed.shape)}, which holds no codes of {list(of)}")


def _zeros(zero: Part, scales: Spread, bits: int) -> Source:
    """Zero points as the scales lie, or packed along the rows."""
    if zero.dtype == "I8":
        require_shape(zero, scales.part.shape)
        return Spread(zero, scales.of, scales.shape, scales.sizes, order=scales.order)
    count, groups = scales.shape
    if zero.dtype != "I32":
        raise zero.bad(f"has the dtype {zero.dtype} instead of an integer one")
    require_shape(zero, (words_for(count, bits), groups))
    return _PackedZeros(zero, scales, bits)


@dataclass(frozen=True)
class _PackedZeros:
    """Zero points whose rows are packed into words."""

    part: Part
    scales: Spread
    bits: int

    def __call__(self, top: int, below: int, left: int, right: int) -> Numbers:
        """For these rows; for the columns' groups."""
        low, high = top // self.scales.sizes[0], -(-below // self.scales.sizes[0])
        first = low // 32
        most, groups = self.part.shape
        words = RowsOf(self.part, groups)(
            first * self.bits, min(most, -(-high // 32) * self.bits), 0, groups
        )
        codes = unpacked(words, self.bits, axis=0)[low - 32 * first : high - 32 * first]
        rows = np.arange(top, below) // self.scales.sizes[0] - low
        found = codes.astype(np.float32)[rows] - np.float32(1 << (self.bits - 1))
        return found if groups == 1 else found[:, self.scales.columns(left, right)]
