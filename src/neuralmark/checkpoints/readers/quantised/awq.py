"""AWQ in its usual form (GEMM): codes of four bits along the outputs, in an order of their own.

Its matrix is stored turned, [in, out/8]: a word holds the outputs 0, 2, 4, 6, 1, 3, 5, 7.
"""

from collections.abc import Iterator

import numpy as np

from neuralmark.checkpoints.readers.blocks import Columns, ComputedBlocks, Numbers, Part, Values
from neuralmark.checkpoints.readers.quantised._packing import unpacked
from neuralmark.checkpoints.readers.quantised.contract import (
    Layer,
    QuantisedTable,
    nbytes_of,
    require_shape,
)

_BITS, _IN_WORD = 4, 8
_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Where in a word each of eight outputs lies."""


def layers(table: QuantisedTable) -> Iterator[Layer]:
    """`X.qweight` with an eighth as many columns as `X.scales`, and `X.qzeros`."""
    for stem, weight in table.ending(".qweight"):
        zeros, scales = table.part(f"{stem}.qzeros"), table.part(f"{stem}.scales")
        if zeros is None or scales is None or not _fits(weight, zeros, scales):
            continue
        length, wide = weight.shape
        groups = scales.shape[0]
        require_shape(zeros, (groups, wide))
        if length % groups:
            raise scales.bad(f"has {groups:,} groups for {length:,} inputs")
        shape = (wide * _IN_WORD, length)
        decoder = _Reordered(weight, zeros, scales)
        parts = (weight, zeros, scales)
        yield Layer(f"{stem}.weight", shape, parts, decoder, "AWQ 4-bit")


def _fits(weight: Part, zeros: Part, scales: Part) -> bool:
    two = len(weight.shape) == len(zeros.shape) == len(scales.shape) == 2
    words = weight.dtype == zeros.dtype == "I32" and scales.dtype in ("F16", "BF16", "F32")
    return two and words and weight.shape[1] * _IN_WORD == scales.shape[1]


class _Reordered(ComputedBlocks):
    """Rows of the model are columns of what is stored, eight to a word."""

    def __init__(self, weight: Part, zeros: Part, scales: Part) -> None:
        length, wide = weight.shape
        super().__init__(wide * _IN_WORD, length, nbytes_of(weight))
        self._codes = Columns(weight, length, wide)
        self._zeros = Columns(zeros, *zeros.shape)
        self._scales = Columns(scales, *scales.shape)
        self._size = length // scales.shape[0]

    def block(self, top: int, below: int, left: int, right: int) -> Values:
        """(code - zero) · scale, with those of the input's group."""
        groups = np.arange(left, right) // self._size
        values = _columns(self._codes, top, below, left, right).astype(np.float32)
        values -= _columns(self._zeros, top, below, 0, self._zeros.rows)[groups]
        values *= self._scales.between(top, below)[groups]
        return values.T


def _columns(words: Columns, low: int, high: int, top: int, below: int) -> Numbers:
    """The codes of the outputs low … high-1, of the stored rows top … below-1."""
    first = low // _IN_WORD
    found = words.between(first, -(-high // _IN_WORD))[top:below]
    codes = unpacked(found, _BITS, axis=1).reshape(len(found), -1, _IN_WORD)[:, :, _PLACES]
    codes = codes.reshape(len(found), -1)
    return codes[:, low - _IN_WORD * first : high - _IN_WORD * first]
