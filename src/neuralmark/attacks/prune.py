"""Setting weights to zero: at random, the smallest, whole channels, or two of every four.

The share is met exactly in every tensor (rounded to whole weights or channels). Equal magnitudes
go in order of position, so that the result is the same on every machine.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from neuralmark.attacks.contract import Array, Attack, Outcome, Scene, option
from neuralmark.errors import ParameterError

Pruning = Literal["random", "magnitude", "structured", "2:4"]
RANDOM: Final = "random"
MAGNITUDE: Final = "magnitude"
STRUCTURED: Final = "structured"
TWO_OF_FOUR: Final = "2:4"
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Prune(Attack):
    """Set a share of the weights of every tensor to zero."""

    summary: ClassVar[str] = "set a share of the weights to zero"
    expects: ClassVar[str] = "fades with the share; the network is gone first"
    dial: ClassVar[str] = "share"

    share: float = option(0.5, "share of the weights set to zero", low=0, high=1)
    how: Pruning = option(
        MAGNITUDE,
        "which weights go: any, the smallest, the output channels of smallest norm, or the two"
        " smallest of every four along the input dimension",
        choices=get_args(Pruning),
    )

    def __post_init__(self) -> None:
        """Two of four is one half, whatever else is asked for."""
        super().__post_init__()
        if self.how == TWO_OF_FOUR and self.share != 0.5:
            raise ParameterError(
                f"how 2:4 sets one half to zero: leave share at 0.5, not {self.share:g}"
            )

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """Each way from a tenth to 99 %; two of four."""
        ways: tuple[Pruning, ...] = (RANDOM, MAGNITUDE, STRUCTURED)
        graded = tuple(cls(share, how) for how in ways for share in SHARES)
        return (*graded, cls(0.5, TWO_OF_FOUR))

    @property
    def variant(self) -> str:
        """The way of choosing."""
        return self.how

    def run(self, scene: Scene) -> Outcome:
        """Choose tensor by tensor; the share of zeros that results is among the figures."""
        pruned = {
            n: np.where(self._gone(w, scene.rng), np.float32(0), w) for n, w in scene.targets()
        }
        zeros = sum(int((w == 0).sum()) for w in pruned.values())
        return Outcome(
            pruned, figures={"zeros": zeros / max(1, sum(w.size for w in pruned.values()))}
        )

    def _gone(self, w: Array, rng: np.random.Generator) -> Mask:
        if self.how == TWO_OF_FOUR:
            return _two_of_four(w)
        if self.how == STRUCTURED:
            return _channels(w, self.share)
        if self.how == RANDOM:
            values: Array = rng.random(w.size, dtype=np.float32)
        else:
            values = np.abs(w).reshape(-1)
        return _smallest(values, self.share).reshape(w.shape)


def _smallest(values: npt.NDArray[np.floating], share: float) -> Mask:
    """Where the smallest of the values are: exactly this share, ties in order of position."""
    count = round(share * values.size)
    if count == 0:
        return np.zeros(values.shape, np.bool_)
    edge = np.partition(values, count - 1)[count - 1]
    gone: Mask = values < edge
    gone[np.flatnonzero(values == edge)[: count - int(gone.sum())]] = True
    return gone


def _channels(w: Array, share: float) -> Mask:
    """The output channels (first dimension) of smallest norm, whole."""
    rows = np.atleast_1d(w)
    norms = np.square(rows, dtype=np.float64).sum(axis=tuple(range(1, rows.ndim)))
    gone = _smallest(norms, share).reshape(-1, *[1] * (rows.ndim - 1))
    return np.broadcast_to(gone, rows.shape).reshape(w.shape)


def _two_of_four(w: Array) -> Mask:
    """The two smallest of every four along axis 1; a remainder of fewer than four stays."""
    if w.ndim < 2:
        return np.zeros(w.shape, np.bool_)
    sizes = np.moveaxis(np.abs(w), 1, -1)
    whole = sizes.shape[-1] // 4 * 4
    fours = sizes[..., :whole].reshape(*sizes.shape[:-1], whole // 4, 4)
    rank = np.argsort(np.argsort(fours, axis=-1, kind="stable"), axis=-1)
    gone = np.zeros(sizes.shape, np.bool_)
    gone[..., :whole] = (rank < 2).reshape(*sizes.shape[:-1], whole)
    return np.moveaxis(gone, -1, 1)
