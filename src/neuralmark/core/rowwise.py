"""The smallest change of the weights where every bit reads weights of its own.

Passports read a bit from one output row of a layer: two bits share no weight. Then each is written
by itself, along the numbers that its weights are multiplied by: no system has to be solved.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from neuralmark.core.exact import ExactChange
from neuralmark.core.key import Float, Mark
from neuralmark.errors import InfeasibleError


@dataclass(frozen=True, eq=False)
class RowReadOut:
    """A linear read-out whose bits share no weight.

    Attributes:
        factors: What each pool is multiplied by.
        owner: The bit that each pool counts for; -1 where it counts for none.
        bits: How many bits there are.
    """

    factors: Float = field(repr=False)
    owner: npt.NDArray[np.int64] = field(repr=False)
    bits: int

    def numbers(self, pooled: Float) -> Float:
        """One number per bit.

        Args:
            pooled: The means of the carriers, one per pool.

        Returns:
            The sum of the pools of every bit, each times its factor.

        Examples:
            >>> read = RowReadOut(np.array([1.0, 2.0, 3.0]), np.array([0, 0, 1]), 2)
            >>> read.numbers(np.ones(3))
            array([3., 3.])
        """
        used = self.owner >= 0
        products = (self.factors * pooled)[used]
        found: Float = np.bincount(self.owner[used], products, self.bits).astype(np.float64)
        return found

    def lengths(self) -> Float:
        """Norm of the factors of every bit.

        Returns:
            One number per bit.

        Examples:
            >>> RowReadOut(np.array([3.0, 4.0]), np.array([0, 0]), 1).lengths()
            array([5.])
        """
        return np.sqrt(self.numbers(self.factors))

    def levelled(self) -> "RowReadOut":
        """The same with factors of every bit so long that unmarked numbers spread as σz.

        Returns:
            A read-out with the same signs; every bit's factors have the norm √pools.

        Examples:
            >>> read = RowReadOut(np.array([3.0, 4.0]), np.array([0, 0]), 1).levelled()
            >>> round(float(read.lengths()[0]) ** 2, 6)
            2.0
        """
        lengths = np.maximum(self.lengths(), 1e-30)
        scale = np.append(math.sqrt(len(self.factors)) / lengths, 0.0)  # the last is for no bit
        return RowReadOut(self.factors * scale[self.owner], self.owner, self.bits)


class RowChange(ExactChange):
    """Solver for read-outs whose bits share no weight."""

    steady = False

    def __init__(self, mark: Mark, read: RowReadOut, effort: Float | float = 1.0) -> None:
        """`effort` as for `LeastChange`.

        Args:
            mark: The key at one placement.
            read: What its bits are read with, levelled.
            effort: Norm of the change of the weights that a shift of a pool's mean by 1 takes.
        """
        self._read, self._signs = read, mark.signs
        shape = read.factors.shape
        self._reach = 1.0 / np.broadcast_to(np.asarray(effort, np.float64), shape)
        self._along = read.factors * self._reach**2
        self._gain = read.numbers(self._along)

    def margins(self, pooled: Float) -> Float:
        """Signed margin of every bit."""
        return self._read.numbers(pooled) * self._signs

    def change(self, pooled: Float, goal: float) -> Float:
        """Cheapest d after which every margin is at least `goal`."""
        missing = np.maximum(goal - self.margins(pooled), 0.0)
        if ((self._gain <= 0) & (missing > 0)).any():
            raise InfeasibleError(
                "some bits lie on rows that cannot move (zeros, or values of a coarse grid): mark"
                " more layers, or the weights before they are pruned or converted"
            )
        pushed = np.append(self._signs * missing / np.maximum(self._gain, 1e-300), 0.0)
        change: Float = self._along * pushed[self._read.owner]
        return change
