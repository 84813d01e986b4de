"""The hashed filter: which weights carry the mark (METHOD, section 1, steps 2 and 3).

The published filter loops over all weights R times. Here a carrier's position follows from its
index in O(R), and how many carriers lie before a position as well, so a file can be streamed in
chunks, and a shard can compute its own part, with memory for the carriers at hand only.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from neuralmark.core.key import Mark
from neuralmark.errors import ParameterError


@dataclass(frozen=True, eq=False)
class Carriers:
    """The carriers of one watermark in `total` weights, in ascending order of position."""

    total: int
    pools: int
    pooling: str
    ones: npt.NDArray[np.int64] = field(repr=False)
    before: npt.NDArray[np.int64] = field(repr=False)
    lengths: tuple[int, ...] = field(repr=False)

    @classmethod
    def of(cls, mark: Mark, total: int) -> "Carriers":
        """Carriers of this mark in `total` weights (all marked tensors laid end to end)."""
        p = mark.parameters
        return cls.under(mark.bits, p.rounds, total, len(mark.matrix), p.pooling)

    @classmethod
    def under(
        cls,
        pattern: npt.NDArray[np.uint8],
        rounds: int,
        total: int,
        pools: int,
        pooling: str = "strided",
    ) -> "Carriers":
        """The positions that lie under a 1 of the pattern, `rounds` times over."""
        ones = np.flatnonzero(pattern).astype(np.int64)
        before = np.concatenate([[0], np.cumsum(pattern, dtype=np.int64)])
        lengths = [total]
        for _ in range(rounds):
            lengths.append(lengths[-1] // len(pattern) * len(ones))
        return cls(total, pools, pooling, ones, before, tuple(lengths))

    @classmethod
    def everything(cls, total: int, pools: int) -> "Carriers":
        """All weights, unfiltered, in strided pools."""
        return cls.under(np.ones(1, np.uint8), 0, total, pools)

    @property
    def per_pool(self) -> int:
        """P: how many carriers share a pool."""
        return self.lengths[-1] // self.pools

    @property
    def size(self) -> int:
        """Number of carriers, after the cut to a whole number of pools."""
        return self.per_pool * self.pools

    def rank(self, position: int) -> int:
        """How many carriers lie before `position`."""
        n = len(self.before) - 1
        index = min(position, self.total)
        for length in self.lengths[1:]:
            whole, rest = divmod(index, n)
            index = min(whole * len(self.ones) + int(self.before[rest]), length)
        return min(index, self.size)

    def positions(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
        """Positions of the carriers with index start … stop-1."""
        at = np.arange(start, self.size if stop is None else min(stop, self.size), dtype=np.int64)
        n, p = len(self.before) - 1, len(self.ones)
        for _ in self.lengths[1:]:
            whole = at // p
            at -= whole * p
            at = self.ones[at]
            whole *= n
            at += whole
        return at

    def pool_of(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Pool of the carriers with index start … stop-1."""
        index = np.arange(start, stop, dtype=np.int64)
        return index % self.pools if self.pooling == "strided" else index // self.per_pool

    def chunks(self, start: int, stop: int, size: int) -> Iterator[tuple[int, int, int, int]]:
        """Cut positions start … stop-1 into pieces of `size`: (from, to, first index, last + 1)."""
        for low in range(start, stop, size):
            high = min(low + size, stop)
            yield low, high, self.rank(low), self.rank(high)

    def sum_into(
        self, sums: npt.NDArray[np.float64], first: int, values: npt.NDArray[np.floating]
    ) -> None:
        """Add the values of the carriers from index `first` on to the sums of their pools."""
        if self.pooling == "contiguous":
            pools = self.pool_of(first, first + len(values))
            np.add.at(sums, pools, values)
            return
        k = self.pools
        head = min((-first) % k, len(values))
        sums[first % k : first % k + head] += values[:head]
        rows = (len(values) - head) // k
        body = values[head : head + rows * k].reshape(rows, k)
        sums += body.sum(axis=0, dtype=np.float64)
        tail = values[head + rows * k :]
        sums[: len(tail)] += tail


class Listed(Carriers):
    """Carriers at chosen positions, in ascending order: a private filter."""

    @classmethod
    def at(cls, positions: npt.NDArray[np.int64], total: int, pools: int) -> "Listed":
        """Strided pools over these positions; what exceeds a whole number of pools is cut off."""
        ordered = np.asarray(positions, np.int64)
        sound = ordered.ndim == 1 and (np.diff(ordered) > 0).all()
        if not sound or (len(ordered) and not 0 <= ordered[0] <= ordered[-1] < total):
            raise ParameterError("a private filter is a rising list of positions in the tensors")
        return cls(total, pools, "strided", ordered, ordered[:0], (total, len(ordered)))

    def rank(self, position: int) -> int:
        """How many carriers lie before `position`."""
        return min(int(np.searchsorted(self.ones, position)), self.size)

    def positions(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
        """Positions of the carriers with index start … stop-1."""
        return self.ones[start : self.size if stop is None else min(stop, self.size)].copy()


def expected_per_pool(total: int, pools: int, rounds: int) -> float:
    """P to expect of a key not yet known: half of the weights survive each round."""
    return total / 2.0**rounds / pools
