"""nvfp4 and mxfp4: e2m1 values, two in a byte, with a small float as the scale of each group.

nvfp4 scales are e4m3, of 16 values each, under one float32 scale for all: compressed-tensors
divides by it (`weight_global_scale`), ModelOpt multiplies (`weight_scale_2`). mxfp4 scales are
powers of two, of 32 values each.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from neuralmark.checkpoints.readers.blocks import Part
from neuralmark.checkpoints.readers.quantised._affine import Affine, NibblesOf, spread
from neuralmark.checkpoints.readers.quantised._packing import FP4
from neuralmark.checkpoints.readers.quantised.contract import Layer, QuantisedTable, nbytes_of

_ASIDE = ("input_scale", "input_global_scale")


def layers(table: QuantisedTable) -> Iterator[Layer]:
    """Bytes in `X.weight_packed` (or `X.weight`), and `X.weight_scale` for groups of 16 or 32."""
    for end in (".weight_packed", ".weight"):
        for stem, packed in table.ending(end):
            scale = table.part(f"{stem}.weight_scale")
            if packed.dtype != "U8" or scale is None or len(packed.shape) not in (2, 3):
                continue
            of = (*packed.shape[:-1], 2 * packed.shape[-1])
            whole = table.part(f"{stem}.weight_global_scale") or table.part(
                f"{stem}.weight_scale_2"
            )
            told = _told(scale, of, whole)
            if told is None or (end == ".weight" and whole is None):
                continue
            scales = spread(scale, of)
            if whole is not None:
                scales = replace(scales, factor=_factor(whole))
            codes = NibblesOf(packed, of[-1], FP4)
            decoder = Affine(of, nbytes_of(packed), codes, scales, None)
            parts = (packed, scale, *([] if whole is None else [whole]))
            aside = table.among(tuple(f"{stem}.{each}" for each in _ASIDE))
            yield Layer(f"{stem}.weight", of, parts, decoder, told, aside)


def _told(scale: Part, of: tuple[int, ...], whole: Part | None) -> str | None:
    """Which of the two it is, by the scales; None where it is neither."""
    size, shape = of[-1], scale.shape
    if shape[:-1] != of[:-1] or not shape[-1] or size % shape[-1]:
        return None
    if scale.dtype == "F8_E4M3" and size // shape[-1] == 16:
        return "nvfp4"
    powers = scale.dtype in ("U8", "F8_E8M0") and size // shape[-1] == 32
    return "mxfp4" if powers and whole is None else None


def _factor(whole: Part) -> "Callable[[], float]":
    if whole.size != 1 or whole.dtype != "F32":
        raise whole.bad("is not one float32 number")
    divides = whole.name.endswith("global_scale")

    def factor() -> float:
        value = float(whole.whole()[0])
        if not divides:
            return value
        return 1 / value if value else float("inf")

    return factor
