"""A first pass over the tensors to be marked: what they hold, and how far their weights may move.

What is written must look like what was there. So every tensor is looked at before anything is
solved for: on which grid its values lie, whether its zeros must stay, how large its weights are.
A tensor that cannot carry a mark keeps its place in the list and stays as it is: the list follows
from names and shapes alone, so that a judge arrives at it without being told.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints import Checkpoint
from neuralmark.checkpoints._dtypes import MANTISSA, Raw, decode
from neuralmark.core.carriers import Carriers, Positions
from neuralmark.core.grid import Grid
from neuralmark.core.grid_finding import find_grid
from neuralmark.core.key import Float
from neuralmark.errors import NonFiniteError, UnsuitableTensorError
from neuralmark.placement import Tensor
from neuralmark.reading import Progress, Reading

Values = npt.NDArray[np.floating]
"""Weights as decoded: float32, or float64 where the file has that."""


@dataclass(frozen=True, eq=False)
class Part:
    """A tensor to be marked: where it begins, on which grid it lies, how far its weights move."""

    tensor: Tensor
    start: int
    grid: Grid | None
    """None: it stays as it is."""
    reach: float
    """How far its weights move for a shift of 1: their own size (root mean square)."""
    why: str = ""
    """Why it stays as it is."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A stretch of a tensor, and its carriers."""

    raw: Raw
    first: int
    """Index of its first carrier among all."""
    at: Positions
    """Places of its carriers in the stretch."""
    offset: int
    """Where the stretch begins in its tensor."""
    values: Values
    """Values of its carriers."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What the tensors hold: their read-out, and what a shift of each pool costs."""

    reading: Reading
    parts: tuple[Part, ...]
    sums: Float = field(repr=False)
    """For each pool, the reach of its weights that may move, added up."""
    squares: Float = field(repr=False)
    """The same, squared first."""

    @property
    def effort(self) -> Float:
        """Norm of the change that shifting a pool's mean by 1 takes; infinite where none can."""
        per_pool = self.reading.carriers.per_pool
        with np.errstate(divide="ignore", invalid="ignore"):
            effort = per_pool * np.sqrt(self.squares) / self.sums
        return np.where(self.sums > 0, effort, np.inf)

    def shifts(self, change: Float) -> Float:
        """By how much weights of reach 1 move, pool by pool, to change the pools' means so."""
        per_pool = self.reading.carriers.per_pool
        return np.where(self.sums > 0, change * per_pool / np.maximum(self.sums, 1e-300), 0.0)


def survey(
    checkpoint: Checkpoint,
    tensors: Sequence[Tensor],
    carriers: Carriers,
    progress: Progress | None = None,
) -> Survey:
    """Read the tensors once, each as a whole: memory for a few copies of the largest."""
    pooled, sums, squares = (np.zeros(carriers.pools) for _ in range(3))
    parts: list[Part] = []
    digests: dict[str, str] = {}
    start = done = 0
    around = norm = 0.0
    size = sum(tensor.info.nbytes for tensor in tensors)
    for tensor in tensors:
        values, digests[tensor.name] = _whole(checkpoint, tensor)
        norm += float(np.square(values, dtype=np.float64).sum())
        part = _part(tensor, start, values)
        first, at = carriers.between(start, start + len(values))
        chosen = values.take(at)
        carriers.sum_into(pooled, first, chosen)
        around += float(np.square(chosen, dtype=np.float64).sum())
        if part.grid is not None:
            reach = np.where(part.grid.movable(chosen, at), part.reach, 0.0)
            carriers.sum_into(sums, first, reach)
            carriers.sum_into(squares, first, reach * reach)
        parts.append(part)
        start += len(values)
        done += tensor.info.nbytes
        if progress:
            progress("reading", done, size)
    pooled /= max(carriers.per_pool, 1)
    spread = around - carriers.per_pool * float(pooled @ pooled)
    within = math.sqrt(max(spread, 0.0) / max(carriers.size - carriers.pools, 1))
    reading = Reading(carriers, pooled, within, math.sqrt(norm), digests)
    return Survey(reading, tuple(parts), sums, squares)


def look(checkpoint: Checkpoint, tensor: Tensor) -> Part:
    """The grid of one tensor, or why it would stay as it is."""
    return _part(tensor, 0, _whole(checkpoint, tensor)[0])


def pieces(checkpoint: Checkpoint, part: Part, carriers: Carriers) -> Iterator[Piece]:
    """The tensor again, in pieces, with the carriers in each."""
    offset = 0
    for raw in checkpoint.read(part.tensor.info.name):
        values = decode(raw, part.tensor.info.dtype)
        start = part.start + offset
        first, at = carriers.between(start, start + len(values))
        yield Piece(raw, first, at, offset, values.take(at))
        offset += len(values)


def grid_of(tensor: Tensor, values: Values) -> Grid:
    """The grid of a tensor's values; raises where they cannot carry a mark."""
    if not np.isfinite(values).all():
        raise NonFiniteError(f"{tensor.name!r} holds NaN or infinity; repair it before marking")
    row = math.prod(tensor.info.shape[1:])
    return find_grid(values, row, MANTISSA[tensor.info.dtype])


def _part(tensor: Tensor, start: int, values: Values) -> Part:
    try:
        grid = grid_of(tensor, values)
    except UnsuitableTensorError as error:
        return Part(tensor, start, None, 0.0, str(error))
    return Part(tensor, start, grid, float(np.sqrt(np.square(values, dtype=np.float64).mean())))


def _whole(checkpoint: Checkpoint, tensor: Tensor) -> tuple[Values, str]:
    """All values of a tensor, and the digest of its bytes."""
    digest = hashlib.sha256()
    dtype = np.float64 if tensor.info.dtype == "F64" else np.float32
    values: Values = np.empty(tensor.info.size, dtype)
    at = 0
    for raw in checkpoint.read(tensor.info.name):
        digest.update(raw.data)
        some = decode(raw, tensor.info.dtype)
        values[at : at + len(some)] = some
        at += len(some)
    return values, digest.hexdigest()
