"""The payload of one tensor of an anchor: coarse weights as bytes, and back.

Vectors and tensors whose rows have fewer than four weights: their values, one after the other.
Others: the codes of all lines, each packed into whole bytes, then the scales of all lines. Values
and scales are float16, or float32 where the entry says `wide`; all is little-endian.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from neuralmark.anchors import coarse
from neuralmark.anchors.anchor import AnchorEntry
from neuralmark.errors import AnchorError
from neuralmark.structures.structure import Array, Indices

Pieces = Iterable[npt.NDArray[np.floating]]
"""A tensor's values in order, in pieces of any size."""
Reader = Callable[[int, int], bytes]
"""Bytes of a payload: where they begin, and how many."""
Sink = Callable[[bytes], object]

_STEP = 1 << 20
_SPARSE = 16
"""Fewer rows than one of so many are read one by one."""


@dataclass(frozen=True)
class PayloadLayout:
    """How many bytes a payload has of what; it follows from the entry and the bits."""

    entry: AnchorEntry
    bits: int

    @property
    def plain(self) -> bool:
        """Whether values are kept one by one, without codes."""
        shape = self.entry.shape
        return len(shape) < 2 or math.prod(shape[1:]) < coarse.SHORT

    @property
    def rows(self) -> int:
        """How many rows are kept."""
        return self.entry.kept_shape[0] if self.entry.shape else 1

    @property
    def length(self) -> int:
        """Weights of a row."""
        return math.prod(self.entry.shape[1:])

    @property
    def itemsize(self) -> int:
        """Bytes of a value or scale."""
        return 4 if self.entry.wide else 2

    @property
    def kind(self) -> str:
        """Of values and scales, as numpy calls it."""
        return f"<f{self.itemsize}"

    @property
    def codes(self) -> int:
        """Bytes of all codes."""
        if self.plain:
            return 0
        whole, rest = divmod(self.length, coarse.LINE)
        return self.rows * (whole * self.packed(coarse.LINE) + self.packed(rest))

    @property
    def floats(self) -> int:
        """How many values or scales there are."""
        if self.plain:
            return math.prod(self.entry.kept_shape)
        return self.rows * -(-self.length // coarse.LINE)

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return self.codes + self.floats * self.itemsize

    @property
    def lines(self) -> tuple[int, ...]:
        """How a row is cut."""
        return coarse.lines_of(self.length)

    def packed(self, width: int) -> int:
        """Bytes of the codes of one line."""
        return coarse.packed_length(width, self.bits)


def write_payload(entry: AnchorEntry, bits: int, pieces: Pieces, sink: Sink) -> AnchorEntry:
    """Coarsen a tensor (the kept rows of it) and give its payload to `sink`.

    Gives the entry as it now is: with its digest, and float32 where float16 has not the range.
    """
    digest = hashlib.sha512()

    def put(part: bytes) -> None:
        digest.update(part)
        sink(part)

    layout = PayloadLayout(entry, bits)
    floats = _whole(pieces) if layout.plain else _scales(layout, pieces, put)
    put(floats.tobytes())
    return replace(entry, wide=floats.itemsize == 4, sha512=digest.hexdigest())


def _whole(pieces: Pieces) -> npt.NDArray[np.floating]:
    """The values of a vector as they are kept."""
    parts = [piece.astype(np.float64) for piece in pieces]
    return coarse.fitting_values(np.concatenate(parts))


def _scales(layout: PayloadLayout, pieces: Pieces, put: Sink) -> npt.NDArray[np.floating]:
    """Give the codes away, block by block, and the scales back."""
    scales = []
    for block in coarse.blocks(pieces, layout.length):
        codes, some = coarse.coarsen(block, layout.bits)
        scales.append(some)
        put(coarse.pack(codes, layout.bits).tobytes())
    return coarse.fitting_scales(np.concatenate(scales))


def check_payload(entry: AnchorEntry, bits: int, read: Reader) -> None:
    """Refuse a payload that is not what the entry says, or holds NaN or infinity."""
    layout = PayloadLayout(entry, bits)
    digest = hashlib.sha512()
    for part in _stretches(0, layout.codes, read):
        digest.update(part)
    for part in _stretches(layout.codes, layout.size, read):
        digest.update(part)
        _checked(np.frombuffer(part, layout.kind), layout)
    if digest.hexdigest() != entry.sha512:
        raise AnchorError(f"the coarse copy of {entry.name[:80]!r} is not the one that was kept")


def _stretches(start: int, end: int, read: Reader) -> Iterator[bytes]:
    for at in range(start, end, _STEP):
        yield read(at, min(_STEP, end - at))


def _checked(floats: npt.NDArray[np.floating], layout: PayloadLayout) -> npt.NDArray[np.floating]:
    sound = np.isfinite(floats).all()
    if not layout.plain:
        most = np.float32(coarse.largest_scale(layout.bits))
        sound = sound and bool(((floats >= 0) & (floats <= most)).all())
    if not sound:
        what = "values" if layout.plain else "scales"
        raise AnchorError(f"the anchor's {what} of {layout.entry.name[:80]!r} are not numbers")
    return floats


def read_payload(entry: AnchorEntry, bits: int, read: Reader, rows: Indices | None = None) -> Array:
    """The coarse values of a tensor, in the shape that is kept, or of some of its rows.

    `check_payload` has seen all of it before, and whatever `read` opens is authenticated.
    """
    layout = PayloadLayout(entry, bits)
    part = read(layout.codes, layout.size - layout.codes)
    floats = _checked(np.frombuffer(part, layout.kind), layout)
    if layout.plain:
        values = floats.astype(np.float32).reshape(entry.kept_shape)
        return values if rows is None else values[rows]
    scales = floats.reshape(layout.rows, len(layout.lines))
    width = layout.codes // max(layout.rows, 1)
    if rows is None or len(rows) * _SPARSE >= layout.rows:
        codes = np.frombuffer(read(0, layout.codes), np.uint8).reshape(layout.rows, width)
        codes = codes if rows is None else codes[rows]
    else:
        held = b"".join(read(int(row) * width, width) for row in rows)
        codes = np.frombuffer(held, np.uint8).reshape(len(rows), width)
    scales = scales if rows is None else scales[rows]
    shape = (len(scales), *entry.kept_shape[1:])
    if len(layout.lines) == 1:  # as nearly all are: nothing to be put together
        return coarse.restored(coarse.unpack(codes, layout.length, bits), scales[:, 0]).reshape(
            shape
        )
    values = np.empty((len(scales), layout.length), np.float32)
    byte = at = 0
    for line, width in enumerate(layout.lines):
        packed = np.ascontiguousarray(codes[:, byte : byte + layout.packed(width)])
        plain = coarse.unpack(packed, width, bits)
        values[:, at : at + width] = coarse.restored(plain, scales[:, line])
        byte, at = byte + layout.packed(width), at + width
    return values.reshape(shape)
