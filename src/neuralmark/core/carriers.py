"""The hashed filter: which weights carry the mark (docs/method.md, sections 1 and 2).

Two filters grow from the watermark b alone, so nobody can choose them: `Stream`, a keystream
without any period, and `Tiled`, the published one. Both say which carriers lie in any stretch of
the weights without looking at the rest, so a file can be streamed in chunks, and a shard can
compute its own part, with memory for the carriers at hand only.
"""

import hashlib
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from neuralmark.core.encoding import enc
from neuralmark.core.key import TILED, Mark, Pooling
from neuralmark.core.readout import pool_of
from neuralmark.errors import ParameterError

Positions = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float64]

BLOCK = 1 << 16
"""Bits of one piece of the keystream."""
_KEPT_BLOCKS = 1 << 12
"""Pieces that are kept for the next question (32 MB); further ones are grown again."""


@dataclass(frozen=True, eq=False)
class Carriers:
    """The carriers of one watermark in `total` weights, in ascending order of position."""

    total: int
    pools: int
    pooling: Pooling

    @classmethod
    def of(cls, mark: Mark, total: int) -> "Carriers":
        """Carriers of this mark in `total` weights (all marked tensors laid end to end)."""
        p = mark.parameters
        kind = Tiled if p.filter == TILED else StreamCarriers
        return kind.under(mark.bits, p.rounds, total, len(mark.matrix), p.pooling)

    @classmethod
    def everything(cls, total: int, pools: int) -> "Carriers":
        """All weights, unfiltered, in strided pools."""
        return Tiled.under(np.ones(1, np.uint8), 0, total, pools)

    @property
    @abstractmethod
    def survivors(self) -> int:
        """How many weights the filter leaves, before the cut to a whole number of pools."""

    @abstractmethod
    def rank(self, position: int) -> int:
        """How many carriers lie before `position`."""

    @abstractmethod
    def positions(self, start: int = 0, stop: int | None = None) -> Positions:
        """Positions of the carriers with index start … stop-1."""

    @property
    def per_pool(self) -> int:
        """P: how many carriers share a pool."""
        return self.survivors // self.pools

    @property
    def size(self) -> int:
        """Number of carriers, after the cut to a whole number of pools."""
        return self.per_pool * self.pools

    def between(self, low: int, high: int) -> tuple[int, Positions]:
        """The carriers at positions low … high-1: index of the first, and places from `low` on."""
        first, last = self.rank(low), self.rank(high)
        at = self.positions(first, last)
        at -= low
        return first, at

    def sparing(self) -> "Carriers":
        """The same carriers, which keep nothing for the next question: for many at a time."""
        return self

    def pool_of(self, start: int, stop: int) -> Positions:
        """Pool of the carriers with index start … stop-1."""
        index = np.arange(start, stop, dtype=np.int64)
        found: Positions = pool_of(index, self.pools, self.per_pool, self.pooling)
        return found

    def spread(self, each: npt.NDArray[np.float64], first: int, count: int) -> Values:
        """A number for each pool, as one for each of `count` carriers from index `first` on."""
        if self.pooling != "strided":
            return each[self.pool_of(first, first + count)]
        return np.resize(np.roll(each, -(first % self.pools)), count)

    def sum_into(
        self,
        sums: npt.NDArray[np.float64],
        first: int,
        values: npt.NDArray[np.floating | np.bool_],
    ) -> None:
        """Add the values of the carriers from index `first` on to the sums of their pools."""
        if self.pooling != "strided":
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


class _Forgetful(dict[tuple[int, int], bytes]):
    """Keeps nothing."""

    def __setitem__(self, place: tuple[int, int], piece: bytes) -> None:
        """Forget it at once."""


