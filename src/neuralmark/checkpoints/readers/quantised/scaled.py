"""float8 and int8 weights with a scale for the tensor, for each row, or for each block.

compressed-tensors (float-quantized, int-quantized, mxfp8) and Hugging Face's fp8 say
`weight_scale`, DeepSeek `weight_scale_inv` (blocks of 128 by 128) or `scale`, ComfyUI
`scale_weight`. All of them multiply.
"""

from collections.abc import Iterator
from typing import Any

from neuralmark.checkpoints.readers.blocks import Part
from neuralmark.checkpoints.readers.quantised._affine import Affine, RowsOf, Spread, spread
from neuralmark.checkpoints.readers.quantised.contract import (
    Layer,
    QuantisedTable,
    nbytes_of,
    require_shape,
)

_ENDS = ("_scale_inv", "_scale")
_OF_LAYER = (".scale_weight", ".scale")
_FLOATS = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_SCALES = ("F32", "F16", "BF16")
_POWERS = ("F8_E8M0", "U8")
"""Powers of two: scales of float8 only."""
_ASIDE = ("input_scale", "input_zero_point", "output_scale", "scale_input", "activation_scale")


def layers(table: QuantisedTable) -> Iterator[Layer]:
    """Every float8 or int8 matrix that has its scale beside it."""
    for name in table.checkpoint.names():
        weight = table.part(name)
        if weight is None or len(weight.shape) not in (2, 3):
            continue
        if weight.dtype not in (*_FLOATS, "I8"):
            continue
        scale = _scale(table, weight)
        if scale is None:
            continue
        scales = spread(scale, weight.shape, _blocks(table))
        zero = table.part(f"{name}_zero_point")
        zeros = None
        if zero is not None:
            require_shape(zero, scale.shape)
            if zero.dtype != "I8" and zero.dtype not in _FLOATS:
                raise zero.bad(f"has the dtype {zero.dtype}, which no zero point has")
            zeros = Spread(zero, scales.of, scales.shape, scales.sizes)
        codes = RowsOf(weight, weight.shape[-1])
        decoder = Affine(weight.shape, nbytes_of(weight), codes, scales, zeros)
        parts = (weight, scale, *([] if zero is None else [zero]))
        stem = name.removesuffix("weight")
        aside = table.among(tuple(f"{stem}{end}" for end in _ASIDE))
        yield Layer(name, weight.shape, parts, decoder, _told(weight), aside)


def _scale(table: QuantisedTable, weight: Part) -> Part | None:
    stem = weight.name.removesuffix(".weight")
    names = [weight.name + end for end in _ENDS]
    names += [stem + end for end in _OF_LAYER if stem != weight.name]
    found = next((part for part in map(table.part, names) if part is not None), None)
    if found is None or (weight.dtype == "I8" and found.dtype in _POWERS):
        return None
    return found if found.dtype in (*_SCALES, *_POWERS) else None


def _told(weight: Part) -> str:
    if weight.dtype == "I8":
        return "scaled int8"
    return f"scaled float8 ({weight.dtype.removeprefix('F8_').lower()})"


def _blocks(table: QuantisedTable) -> tuple[int, ...]:
    """The size of blocks that the configuration tells, if it tells one."""
    told: Any = table.config.get("weight_block_size")
    sound = isinstance(told, list) and all(type(n) is int and 0 < n <= 1 << 20 for n in told)
    return tuple(told) if sound and len(told) == 2 else ()
