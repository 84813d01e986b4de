"""Reading a mark from weights that were put back into the anchor's order.

What is filled from the anchor is damped by the share that is filled of the whole mark, which leaves
the least noise (docs/method.md). That share is known only at the end, so what is the suspect's and
what is filled are pooled apart, and joined then.
"""

import math

import numpy as np

from neuralmark.anchors.restoring import Restoration
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Float, Placement
from neuralmark.marking.reading import Reading
from neuralmark.structures.structure import Array

LEAST_FOUND = 0.05
"""With less of the marked weights than this, whatever the bits say is not called a match."""

_PIECE = 1 << 20


def read_restored(restoration: Restoration, carriers: Carriers) -> Reading:
    """Pool the carriers of the restored tensors, laid end to end."""
    own, filled = _Sums(carriers), _Sums(carriers)
    cross = start = 0.0
    lost = 0.0
    place = 0
    for entry, tensor in restoration.tensors():
        size = math.prod(entry.shape)
        if tensor.kept is not None:
            own.add(tensor.kept, place)
        if tensor.fill is not None:
            filled.add(tensor.fill, place)
        if tensor.kept is not None and tensor.fill is not None:
            cross += _cross(carriers, tensor.kept, tensor.fill, place)
        lost += tensor.share * size
        start += size
        place += size
    damping = 1 - lost / start
    sums = own.sums + damping * filled.sums
    squares = own.squares + 2 * damping * cross + damping**2 * filled.squares
    norm = math.sqrt(own.norm + damping**2 * filled.norm)
    pooled: Float = sums / max(carriers.per_pool, 1)
    spread = squares - carriers.per_pool * math.fsum(pooled * pooled)
    within = math.sqrt(max(spread, 0.0) / max(carriers.size - carriers.pools, 1))
    return Reading(carriers, pooled, within, norm, {})


class _Sums:
    """Sums over the carriers, pool by pool, and squares."""

    def __init__(self, carriers: Carriers) -> None:
        self._carriers = carriers
        self.sums = np.zeros(carriers.pools)
        self.squares = self.norm = 0.0

    def add(self, values: Array, start: int) -> None:
        """Take in a tensor that begins at this place of the mark."""
        flat = values.reshape(-1)
        for low in range(0, flat.size, _PIECE):
            piece = flat[low : low + _PIECE]
            self.norm += _sum(piece, piece)
            first, at = self._carriers.between(start + low, start + low + piece.size)
            chosen = piece.take(at)
            self._carriers.sum_into(self.sums, first, chosen)
            self.squares += _sum(chosen, chosen)


def _cross(carriers: Carriers, one: Array, two: Array, start: int) -> float:
    total, a, b = 0.0, one.reshape(-1), two.reshape(-1)
    for low in range(0, a.size, _PIECE):
        _, at = carriers.between(start + low, start + min(low + _PIECE, a.size))
        total += _sum(a[low : low + _PIECE].take(at), b[low : low + _PIECE].take(at))
    return total


def _sum(one: Array, two: Array) -> float:
    """The inner product in float64, without BLAS: the same for every number of threads."""
    return float(np.sum(one.astype(np.float64) * two.astype(np.float64)))


def weights_of(placement: Placement) -> int:
    """How many weights a mark lies in."""
    return sum(math.prod(shape) for _, shape in placement)
