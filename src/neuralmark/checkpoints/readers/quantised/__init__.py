"""Quantised weights, dequantised on reading; one module per quantisation.

The model's own tensors appear under their names, what they are computed from does not. Nothing is
imported from the packages that quantise.
"""

from collections.abc import Iterator
from importlib import import_module

from neuralmark.checkpoints.contract import Checkpoint, StoredTensor, TensorInfo
from neuralmark.checkpoints.readers.quantised.contract import Layer, QuantisedTable
from neuralmark.registry import files_of

_PACKED = ("I8", "U8", "I16", "U16", "I32", "U32")
_LEAST = 64
"""Fewer integers than this are no packed weights."""


def quantisations() -> list[str]:
    """The names of those that can be read."""
    return files_of(__path__)


def dequantised(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with every tensor that was quantised in a known way as the model's own."""
    if not any(_may_be_packed(checkpoint.info(name)) for name in checkpoint.names()):
        return checkpoint
    table = QuantisedTable(checkpoint)
    found: dict[str, Layer] = {}
    gone: set[str] = set()
    for layer in _layers(table):
        used = {part.name for part in layer.parts}
        if used & gone or (layer.name in table and layer.name not in used):
            continue  # the first who can read it does
        found[layer.parts[0].name] = layer
        gone |= used | set(layer.aside)
    if not found:
        return checkpoint
    shown: dict[str, StoredTensor] = {}
    for name in checkpoint.names():
        if name in found:
            shown[found[name].name] = _shown(checkpoint, found[name])
        elif name not in gone:
            shown[name] = checkpoint.span(name)
    return checkpoint.showing(shown)


def _layers(table: QuantisedTable) -> Iterator[Layer]:
    for name in quantisations():
        yield from import_module(f"{__name__}.{name}").layers(table)


def _may_be_packed(info: TensorInfo) -> bool:
    packed = info.dtype in _PACKED and info.size > _LEAST
    return packed or info.dtype.startswith("F8")


def _shown(checkpoint: Checkpoint, layer: Layer) -> StoredTensor:
    stored = checkpoint.span(layer.parts[0].name)
    info = TensorInfo(
        layer.name,
        "F32",
        layer.shape,
        stored=layer.stored,
        fixed=f"it is quantised ({layer.stored}): mark the model that it was quantised from, then"
        " quantise that again",
    )
    also = dict.fromkeys(part.file for part in layer.parts[1:] if part.file != stored.file)
    return StoredTensor(info, stored.file, stored.offset, decoder=layer.decoder, also=tuple(also))
