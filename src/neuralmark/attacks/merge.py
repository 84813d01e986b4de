"""Merging the stolen model with others of the same shape.

Averaging keeps a share of it; task arithmetic adds the differences of several fine-tunes from
their common base, the stolen one among them, all scaled alike (arXiv 2212.04089). Without other
checkpoints, stand-ins are made: every tensor's own weights, shuffled. They have the same
distribution and nothing else in common with the model. The unmarked original, where an attacker
has it, takes as much of the mark and leaves the network whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, get_args

import numpy as np

from neuralmark.attacks.contract import Array, Attack, Outcome, Scene, option
from neuralmark.errors import DataMismatchError

Merging = Literal["average", "task-arithmetic"]
AVERAGE: Final = "average"
TASKS: Final = "task-arithmetic"


@dataclass(frozen=True)
class Merge(Attack):
    """Mix the weights with those of other checkpoints."""

    summary: ClassVar[str] = "merge with other checkpoints: average or task arithmetic"
    expects: ClassVar[str] = "fades with the share that is left of the marked model"
    dial: ClassVar[str] = "share"

    share: float = option(
        0.5,
        "share kept of the marked model; for task arithmetic, the scale of every task",
        low=0,
        high=1,
    )
    how: Merging = option(
        AVERAGE,
        "average with the other checkpoints, or task arithmetic (the first of them is the base)",
        choices=get_args(Merging),
    )

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """From nine tenths down to one tenth; task arithmetic from one half, where it is usual."""
        average = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
        tasks = (0.5, 0.4, 0.3, 0.2, 0.1)
        return (*(cls(share) for share in average), *(cls(share, TASKS) for share in tasks))

    @property
    def variant(self) -> str:
        """The way of merging."""
        return self.how

    def run(self, scene: Scene) -> Outcome:
        """Merge tensor by tensor."""
        merged = {
            name: self._merged(w, _partners(scene, name, self.how))
            for name, w in scene.targets()
            if w.size
        }
        return Outcome(merged, note="" if scene.others else self._confession())

    def _merged(self, w: Array, partners: Sequence[Array]) -> Array:
        share, first = np.float32(self.share), partners[0]
        if self.how == TASKS:
            return first + share * sum((task - first for task in partners[1:]), start=w - first)
        rest = sum(partners[1:], start=first) / np.float32(len(partners))
        return share * w + (1 - share) * rest

    def _confession(self) -> str:
        made = "two stand-ins (base and another task)" if self.how == TASKS else "a stand-in"
        return f"no other checkpoint given: merged with {made}, shuffled weights of this model"


def _partners(scene: Scene, name: str, how: Merging) -> list[Array]:
    """The same tensor in all the other checkpoints, or in stand-ins."""
    mine = scene.weights[name]
    if not scene.others:
        count = 2 if how == TASKS else 1
        return [scene.rng.permutation(mine.reshape(-1)).reshape(mine.shape) for _ in range(count)]
    found = []
    for number, other in enumerate(scene.others, 1):
        if name not in other:
            raise DataMismatchError(
                f"other checkpoint {number} has no tensor {name!r}; merge with a model of the same"
                " architecture, or name the tensors to merge"
            )
        if other[name].shape != mine.shape:
            raise DataMismatchError(
                f"{name!r} has shape {other[name].shape} in other checkpoint {number}, but"
                f" {mine.shape} here; merge with a model of the same architecture, or name the"
                " tensors to merge"
            )
        found.append(other[name])
    return found
