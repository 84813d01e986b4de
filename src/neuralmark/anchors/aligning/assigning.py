"""Which channel of the suspect is which channel of the anchor, from how alike they are (pure).

Up to a few thousand channels: the assignment with the largest sum. Beyond: pairs that are each
other's best, found block by block without ever holding all similarities. Similarities are rounded
to a grid first and ties go to the first, so that another BLAS or thread count decides the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuralmark.anchors.moves import GRID, MISSING, Mask
from neuralmark.errors import AlignLimitError
from neuralmark.structures.structure import Indices

Floats = npt.NDArray[np.floating]
Blocks = Callable[[Indices], Floats]
"""Similarities of some channels of the anchor (rows) to all channels of the suspect (columns)."""

FULL = 2048
"""Up to so many channels on both sides the assignment is exact (at worst some five seconds)."""
_BLOCK = 1 << 22
"""Similarities that are held at once beyond that."""


def require_within(anchor: int, suspect: int, limit: int) -> None:
    """An error where comparing all channels with all others is beyond the limit."""
    if anchor * suspect > limit:
        raise AlignLimitError(
            f"{suspect:,} channels against {anchor:,} are too large to align: raise align_limit"
            f" to {anchor * suspect:,} or more (it is {limit:,})"
        )


@dataclass(frozen=True, eq=False)
class Matching:
    """For each channel of the anchor one of the suspect."""

    index: Indices
    """MISSING where there is none."""
    alike: Floats
    """How alike the two are; 0 where there is none."""
    sure: Mask
    """Whether they are each other's best."""


def matched(blocks: Blocks, anchor: int, suspect: int) -> Matching:
    """The best place of every channel."""
    if max(anchor, suspect) <= FULL:
        return assigned(on_grid(blocks(np.arange(anchor))))
    return _neighbours(blocks, anchor, suspect)


def assigned(similarity: Floats) -> Matching:
    """The assignment with the largest sum."""
    from scipy.optimize import linear_sum_assignment

    index = np.full(len(similarity), MISSING, np.intp)
    if not similarity.size:
        return Matching(index, np.zeros(len(index)), np.zeros(len(index), bool))
    rows, columns = linear_sum_assignment(similarity, maximize=True)
    index[rows] = columns
    there = index != MISSING
    alike = np.where(there, similarity[np.arange(len(index)), index], 0.0)
    sure = there & (alike >= similarity.max(axis=1)) & (alike >= similarity.max(axis=0)[index])
    return Matching(index, alike, sure)


def on_grid(similarity: Floats) -> Floats:
    """Rounded, so that another order of summation gives the same."""
    return np.asarray(np.rint(similarity / GRID) * GRID)


def _neighbours(blocks: Blocks, anchor: int, suspect: int) -> Matching:
    """Pairs that are each other's best, then an assignment of what is left, where it is small."""
    index, alike = _mutual_best(blocks, anchor, suspect)
    sure = index != MISSING
    rows = np.flatnonzero(~sure)
    columns = np.setdiff1d(np.arange(suspect), index)
    if len(rows) and len(columns) and max(len(rows), len(columns)) <= FULL:
        rest = assigned(on_grid(blocks(rows)[:, columns]))
        there = rest.index != MISSING
        index[rows[there]] = columns[rest.index[there]]
        alike[rows[there]] = rest.alike[there]
    return Matching(index, alike, sure)


def _mutual_best(blocks: Blocks, anchor: int, suspect: int) -> tuple[Indices, Floats]:
    step = max(1, _BLOCK // max(suspect, 1))
    best, at = np.full(suspect, -np.inf), np.full(suspect, MISSING, np.intp)
    likest, alike = np.full(anchor, MISSING, np.intp), np.zeros(anchor)
    for start in range(0, anchor, step):
        rows = np.arange(start, min(start + step, anchor))
        part = on_grid(blocks(rows))
        likest[rows] = part.argmax(axis=1)
        alike[rows] = part.max(axis=1)
        top = part.max(axis=0)
        better = top > best
        at[better] = rows[part.argmax(axis=0)[better]]
        best[better] = top[better]
    kept = at[likest] == np.arange(anchor)
    return np.where(kept, likest, MISSING), np.where(kept, alike, 0.0)
