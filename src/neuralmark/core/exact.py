"""The smallest change of the weights that brings numbers exactly to where a mark wants them.

`imprint` writes bits that are signs: every margin has to reach a goal, and more is welcome. Where a
scheme wants the numbers themselves (a coefficient of constant size, a cell of a lattice), this is
least squares: with B the basis of the numbers, the smallest d with Bᵀ(p + d) = targets.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from neuralmark.core.imprint import LeastChange
from neuralmark.core.key import Float, Mark
from neuralmark.errors import InfeasibleError

_MISSED = 1e-6


@dataclass(frozen=True, eq=False)
class Aim(ABC):
    """What numbers a scheme writes, and where they belong.

    `basis` holds a column for each number: numbers = pooled @ basis. Margins and goals are counted
    as `imprint` counts them, in units in which unmarked logits spread as ‖p - mean(p)‖. No margin
    larger than `most` is asked for.
    """

    basis: Float = field(repr=False)
    signs: Float = field(repr=False)
    most: float

    @abstractmethod
    def margins(self, numbers: Float) -> Float:
        """Signed margin of every bit."""

    @abstractmethod
    def targets(self, numbers: Float, goal: float) -> Float:
        """Where the numbers belong for every margin to be `goal`."""


class ExactChange(LeastChange):
    """Solver for schemes whose numbers are to be met, not only passed."""

    steady = True

    def __init__(self, mark: Mark, aim: Aim, effort: Float | float = 1.0) -> None:
        """`effort` as for `LeastChange`; refuses more numbers than there are pools that can move.

        Args:
            mark: The key at one placement.
            aim: What numbers its scheme writes, and where they belong.
            effort: Norm of the change of the weights that a shift of a pool's mean by 1 takes.

        Raises:
            InfeasibleError: More numbers than pools.
        """
        pools, count = aim.basis.shape
        self.most = aim.most
        self._aim = aim
        self._reach = 1.0 / np.broadcast_to(np.asarray(effort, np.float64), (pools,))
        free = int((self._reach > 0).sum())
        if count > free:
            raise InfeasibleError(
                f"{count} numbers of {mark.parameters.scheme} cannot be met in {free} pools: name a"
                " larger tensor, or make a key with fewer bits"
            )
        self._half_spaces = aim.basis * self._reach[:, None]
        self._gram = self._half_spaces.T @ self._half_spaces

    def margins(self, pooled: Float) -> Float:
        """Signed margin of every bit."""
        return self._aim.margins(pooled @ self._aim.basis)

    def change(self, pooled: Float, goal: float) -> Float:
        """Cheapest d after which every number is where it belongs."""
        numbers = pooled @ self._aim.basis
        missing = self._aim.targets(numbers, goal) - numbers
        if not missing.any():
            return np.zeros_like(pooled)
        assert self._gram is not None
        try:
            pushed = np.linalg.solve(self._gram, missing)
        except np.linalg.LinAlgError:
            raise self._stuck() from None
        change: Float = (self._half_spaces @ pushed) * self._reach
        short = np.abs(change @ self._aim.basis - missing).max()
        if not short <= _MISSED * np.abs(missing).max():
            raise self._stuck()
        return change

    def _stuck(self) -> InfeasibleError:
        return InfeasibleError(
            "some bits lie on weights that cannot move (zeros, or values of a coarse grid): mark"
            " more tensors, or the weights before they are pruned or converted"
        )
