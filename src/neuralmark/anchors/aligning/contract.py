"""What the aligner finds for one tensor."""

from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.moves import MISSING, Move, Moves

TOO_LARGE = "too large to align; raise align_limit"
"""Stands among the changes of a tensor that was not looked at."""
UNLIKE = "of another shape"
"""Stands among the changes of a tensor that cannot be the anchor's."""

PERMUTED, FLIPPED = "permuted", "flipped"
JOINED = "split channels joined"


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
