"""The sizes of passports, how keys hold them, and what they read of the weights (pure).

A passport s has the size of a layer's input: inputs x side x side. What the kernel sees of it at
each place makes the columns of a matrix of windows; the layer's rows times those are conv(W, s).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neuralmark.core.key import Float, Mark
from neuralmark.core.readout import Array, Known, namespace
from neuralmark.core.rowwise import RowReadOut
from neuralmark.errors import UnsuitableTensorError


@dataclass(frozen=True)
class LayerShape:
    """A layer that takes passports: its output rows, and the size of a passport."""

    name: str
    rows: int
    inputs: int
    kernel: tuple[int, int]
    side: int

    @property
    def size(self) -> int:
        """How many weights it has."""
        return self.rows * self.inputs * self.kernel[0] * self.kernel[1]

    @property
    def passport(self) -> int:
        """How many numbers a passport of it has."""
        return self.inputs * self.side * self.side

    def windows(self, passport: Array) -> Array:
        """What the kernel sees of a passport at each place: (inputs · kernel) x places."""
        high, wide = self.kernel
        plane = _padded(passport.reshape(self.inputs, self.side, self.side), high, wide)
        seen = [
            plane[:, y : y + self.side, x : x + self.side] for y in range(high) for x in range(wide)
        ]
        stacked = namespace(passport).stack(seen, 1)
        return stacked.reshape(self.inputs * high * wide, self.side * self.side)

    def centred(self, passport: Float) -> Float:
        """A passport less a constant, so that the means of its windows add up to zero."""
        high, wide = self.kernel
        seen = np.outer(_seen(self.side, high), _seen(self.side, wide)).reshape(-1)
        each = passport.reshape(self.inputs, -1)
        centred: Float = (each - (each @ seen).sum() / (self.inputs * seen.sum())).reshape(-1)
        return centred


@dataclass(frozen=True, eq=False)
class LayerPassports:
    """What one layer's private branch is made of: two passports, and which weights they read."""

    shape: LayerShape
    scale: npt.NDArray[np.float32]
    offset: npt.NDArray[np.float32]
    mask: npt.NDArray[np.bool_] | None = None
    """Which weights the filter leaves; None: all."""


def packed_rows(count: int, bits: int) -> int:
    """Rows of a matrix of `bits` columns that holds this many numbers."""
    return -(-count // bits)


def packed(numbers: npt.NDArray[np.float32], bits: int) -> npt.NDArray[np.float32]:
    """Passports as a key holds them: laid end to end in a matrix, zeros at its end.

    Args:
        numbers: For each layer the passport of γ, then that of β, flat.
        bits: Columns of the matrix: the length of the watermark.

    Returns:
        The matrix.

    Examples:
        >>> packed(np.ones(5, np.float32), 4).shape
        (2, 4)
    """
    matrix = np.zeros(packed_rows(len(numbers), bits) * bits, np.float32)
    matrix[: len(numbers)] = numbers
    return matrix.reshape(-1, bits)


def picked(rows: int, bits: int) -> npt.NDArray[np.int64]:
    """Which of the output channels count, spread evenly where there are more than bits."""
    return np.arange(bits, dtype=np.int64) * rows // bits


def layer_shape(name: str, shape: tuple[int, ...], side: int) -> LayerShape:
    """A tensor as passports see it: a convolution, or a linear layer with a passport of side 1."""
    if len(shape) == 4:
        return LayerShape(name, shape[0], shape[1], (shape[2], shape[3]), side)
    if len(shape) == 2:
        return LayerShape(name, shape[0], shape[1], (1, 1), 1)
    raise UnsuitableTensorError(
        f"{name!r} of shape {shape} takes no passport: name the weights of convolutions or linear"
        " layers"
    )


def shapes_in(extra: Mapping[str, Any]) -> list[LayerShape]:
    """The layers that a mark's passports are for."""
    table = extra["shapes"].tolist()
    return [LayerShape("", rows, inputs, (y, x), side) for rows, inputs, y, x, side in table]


def passport_places(shapes: Sequence[LayerShape]) -> Iterator[tuple[LayerShape, int]]:
    """Each layer, and where its two passports begin."""
    at = 0
    for shape in shapes:
        yield shape, at
        at += 2 * shape.passport


def passports_in(
    numbers: Float, shapes: Sequence[LayerShape]
) -> Iterator[tuple[LayerShape, Float]]:
    """Passport by passport: that of γ and that of β, layer after layer."""
    for shape, at in passport_places(shapes):
        yield shape, numbers[at : at + shape.passport]
        yield shape, numbers[at + shape.passport : at + 2 * shape.passport]


def _seen(side: int, kernel: int) -> Float:
    """By how many places of a kernel each place of a passport is seen, along one side."""
    before = (kernel - 1) // 2
    at = np.arange(side)
    low = np.maximum(at - (kernel - 1 - before), 0)
    high = np.minimum(at + before, side - 1)
    found: Float = (high - low + 1).astype(np.float64)
    return found


def laid_out(known: Known, pooled: Array) -> Array:
    """The weights laid end to end, with zeros where the filter left none."""
    if "places" not in known.extra:
        return pooled
    xp = namespace(pooled)
    places = known.extra["places"]
    total = sum(shape.size for shape in shapes_in(known.extra))
    if xp.__name__ == "torch":
        return xp.zeros(total).to(pooled).index_copy(0, places, pooled)
    whole = np.zeros(total, pooled.dtype)
    whole[places] = pooled
    return whole


def _padded(plane: Array, high: int, wide: int) -> Array:
    """Zeros around, so that the kernel finds as many places as the passport has."""
    up, left = (high - 1) // 2, (wide - 1) // 2
    down, right = high - 1 - up, wide - 1 - left
    xp = namespace(plane)
    if xp.__name__ == "torch":
        return xp.nn.functional.pad(plane, (left, right, up, down))
    return np.pad(plane, ((0, 0), (up, down), (left, right)))


def pools_of(mark: Mark) -> int:
    """How many weights the passports read."""
    if "places" in mark.extra:
        return len(mark.extra["places"])
    return sum(shape.size for shape in shapes_in(mark.extra))


def row_lengths(mark: Mark) -> Float:
    """Norm of what the weights of each bit are multiplied by."""
    if "places" in mark.extra:
        return rowwise(mark).lengths()
    shapes, flat = shapes_in(mark.extra), mark.matrix.reshape(-1).astype(np.float64)
    norms = [
        np.full(shape.rows, np.linalg.norm(shape.windows(flat[at : at + shape.passport]).mean(1)))
        for shape, at in passport_places(shapes)
    ]
    found: Float = np.concatenate(norms)[mark.extra["rows"]]
    return found


def rowwise(mark: Mark) -> RowReadOut:
    """γ pooled by the mean, as one number for each carrier."""
    shapes, flat = shapes_in(mark.extra), mark.matrix.reshape(-1).astype(np.float64)
    bit_of = np.full(sum(shape.rows for shape in shapes), -1, np.int64)
    bit_of[mark.extra["rows"]] = np.arange(mark.parameters.bits)
    factors, owners, row = [], [], 0
    for shape, at in passport_places(shapes):
        mean = shape.windows(flat[at : at + shape.passport]).mean(1)
        factors.append(np.tile(mean, shape.rows))
        owners.append(np.repeat(bit_of[row : row + shape.rows], len(mean)))
        row += shape.rows
    together, owner = np.concatenate(factors), np.concatenate(owners)
    if "places" in mark.extra:
        together, owner = together[mark.extra["places"]], owner[mark.extra["places"]]
    return RowReadOut(together, owner, mark.parameters.bits)
