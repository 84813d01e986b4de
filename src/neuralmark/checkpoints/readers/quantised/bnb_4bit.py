"""bitsandbytes nf4 and fp4: two codes in a byte, a magnitude for each block of 64 or so.

The magnitudes may be quantised again (`nested_…`, with an offset). What the shape was and how long
the blocks are, a small JSON text in a tensor says (`quant_state`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralmark.checkpoints.readers.blocks import Part, Values
from neuralmark.checkpoints.readers.quantised._packing import nibbles
from neuralmark.checkpoints.readers.quantised.contract import (
    Layer,
    QuantisedTable,
    nbytes_of,
    require_shape,
    sound_shape,
)
from neuralmark.core.encoding import strict_json

_STATE = ".quant_state.bitsandbytes__"
_MAX_STATE = 1 << 16
_CODES = 16
_NESTED_CODES = 256


def layers(table: QuantisedTable) -> Iterator[Layer]:
    """`X.weight` in bytes with `X.weight.quant_state.bitsandbytes__nf4`, absmax and quant_map."""
    for kind in ("nf4", "fp4"):
        for name, state in table.ending(_STATE + kind):
            parts = [table.part(name), *(table.part(f"{name}.{end}") for end in _ends(table, name))]
            weight, *others = parts
            if weight is None or None in others:
                continue
            told = [part for part in others if part is not None]
            decoder, shape = _decoder(weight, state, told)
            yield Layer(name, shape, (weight, *told, state), decoder, kind)


def _ends(table: QuantisedTable, name: str) -> tuple[str, ...]:
    nested = f"{name}.nested_absmax" in table
    return ("absmax", "quant_map", *(("nested_absmax", "nested_quant_map") if nested else ()))


def _decoder(weight: Part, state: Part, others: list[Part]) -> "tuple[_FourBits, tuple[int, ...]]":
    told = _told(state)
    stored = 2 * nbytes_of(weight)
    shape = sound_shape(state, told.get("shape"), stored)
    size = math.prod(shape)
    item = nbytes_of(weight) // weight.size
    if stored - size >= 2 * item + 1:
        raise weight.bad(f"holds {stored:,} codes, but its shape {list(shape)} has {size:,}")
    block = _count(state, told, "blocksize")
    magnitude, table, *nested = others
    blocks = -(-size // block)
    require_shape(magnitude, (blocks,), (blocks, 1))
    require_shape(table, (_CODES,))
    inner, offset = 1, 0.0
    if nested:
        inner = _count(state, told, "nested_blocksize")
        require_shape(nested[0], (-(-blocks // inner),))
        require_shape(nested[1], (_NESTED_CODES,))
        offset = told.get("nested_offset", 0.0)
        if magnitude.dtype != "U8" or not isinstance(offset, int | float):
            raise state.bad("tells of nested scales that are not there")
    elif magnitude.dtype not in ("F32", "F16", "BF16"):
        raise magnitude.bad(f"has the dtype {magnitude.dtype} instead of a floating-point one")
    scales = _Magnitudes(magnitude, tuple(nested), inner, float(offset))
    return _FourBits(weight, table, scales, block), shape


def _told(state: Part) -> dict[str, Any]:
    if state.dtype not in ("U8", "I8") or state.size > _MAX_STATE:
        raise state.bad("is not a text")
    try:
        told = strict_json(state.raw(0, state.size).tobytes())
    except ValueError as error:
        raise state.bad(f"is not valid JSON ({error})") from None
    if not isinstance(told, dict):
        raise state.bad("is not a table")
    return told


def _count(state: Part, told: dict[str, Any], name: str) -> int:
    value = told.get(name)
    if type(value) is not int or not 2 <= value <= 1 << 20 or value % 2:
        raise state.bad(f"has no {name}")
    return value


@dataclass(frozen=True)
class _Magnitudes:
    """The largest magnitude of each block."""

    part: Part
    nested: tuple[Part, ...]
    inner: int
    offset: float

    def between(self, first: int, last: int) -> Values:
        """Those of the blocks first … last-1."""
        found = self.part.run(first, last)
        if not self.nested:
            return found.astype(np.float32, copy=False)
        absmax, table = self.nested
        low = first // self.inner
        outer = absmax.run(low, -(-last // self.inner))
        scale = outer[np.arange(first, last) // self.inner - low].astype(np.float32, copy=False)
        return table.whole()[found] * scale + np.float32(self.offset)


@dataclass(frozen=True)
class _FourBits:
    """A flat run of codes; blocks go on from row to row."""

    weight: Part
    table: Part
    scales: _Magnitudes
    block: int

    @property
    def unit(self) -> int:
        """A block."""
        return self.block

    @property
    def nbytes(self) -> int:
        """Of the codes."""
        return nbytes_of(self.weight)

    def values(self, start: int, stop: int) -> Values:
        """A table of codes, times the magnitude of the block."""
        if stop <= start:
            return np.empty(0, np.float32)
        item = nbytes_of(self.weight) // self.weight.size
        first, last = start // (2 * item), -(-stop // (2 * item))
        codes = nibbles(self.weight.raw(first, last), high_first=True)
        codes = codes[start - 2 * item * first : stop - 2 * item * first]
        low, high = start // self.block, -(-stop // self.block)
        with np.errstate(all="ignore"):
            scales = self.scales.between(low, high)
            each = np.repeat(scales, self.block)[start - low * self.block :][: stop - start]
            return self.table.whole()[codes].astype(np.float32, copy=False) * each
