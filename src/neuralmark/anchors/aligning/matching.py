"""Which channel of a suspect is which of the anchor's, given how alike they are (pure).

Short axes are matched by a full assignment. Its time grows with the cube of the length, and whoever
writes a suspect can make it grow so; longer axes are matched by nearest neighbours that choose each
other, block by block, and only what is left over is assigned.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from neuralmark.anchors.moves import GRID, MISSING
from neuralmark.structures.structure import Array, Indices

FULL = 2048
"""The longest axis that is matched by a full assignment (at most some ten seconds)."""

Where = slice | Indices
Likeness = Callable[[Where, Where], Array]
"""How alike some of the anchor's channels and some of the suspect's are."""

_BLOCK = 1 << 24
_ROUNDS = 8
_ALL = slice(None)


def match(likeness: Array, least: float | None = None) -> Indices:
    """For each row of a matrix of likenesses its own column, or MISSING; the sum is the greatest.

    Pairs that are not liker than `least` are none.
    """
    from scipy.optimize import linear_sum_assignment

    rounded = on_grid(likeness)
    found = np.full(rounded.shape[0], MISSING, np.intp)
    if rounded.size:
        rows, columns = linear_sum_assignment(rounded, maximize=True)
        found[rows] = columns
        if least is not None:
            found[rows[rounded[rows, columns] <= least]] = MISSING
    return found


def match_blocks(
    likeness: Likeness, shape: tuple[int, int], limit: int = FULL, least: float | None = None
) -> Indices:
    """The same for axes of any length: a full assignment up to `limit`, neighbours beyond it."""
    if max(shape) <= limit:
        return match(likeness(_ALL, _ALL), least)
    found = np.full(shape[0], MISSING, np.intp)
    rows, columns = np.arange(shape[0]), np.arange(shape[1])
    for _ in range(_ROUNDS):
        if not len(rows) or not len(columns) or max(len(rows), len(columns)) <= limit:
            break
        pairs = _mutual(likeness, rows, columns, least)
        if not len(pairs):
            break
        found[pairs[:, 0]] = pairs[:, 1]
        rows, columns = np.setdiff1d(rows, pairs[:, 0]), np.setdiff1d(columns, pairs[:, 1])
    rows, columns = rows[:limit], columns[:limit]
    if len(rows) and len(columns):
        chosen = match(likeness(rows, columns), least)
        taken = chosen != MISSING
        found[rows[taken]] = columns[chosen[taken]]
    return found


def on_grid(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Likenesses as numbers on the grid; what is no number is the least of all."""
    finite = np.nan_to_num(np.asarray(values, np.float64), nan=-1e9, posinf=1e9, neginf=-1e9)
    rounded: npt.NDArray[np.float64] = np.rint(finite / GRID) * GRID
    return rounded


def _mutual(
    likeness: Likeness, rows: Indices, columns: Indices, least: float | None
) -> npt.NDArray[np.intp]:
    """Pairs in which each is the other's nearest; the first of equals."""
    step = max(1, _BLOCK // len(columns))
    nearest = np.empty(len(rows), np.intp)
    best = np.full(len(columns), -np.inf)
    suitor = np.zeros(len(columns), np.intp)
    for start in range(0, len(rows), step):
        part = slice(start, min(start + step, len(rows)))
        block = on_grid(likeness(_narrowed(rows, part), _narrowed(columns, _ALL)))
        nearest[part] = block.argmax(axis=1)
        nearer = block.max(axis=0) > best
        suitor[nearer] = start + block.argmax(axis=0)[nearer]
        best[nearer] = block.max(axis=0)[nearer]
    chosen = suitor[nearest] == np.arange(len(rows))
    if least is not None:
        chosen &= best[nearest] > least
    return np.column_stack([rows[chosen], columns[nearest[chosen]]])


def _narrowed(indices: Indices, part: slice) -> Where:
    """A slice where the indices are a run: taking a slice copies nothing."""
    taken = indices[part]
    whole = len(taken) and taken[-1] - taken[0] == len(taken) - 1
    return slice(int(taken[0]), int(taken[-1]) + 1) if whole else taken
