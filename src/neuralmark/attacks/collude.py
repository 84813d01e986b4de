"""Buyers who lay their copies side by side: where these differ, there is something to hide.

Each copy has a mark of its own, so wherever two differ the mark is. The copies are mixed so that
none of them is left: averaged, weight by weight from a copy drawn at random, the value that most
copies agree on, the median, the smallest or the largest, or one of these two at random. What all
copies share stays as it is, the owner's mark with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Final, Literal, get_args

import numpy as np

from neuralmark.attacks.contract import Array, Attack, Need, Outcome, Scene, option
from neuralmark.errors import DataMismatchError

Mixing = Literal["average", "draw", "majority", "median", "minimum", "maximum", "extremes"]
"""How the weights of several copies become one."""
AVERAGE: Final = "average"
DRAW: Final = "draw"
MAJORITY: Final = "majority"
MEDIAN: Final = "median"
MINIMUM: Final = "minimum"
MAXIMUM: Final = "maximum"
EXTREMES: Final = "extremes"
MIXINGS: tuple[Mixing, ...] = get_args(Mixing)


@dataclass(frozen=True)
class Collude(Attack):
    """Mix the copies that several buyers got."""

    summary: ClassVar[str] = "mix the copies that several buyers got"
    expects: ClassVar[str] = "the owner's mark stays; trace names buyers by what is left of theirs"
    needs: ClassVar[frozenset[Need]] = frozenset({"others"})

    how: Mixing = option(AVERAGE, "how each weight is made of those of the copies", choices=MIXINGS)

    @property
    def variant(self) -> str:
        """The way of mixing."""
        return self.how

    def run(self, scene: Scene) -> Outcome:
        """Mix tensor by tensor."""
        mixture = {
            name: mixed([w, *_same_tensor(scene, name)], self.how, scene.rng)
            for name, w in scene.targets()
            if w.size
        }
        return Outcome(mixture, note=f"{len(scene.others) + 1} copies were mixed")


def mixed(copies: Sequence[Array], how: Mixing, rng: np.random.Generator) -> Array:
    """One tensor made of the same tensor of several copies.

    Args:
        copies: The tensor in each copy.
        how: The way of mixing.
        rng: Where chance comes from.

    Returns:
        The mixture.

    Examples:
        >>> both = [np.zeros(3, np.float32), np.ones(3, np.float32)]
        >>> mixed(both, "average", np.random.default_rng(0)).tolist()
        [0.5, 0.5, 0.5]
    """
    together = np.stack(copies)
    if how == DRAW:
        chosen = rng.integers(len(copies), size=together.shape[1:])
        return np.asarray(np.take_along_axis(together, chosen[None], 0)[0])
    if how == MAJORITY:
        return _agreed(together, rng)
    if how == AVERAGE:
        return np.asarray(together.mean(axis=0, dtype=np.float64).astype(together.dtype))
    if how == MEDIAN:
        return np.asarray(np.median(together, axis=0).astype(together.dtype))
    low, high = together.min(axis=0), together.max(axis=0)
    if how == EXTREMES:
        return np.asarray(np.where(rng.random(low.shape) < 0.5, low, high))
    return np.asarray(low if how == MINIMUM else high)


def _agreed(together: Array, rng: np.random.Generator) -> Array:
    """The value that most copies have; where no two agree, that of one drawn at random."""
    ordered = np.sort(together, axis=0)
    chosen = rng.integers(len(ordered), size=ordered.shape[1:])
    best = np.asarray(np.take_along_axis(ordered, chosen[None], 0)[0])
    longest = run = np.zeros(ordered.shape[1:], np.int64)
    for former, value in pairwise(ordered):
        run = np.where(value == former, run + 1, 0)
        best = np.where(run > longest, value, best)
        longest = np.maximum(longest, run)
    return best


def _same_tensor(scene: Scene, name: str) -> list[Array]:
    """The tensor in the other copies."""
    found = []
    for number, other in enumerate(scene.others, 1):
        if name not in other or other[name].shape != scene.weights[name].shape:
            raise DataMismatchError(
                f"other checkpoint {number} has no tensor {name!r} of this shape: give copies of"
                " the same model, or name the tensors to mix"
            )
        found.append(other[name])
    return found
