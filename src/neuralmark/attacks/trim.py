"""Clipping or zeroing outliers.

A mark that was trained in with a large weight makes carriers stick out of the distribution. Whoever
cuts the tails takes it along, and networks hardly miss them.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, get_args

import numpy as np

from neuralmark.attacks.contract import Array, Attack, Outcome, Scene, option

Trimming = Literal["clip", "zero"]
CLIP: Final = "clip"
ZERO: Final = "zero"
TRIMMINGS: tuple[Trimming, ...] = get_args(Trimming)
REACHES = (6.0, 5.0, 4.0, 3.0, 2.5, 2.0, 1.5, 1.0)
_GAUSSIAN = 1.4826
"""Median distance from the median to deviation, for a Gaussian."""


@dataclass(frozen=True)
class Trim(Attack):
    """Cut off what lies far from the median of a tensor."""

    summary: ClassVar[str] = "clip or zero the outliers of every tensor"
    expects: ClassVar[str] = (
        "a mark within the spread of the weights stays; one that sticks out fades"
    )
    dial: ClassVar[str] = "reach"

    reach: float = option(
        3.0,
        "what lies farther from the median goes, in robust deviations (1.4826 times the median"
        " distance from the median)",
        low=0,
        high=1000,
    )
    how: Trimming = option(
        CLIP, "outliers are clipped to the reach, or set to zero", choices=TRIMMINGS
    )

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """Both ways, from the far tails to a third of the weights."""
        return tuple(cls(reach, how) for how in TRIMMINGS for reach in REACHES)

    @property
    def variant(self) -> str:
        """The way of cutting."""
        return self.how

    def run(self, scene: Scene) -> Outcome:
        """Cut tensor by tensor; the share of weights that were outliers is among the figures."""
        cut, total, trimmed = 0, 0, {}
        for name, w in scene.targets():
            if not w.size:
                continue
            low, high = self._limits(w)
            outside = (w < low) | (w > high)
            kept = np.clip(w, low, high) if self.how == CLIP else np.float32(0)
            trimmed[name] = np.where(outside, kept, w)
            cut, total = cut + int(outside.sum()), total + w.size
        return Outcome(trimmed, figures={"outliers": cut / max(1, total)})

    def _limits(self, w: Array) -> tuple[np.float32, np.float32]:
        """Median less and plus the reach; no limits where the weights have no spread."""
        middle, spread = float(np.median(w)), robust_deviation(w)
        if spread == 0:
            return np.float32(-np.inf), np.float32(np.inf)
        return np.float32(middle - self.reach * spread), np.float32(middle + self.reach * spread)


def robust_deviation(w: Array) -> float:
    """1.4826 times the median distance from the median; of a sparse tensor, of its non-zeros.

    >>> round(robust_deviation(np.array([-1.0, 0.0, 1.0, 100.0])), 4)
    1.4826
    """
    spread = float(np.median(np.abs(w - np.median(w))))
    if spread == 0 and w.any():
        filled = w[w != 0]
        spread = float(np.median(np.abs(filled - np.median(filled))))
    return _GAUSSIAN * spread
