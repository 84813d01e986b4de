"""Reading a mark from weights that were put back into the anchor's order.

A tensor is read as the anchor plus a factor times what is trusted of its difference from the
anchor. The factors follow from all tensors together (`cleaning.weigh`), so they are known only at
the end: what is trusted is pooled tensor by tensor, and joined then.
"""

import math
import tempfile
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.cleaning import weigh
from neuralmark.anchors.restoring import Restoration
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Float
from neuralmark.marking.reading import Reading
from neuralmark.structures.structure import Array

_PIECE = 1 << 20


@dataclass
class _PoolSums:
    """Sums over the carriers of one tensor: pool by pool, and squares."""

    sums: Float
    squares: float = 0.0
    norm: float = 0.0
    cross: float = 0.0
    """Of what is trusted with the anchor, over the carriers."""


@dataclass
class _Pools:
    """What is pooled of the anchor, and of what is trusted in each tensor."""

    carriers: Carriers
    anchor: _PoolSums = field(init=False)
    parts: list[_PoolSums] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.anchor = _PoolSums(np.zeros(self.carriers.pools))

    def add(self, kept: Array | None, fill: Array, start: int) -> None:
        """Take in a tensor that begins at this place of the mark."""
        part = _PoolSums(np.zeros(self.carriers.pools))
        below, above = fill.reshape(-1), None if kept is None else kept.reshape(-1)
        for low in range(0, below.size, _PIECE):
            high = min(low + _PIECE, below.size)
            first, at = self.carriers.between(start + low, start + high)
            under = _taken(self.anchor, below[low:high], at)
            self.carriers.sum_into(self.anchor.sums, first, under)
            if above is not None:
                over = _taken(part, above[low:high], at)
                self.carriers.sum_into(part.sums, first, over)
                part.cross += _product(under, over)
        self.parts.append(part)

    def joined(self, factors: tuple[float, ...]) -> Reading:
        """The anchor plus each tensor's trusted difference, times its factor."""
        base, carriers = self.anchor, self.carriers
        sums, squares, norm = base.sums.copy(), base.squares, base.norm
        for factor, part in zip(factors, self.parts, strict=True):
            sums += factor * part.sums
            squares += 2 * factor * part.cross + factor**2 * part.squares
            norm += factor**2 * part.norm
        pooled: Float = sums / max(carriers.per_pool, 1)
        spread = squares - carriers.per_pool * _product(pooled, pooled)
        within = math.sqrt(max(spread, 0.0) / max(carriers.size - carriers.pools, 1))
        return Reading(carriers, pooled, within, math.sqrt(norm), {})


def read_restored(restoration: Restoration, carriers: Carriers) -> Reading:
    """Pool the carriers of the restored tensors, laid end to end."""
    pools, trusts, start = _Pools(carriers), [], 0
    for entry, tensor in restoration.tensors():
        pools.add(tensor.kept, tensor.fill, start)
        trusts.append(tensor.trust)
        start += math.prod(entry.shape)
    return pools.joined(weigh(trusts))


def restored_weights(restoration: Restoration) -> Float:
    """All weights as they are read, laid end to end: for whoever reads them with many keys."""
    found = [(tensor.kept, tensor.fill, tensor.trust) for _, tensor in restoration.tensors()]
    factors = weigh([trust for _, _, trust in found])
    whole = [
        fill.reshape(-1).astype(np.float64)
        + (0.0 if kept is None else factor * kept.reshape(-1).astype(np.float64))
        for (kept, fill, _), factor in zip(found, factors, strict=True)
    ]
    return np.concatenate(whole)


def _room(shape: tuple[int, int]) -> Array:
    """Room on the disk, which is given back with the array; in memory where none may be written."""
    try:
        with tempfile.TemporaryFile() as file:
            return np.memmap(file, np.float32, "w+", shape=shape)  # keeps the file by itself
    except FileNotFoundError:  # no folder is writable
        return np.zeros(shape, np.float32)


class RestoredFile:
    """Restored weights, laid end to end in a temporary file: for whoever reads them with many keys.

    They are there twice: as they are read, and as their difference from the anchor. Both follow
    from suspect and anchor alone. Where no file may be written, in a sandbox, they are in memory.
    """

    def __init__(self, restoration: Restoration, anchor: Anchor) -> None:
        """Restore every tensor once."""
        sizes = [math.prod(shape) for _, shape in anchor.placement]
        self._both = _room((2, sum(sizes)))
        trusts, stops = [], list(accumulate(sizes))
        for (_, tensor), size, stop in zip(restoration.tensors(), sizes, stops, strict=True):
            kept = 0.0 if tensor.kept is None else tensor.kept.reshape(-1)
            self._both[0, stop - size : stop] = tensor.fill.reshape(-1)
            self._both[1, stop - size : stop] = kept
            trusts.append(tensor.trust)
        factors = weigh(trusts)
        for (name, _), size, stop, factor in zip(
            anchor.placement, sizes, stops, factors, strict=True
        ):
            read, beyond = self._both[:, stop - size : stop]
            read += np.float32(factor) * beyond
            beyond[:] = read - anchor[name].reshape(-1)

    def pooled(self, carriers: Carriers) -> Float:
        """The means of the pools, as the weights are read."""
        return self._pooled(self._both[0], carriers)

    def pooled_beyond(self, carriers: Carriers) -> Float:
        """The means of the pools of what the weights differ by from the anchor."""
        return self._pooled(self._both[1], carriers)

    def clear(self, carriers: Carriers) -> None:
        """Take a known mark out of the difference: the mean of each of its pools."""
        beyond, means = self._both[1], self.pooled_beyond(carriers)
        for low in range(0, len(beyond), _PIECE):
            high = min(low + _PIECE, len(beyond))
            first, at = carriers.between(low, high)
            piece = np.array(beyond[low:high])
            piece[at] -= carriers.spread(means, first, len(at)).astype(np.float32)
            beyond[low:high] = piece

    def close(self) -> None:
        """Give the room on the disk back."""
        del self._both

    @staticmethod
    def _pooled(values: Array, carriers: Carriers) -> Float:
        sums = np.zeros(carriers.pools)
        for low in range(0, len(values), _PIECE):
            high = min(low + _PIECE, len(values))
            first, at = carriers.between(low, high)
            carriers.sum_into(sums, first, np.asarray(values[low:high]).take(at))
        pooled: Float = sums / max(carriers.per_pool, 1)
        return pooled


def _taken(
    part: _PoolSums, piece: Array, at: "np.ndarray[tuple[int], np.dtype[np.int64]]"
) -> Array:
    """The carriers in a piece; squares are noted."""
    chosen: Array = piece.take(at)
    part.norm += _product(piece, piece)
    part.squares += _product(chosen, chosen)
    return chosen


def _product(one: Array | Float, two: Array | Float) -> float:
    """The inner product in float64, without BLAS: the same for every number of threads."""
    return float(np.einsum("i,i->", one, two, dtype=np.float64))
