"""Subtracting a public base, to see what the mark moved, and setting that back.

If the model was fine-tuned from weights that anybody can have, the difference to them is training
and mark. An adapter's part has low rank and can be taken out; of the rest, the carriers of a mark
that moved them farther than training did are the largest.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from neuralmark.attacks.contract import Array, Attack, Need, Outcome, Scene, option
from neuralmark.attacks.tools.locating import low_rank, set_back
from neuralmark.errors import DataMismatchError

SHARES = (0.05, 0.1, 0.2, 0.5)
RANKS = (0, 16)


@dataclass(frozen=True)
class Subtract(Attack):
    """Set the weights that differ most from a public base back to it."""

    summary: ClassVar[str] = "set what differs most from a public base back to it"
    expects: ClassVar[str] = "removes a mark that moves weights farther than fine-tuning did"
    needs: ClassVar[frozenset[Need]] = frozenset({"others"})
    dial: ClassVar[str] = "share"

    share: float = option(
        0.1, "share of the weights set back: those that differ most", low=0, high=1
    )
    rank: int = option(
        0,
        "rank of the part of the difference that is kept, such as an adapter's",
        low=0,
        high=65536,
    )

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """From a twentieth to one half; without and with a part of rank 16 kept."""
        return tuple(cls(share, rank) for rank in RANKS for share in SHARES)

    @property
    def variant(self) -> str:
        """The rank that is kept."""
        return f"rank {self.rank}"

    def run(self, scene: Scene) -> Outcome:
        """Tensor by tensor; figures: how far the model is from its base, before and after."""
        made: dict[str, Array] = {}
        norms = np.zeros(3)
        for name, w in scene.targets():
            if not w.size:
                continue
            base = _base(scene, name, w)
            made[name] = self._set_back(w, base)
            norms += [_square(w - base), _square(made[name] - base), _square(base)]
        size = norms[2] or 1.0
        figures = {
            "difference": float(np.sqrt(norms[0] / size)),
            "difference_left": float(np.sqrt(norms[1] / size)),
        }
        return Outcome(made, figures=figures)

    def _set_back(self, w: Array, base: Array) -> Array:
        difference = w - base
        kept = low_rank(difference, min(self.rank, min(_sides(w))))
        return set_back(w, base + kept, _largest(np.abs(difference - kept), self.share))


def _largest(sizes: Array, share: float) -> npt.NDArray[np.int64]:
    """Positions of the largest ones, exactly this share; equal ones in order of position."""
    flat = sizes.reshape(-1)
    count = round(share * flat.size)
    return np.sort(np.argsort(-flat, kind="stable")[:count])


def _sides(w: Array) -> tuple[int, int]:
    """Rows and columns of a tensor as a matrix of outputs by everything else."""
    return (len(w), w.size // len(w)) if w.ndim > 1 else (1, 1)


def _square(w: Array) -> float:
    return float(np.square(w, dtype=np.float64).sum())


def _base(scene: Scene, name: str, w: Array) -> Array:
    """The tensor of this name in the first of the other checkpoints."""
    other = scene.others[0]
    if name not in other:
        raise DataMismatchError(
            f"the base has no tensor {name!r}; give the model that this one was trained from, or"
            " name the tensors to attack"
        )
    if other[name].shape != w.shape:
        raise DataMismatchError(
            f"{name!r} has shape {other[name].shape} in the base, but {w.shape} here; give the"
            " model that this one was trained from, or name the tensors to attack"
        )
    return other[name]