@dataclass(frozen=True, eq=False)
class StreamCarriers(Carriers):
    """Carriers under a keystream that is grown from the watermark: no period, nothing to see.

    In each round the i-th survivor of the round before is kept where bit i of the keystream is 1.
    """

    seed: bytes = field(repr=False)
    rounds: int
    _kept: dict[tuple[int, int], bytes] = field(default_factory=dict, repr=False)

    @classmethod
    def under(
        cls, bits: Bits, rounds: int, total: int, pools: int, pooling: Pooling = "strided"
    ) -> "StreamCarriers":
        """Carriers under the keystream of this watermark."""
        packed = np.packbits(bits).tobytes()
        seed = b"neuralmark/filter/2" + enc(packed) + _u64(len(bits))
        return cls(total, pools, pooling, seed, rounds)

    def sparing(self) -> "StreamCarriers":
        """The same carriers; pieces of the keystream are grown again whenever they are needed."""
        return replace(self, _kept=_Forgetful())

    @property
    def survivors(self) -> int:
        """How many weights the filter leaves."""
        return int(self._before[-1][-1]) if self.rounds else self.total

    def rank(self, position: int) -> int:
        """How many carriers lie before `position`."""
        index = min(position, self.total)
        for turn in range(self.rounds):
            index = self._kept_before(turn, index)
        return min(index, self.size)

    def positions(self, start: int = 0, stop: int | None = None) -> Positions:
        """Positions of the carriers with index start … stop-1."""
        stop = self.size if stop is None else min(stop, self.size)
        if stop <= start:
            return np.zeros(0, np.int64)
        low, high = self._position(start), self._position(stop - 1) + 1
        _, at = self.between(low, high)
        at += low
        return at

    def between(self, low: int, high: int) -> tuple[int, Positions]:
        """The carriers at positions low … high-1: index of the first, and places from `low` on."""
        first, count = min(low, self.total), max(min(high, self.total) - low, 0)
        at = np.arange(count, dtype=np.int64) if not self.rounds else None
        for turn in range(self.rounds):
            kept = np.flatnonzero(self._bits(turn, first, first + count))
            at = kept if at is None else at[kept]
            first, count = self._kept_before(turn, first), len(kept)
        assert at is not None
        return min(first, self.size), at[: max(self.size - first, 0)]

    @cached_property
    def _before(self) -> list[Positions]:
        """For each round, how many are kept before each piece of the keystream, and in all."""
        table, left = [], self.total
        for turn in range(self.rounds):
            counts = np.zeros(-(-left // BLOCK) + 1, np.int64)
            for block in range(len(counts) - 1):
                inside = min(left - block * BLOCK, BLOCK)
                counts[block + 1] = _ones_in(self._block(turn, block), inside)
            table.append(np.cumsum(counts))
            left = int(table[-1][-1])
        return table

    def _kept_before(self, turn: int, index: int) -> int:
        """How many of the first `index` that enter a round are kept."""
        block, rest = divmod(index, BLOCK)
        kept = int(self._before[turn][block])
        return kept + _ones_in(self._block(turn, block), rest) if rest else kept

    def _position(self, index: int) -> int:
        """Position of the carrier with this index."""
        for turn in range(self.rounds - 1, -1, -1):
            before = self._before[turn]
            block = int(np.searchsorted(before, index, "right")) - 1
            inside = np.flatnonzero(self._bits(turn, block * BLOCK, (block + 1) * BLOCK))
            index = block * BLOCK + int(inside[index - before[block]])
        return index

    def _bits(self, turn: int, low: int, high: int) -> npt.NDArray[np.bool_]:
        """Bits low … high-1 of a round's keystream."""
        first, last = low // BLOCK, -(-high // BLOCK)
        stream = b"".join(self._block(turn, block) for block in range(first, last))
        bits = np.unpackbits(np.frombuffer(stream, np.uint8)).view(np.bool_)
        return bits[low - first * BLOCK : high - first * BLOCK]

    def _block(self, turn: int, block: int) -> bytes:
        """One piece of a round's keystream."""
        kept = self._kept.get((turn, block))
        if kept is None:
            kept = hashlib.shake_256(self.seed + _u64(turn) + _u64(block)).digest(BLOCK // 8)
            if len(self._kept) < _KEPT_BLOCKS:
                self._kept[turn, block] = kept
        return kept


@dataclass(frozen=True, eq=False)
class Tiled(Carriers):
    """The published filter: b is laid over the weights again and again.

    The published one loops over all weights R times. Here a carrier's position follows from its
    index in O(R), and how many carriers lie before a position as well.
    """

    ones: Positions = field(repr=False)
    before: Positions = field(repr=False)
    lengths: tuple[int, ...] = field(repr=False)

    @classmethod
    def under(
        cls, bits: Bits, rounds: int, total: int, pools: int, pooling: Pooling = "strided"
    ) -> "Tiled":
        """The positions that lie under a 1 of the bits, `rounds` times over."""
        ones = np.flatnonzero(bits).astype(np.int64)
        before = np.concatenate([[0], np.cumsum(bits, dtype=np.int64)])
        lengths = [total]
        for _ in range(rounds):
            lengths.append(lengths[-1] // len(bits) * len(ones))
        return cls(total, pools, pooling, ones, before, tuple(lengths))

    @property
    def survivors(self) -> int:
        """How many weights the filter leaves."""
        return self.lengths[-1]

    def rank(self, position: int) -> int:
        """How many carriers lie before `position`."""
        n = len(self.before) - 1
        index = min(position, self.total)
        for length in self.lengths[1:]:
            whole, rest = divmod(index, n)
            index = min(whole * len(self.ones) + int(self.before[rest]), length)
        return min(index, self.size)

    def positions(self, start: int = 0, stop: int | None = None) -> Positions:
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


@dataclass(frozen=True, eq=False)
class Listed(Carriers):
    """Carriers at chosen positions, in ascending order: a private filter."""

    places: Positions = field(repr=False)

    @classmethod
    def at(cls, positions: Positions, total: int, pools: int) -> "Listed":
        """Strided pools over these positions; what exceeds a whole number of pools is cut off."""
        ordered = np.asarray(positions, np.int64)
        sound = ordered.ndim == 1 and (np.diff(ordered) > 0).all()
        if not sound or (len(ordered) and not 0 <= ordered[0] <= ordered[-1] < total):
            raise ParameterError("a private filter is a rising list of positions in the tensors")
        return cls(total, pools, "strided", ordered)

    @property
    def survivors(self) -> int:
        """How many positions are listed."""
        return len(self.places)

    def rank(self, position: int) -> int:
        """How many carriers lie before `position`."""
        return min(int(np.searchsorted(self.places, position)), self.size)

    def positions(self, start: int = 0, stop: int | None = None) -> Positions:
        """Positions of the carriers with index start … stop-1."""
        return self.places[start : self.size if stop is None else min(stop, self.size)].copy()


def expected_per_pool(total: int, pools: int, rounds: int) -> float:
    """P to expect of a key not yet known: half of the weights survive each round."""
    return total / 2.0**rounds / pools


def _ones_in(stream: bytes, length: int) -> int:
    """How many of the first `length` bits are 1."""
    whole, rest = divmod(length, 8)
    count = int(np.bitwise_count(np.frombuffer(stream, np.uint8, whole)).sum(dtype=np.int64))
    return count + (stream[whole] >> (8 - rest)).bit_count() if rest else count


def _u64(value: int) -> bytes:
    return value.to_bytes(8, "little")
