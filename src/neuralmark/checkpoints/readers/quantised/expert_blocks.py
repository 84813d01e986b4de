"""mxfp4 experts as gpt-oss stores them: `X_blocks` and `X_scales`, one matrix for each expert.

The model holds them turned: [experts, in, out].
"""

from collections.abc import Iterator

import numpy as np

from neuralmark.checkpoints.readers.blocks import Columns, ComputedBlocks, Part, Values
from neuralmark.checkpoints.readers.quantised._packing import EXPONENTS, FP4, nibbles
from neuralmark.checkpoints.readers.quantised.contract import (
    Layer,
    QuantisedTable,
    nbytes_of,
    require_shape,
)

_GROUP_BYTES = 16
_GROUP = 32


def layers(table: QuantisedTable) -> Iterator[Layer]:
    """Blocks of [experts, out, groups, 16] bytes and scales of [experts, out, groups]."""
    for name, blocks in table.ending("_blocks"):
        scales = table.part(f"{name}_scales")
        if scales is None or blocks.dtype != "U8" or scales.dtype not in ("U8", "F8_E8M0"):
            continue
        if len(blocks.shape) != 4 or blocks.shape[-1] != _GROUP_BYTES:
            continue
        require_shape(scales, blocks.shape[:-1])
        experts, outputs, groups, _ = blocks.shape
        shape = (experts, groups * _GROUP, outputs)
        decoder = _TurnedExperts(blocks, scales)
        yield Layer(name, shape, (blocks, scales), decoder, "mxfp4")


class _TurnedExperts(ComputedBlocks):
    """Rows of the model are columns of an expert's matrix."""

    def __init__(self, blocks: Part, scales: Part) -> None:
        experts, outputs, groups, _ = blocks.shape
        super().__init__(experts * groups * _GROUP, outputs, nbytes_of(blocks))
        self._blocks, self._scales = blocks, scales
        self._inputs = groups * _GROUP

    def block(self, top: int, below: int, left: int, right: int) -> Values:
        """Expert by expert."""
        parts = []
        while top < below:
            expert, first = divmod(top, self._inputs)
            last = min(self._inputs, first + below - top)
            parts.append(self._of(expert, first, last)[:, left:right])
            top += last - first
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _of(self, expert: int, first: int, last: int) -> Values:
        """The inputs first … last-1 of one expert, for all outputs."""
        outputs, half, groups = self.length, self._inputs // 2, self._inputs // _GROUP
        packed = Columns(self._blocks, outputs, half, expert * outputs * half)
        low = first - first % 2
        codes = nibbles(packed.between(low // 2, -(-last // 2)))[:, first - low : last - low]
        scales = Columns(self._scales, outputs, groups, expert * outputs * groups)
        each = np.arange(first, last) // _GROUP
        found = scales.between(int(each[0]), int(each[-1]) + 1)[:, each - each[0]]
        values: Values = (FP4[codes] * EXPONENTS[found]).T
        return values
