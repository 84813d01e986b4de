"""torchao's tensors as it flattens them for safetensors: `X._weight_qdata`, `X._weight_scale`.

The header's metadata says of what class each tensor was. Read are those whose values lie row after
row: Float8Tensor, Int8Tensor and IntxUnpackedToInt8Tensor. Others are packed for one kernel.
"""

from collections.abc import Iterator
from typing import Any

from neuralmark.checkpoints.readers.quantised._affine import Affine, RowsOf, Spread, spread
from neuralmark.checkpoints.readers.quantised.contract import (
    Layer,
    QuantisedTable,
    nbytes_of,
    require_shape,
)
from neuralmark.core.encoding import strict_json
from neuralmark.errors import MalformedError

_CLASSES = {
    "Float8Tensor": "torchao float8",
    "Int8Tensor": "torchao int8",
    "IntxUnpackedToInt8Tensor": "torchao intx",
}
_DTYPES = ("I8", "F8_E4M3", "F8_E5M2")
_ASIDE = ("act_quant_scale", "act_quant_zero_point")
_QDATA = "_qdata"


def layers(table: QuantisedTable) -> Iterator[Layer]:
    """`X._weight_qdata` with `X._weight_scale`, of a class that the metadata names."""
    for stem, codes in table.ending(_QDATA):
        module, _, last = stem.rpartition(".")
        name = f"{module}.{last.removeprefix('_')}" if module else last.removeprefix("_")
        kind = _class(table, name)
        scale, zero = table.part(f"{stem}_scale"), table.part(f"{stem}_zero_point")
        if kind not in _CLASSES or scale is None or codes.dtype not in _DTYPES:
            continue
        if f"{stem}_act_pre_scale" in table or len(codes.shape) not in (2, 3):
            continue
        scales = spread(scale, codes.shape, (0, 0))
        zeros = None
        if zero is not None:
            require_shape(zero, scale.shape)
            zeros = Spread(zero, scales.of, scales.shape, scales.sizes)
        rows = RowsOf(codes, codes.shape[-1])
        decoder = Affine(codes.shape, nbytes_of(codes), rows, scales, zeros)
        parts = (codes, scale, *([] if zero is None else [zero]))
        aside = table.among(tuple(f"{stem}_{end}" for end in _ASIDE))
        yield Layer(name, codes.shape, parts, decoder, _CLASSES[kind], aside)


def _class(table: QuantisedTable, name: str) -> str:
    """The class that the metadata names; nothing where there is none."""
    text = table.checkpoint.metadata.get(name)
    if text is None:
        return ""
    try:
        told: Any = strict_json(text)
    except ValueError as error:
        raise MalformedError(
            f"{table.checkpoint.path}: its metadata of {name[:80]!r} is not valid JSON ({error})"
        ) from None
    kind = told.get("_type") if isinstance(told, dict) else None
    return kind if isinstance(kind, str) else ""
