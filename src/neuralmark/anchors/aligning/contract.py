"""What the aligner finds for one tensor."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.moves import MISSING, Move, Moves
from neuralmark.records.alignment import TOO_LARGE

Progress = Callable[[str, int, int], None]
"""Called with what is being done, tensors done, tensors in all."""

ALIKE = 0.9
"""A tensor that is so alike needs no other way to be aligned."""

_NEEDS = re.compile(rf"{TOO_LARGE}: raise align_limit to (\d+)")
UNLIKE = "of another shape"
"""Stands among the changes of a tensor that cannot be the anchor's."""

PERMUTED, FLIPPED = "permuted", "flipped"
JOINED = "split channels joined"


def too_large(suspect: tuple[int, ...], anchor: tuple[int, ...], limit: int) -> str:
    """What to say of a tensor whose axes are beyond the limit; empty where they are not.

    >>> too_large((64, 3), (64, 3), 4000)
    'too large to align: raise align_limit to 4096'
    """
    needed = max((a * b for a, b in zip(suspect[:2], anchor[:2], strict=False)), default=0)
    return f"{TOO_LARGE}: raise align_limit to {needed}" if needed > limit else ""


def limit_needed(changes: Iterable[str]) -> int:
    """The limit that all of these changes ask for; 0 where none does.

    >>> limit_needed(["permuted", "too large to align: raise align_limit to 4096"])
    4096
    """
    found = map(_NEEDS.search, changes)
    return max((int(each[1]) for each in found if each is not None), default=0)


@dataclass(frozen=True, eq=False)
class Aligned:
    """How a suspect's tensor comes into the anchor's coordinates."""

    moves: Moves
    """One for each axis that moves; its factors are signs, sizes are for `factors.rescaled`."""
    changes: tuple[str, ...]
    """What was done to it, in words for the verdict (that it was rescaled, `rescaled` says)."""
    cosine: float
    """Likeness to the anchor when it is moved and rescaled (`factors.likeness`)."""

    @classmethod
    def absent(cls, shape: tuple[int, ...], why: str) -> "Aligned":
        """Nothing of it can be used: every channel is missing."""
        nothing = [Move(np.full(size, MISSING, np.intp)) for size in shape[:2]]
        return cls(tuple(nothing), (why,), 0.0)
