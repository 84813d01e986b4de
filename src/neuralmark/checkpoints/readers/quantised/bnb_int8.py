"""bitsandbytes LLM.int8(): rows of int8, and the largest magnitude of each row (`SCB`)."""

from collections.abc import Iterator
from dataclasses import replace

from neuralmark.checkpoints.readers.quantised._affine import Affine, RowsOf, spread
from neuralmark.checkpoints.readers.quantised.contract import (
    Layer,
    QuantisedTable,
    nbytes_of,
    require_shape,
)

_ROW_FORMAT = 0


def layers(table: QuantisedTable) -> Iterator[Layer]:
    """`X.weight` in int8 with `X.SCB`; `X.weight_format` says that rows are stored as rows."""
    for stem, scale in table.ending(".SCB"):
        weight = table.part(f"{stem}.weight")
        if weight is None or weight.dtype != "I8" or len(weight.shape) != 2:
            continue
        rows, length = weight.shape
        require_shape(scale, (rows,), (rows, 1))
        if scale.dtype not in ("F32", "F16", "BF16"):
            raise scale.bad(f"has the dtype {scale.dtype} instead of a floating-point one")
        form = table.part(f"{stem}.weight_format")
        if form is not None and form.size == 1 and int(form.whole()[0]) != _ROW_FORMAT:
            continue  # tiled for one generation of GPUs
        scales = replace(spread(scale, weight.shape), factor=lambda: 1 / 127)
        codes = RowsOf(weight, length)
        decoder = Affine(weight.shape, nbytes_of(weight), codes, scales, None)
        aside = table.among((f"{stem}.weight_format",))
        name = f"{stem}.weight"
        yield Layer(name, weight.shape, (weight, scale), decoder, "bitsandbytes int8", aside)
