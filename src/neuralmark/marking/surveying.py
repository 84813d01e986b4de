"""A first pass over the tensors to be marked: what they hold, and how far their weights may move.

What is written must look like what was there. So every tensor is looked at before anything is
solved for: on which grid its values lie, whether its zeros must stay, how large its weights are,
and, if the model was made from a public base, how far fine-tuning moved them. A tensor that cannot
carry a mark keeps its place in the list and stays as it is: the list follows from names and shapes
alone, so that a judge arrives at it without being told.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints import Checkpoint
from neuralmark.checkpoints.readers.dtypes import MANTISSA, Raw, decode
from neuralmark.core.carriers import Carriers, Positions
from neuralmark.core.grid import Grid
from neuralmark.core.grid_finding import find_grid
from neuralmark.core.key import Float
from neuralmark.core.update import Update, update_of
from neuralmark.errors import NonFiniteError, UnsuitableTensorError
from neuralmark.marking.placement import Tensor, catalogue
from neuralmark.marking.reading import Progress, Reading

Values = npt.NDArray[np.floating]
"""Weights as decoded: float32, or float64 where the file has that."""

SAMPLED = 1 << 19
"""Weights that are looked at one by one to say what a thief with the base would see."""
_FEWEST = 1 << 12
_UNRELATED = 0.9
_PIECE = 1 << 16
"""Two unrelated tensors differ by 1.4 times their size; fine-tuning moves far less."""


@dataclass(frozen=True, eq=False)
class MarkedPart:
    """A tensor to be marked: where it begins, on which grid it lies, how far its weights move."""

    tensor: Tensor
    start: int
    grid: Grid | None
    """None: it stays as it is."""
    reach: float
    """How far its weights move for a shift of 1: their own size, or how far fine-tuning moved them
    beyond a part of low rank (root mean squares)."""
    why: str = ""
    """Why it stays as it is."""
    update: Update | None = None
    """How it differs from the public base, if there is one."""


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
    base: Values | None = None
    """The public base's values of its carriers, if there is one."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Some weights of a tensor, and what is left of their update without its part of low rank."""

    part: int
    values: Values
    residual: Float
    places: Positions
    carrier: Positions
    """Index among the carriers; -1 for other weights."""
    movable: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Survey:
    """What the tensors hold: their read-out, and what a shift of each pool costs."""

    reading: Reading
    parts: tuple[MarkedPart, ...]
    sums: Float = field(repr=False)
    """For each pool, the reach of its weights that may move, added up."""
    squares: Float = field(repr=False)
    """The same, squared first."""
    samples: tuple[Sample, ...] = field(default=(), repr=False)
    """For a model made from a public base."""

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


@dataclass(frozen=True, eq=False)
class Base:
    """A public checkpoint that the model was made from."""

    checkpoint: Checkpoint
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Base":
        """By canonical names."""
        return cls(checkpoint, {tensor.name: tensor for tensor in catalogue(checkpoint)})

    def values(self, tensor: Tensor) -> Values | None:
        """The base's values of a tensor; None where it has none of this name and shape."""
        mine = self.tensors.get(tensor.name)
        if mine is None or mine.obstacle is not None or mine.info.shape != tensor.info.shape:
            return None
        return _whole(self.checkpoint, mine)[0]


@np.errstate(over="ignore", invalid="ignore")  # what is not finite is found below, and named
def survey(
    checkpoint: Checkpoint,
    tensors: Sequence[Tensor],
    carriers: Carriers,
    *,
    base: Base | None = None,
    progress: Progress | None = None,
) -> Survey:
    """Read the tensors once, each as a whole: memory for a few copies of the largest."""
    pooled, sums, squares = (np.zeros(carriers.pools) for _ in range(3))
    parts: list[MarkedPart] = []
    samples: list[Sample] = []
    digests: dict[str, str] = {}
    start = done = 0
    around = norm = 0.0
    size = sum(tensor.info.nbytes for tensor in tensors)
    for tensor in tensors:
        values, digests[tensor.name] = _whole(checkpoint, tensor)
        norm += _energy(values)
        part, difference = _part(tensor, start, values, base)
        first, at = carriers.between(start, start + len(values))
        chosen = values.take(at)
        carriers.sum_into(pooled, first, chosen)
        around += _energy(chosen)
        if part.grid is not None:
            beside = None if difference is None else chosen - difference.take(at)
            counts = np.zeros(carriers.pools)
            carriers.sum_into(counts, first, movable(part, chosen, at, beside))
            sums += part.reach * counts
            squares += part.reach**2 * counts
        if difference is not None and part.grid is not None:
            share = len(values) / max(carriers.total, 1)
            found = _sampled(part, values, difference, max(_FEWEST, int(SAMPLED * share)))
            samples.append(_counted(found, len(parts), first, at))
        parts.append(part)
        start += len(values)
        done += tensor.info.nbytes
        if progress:
            progress("reading", done, size)
    pooled /= max(carriers.per_pool, 1)
    spread = around - carriers.per_pool * float(pooled @ pooled)
    within = math.sqrt(max(spread, 0.0) / max(carriers.size - carriers.pools, 1))
    reading = Reading(carriers, pooled, within, math.sqrt(norm), digests)
    return Survey(reading, tuple(parts), sums, squares, tuple(samples))


def movable(
    part: MarkedPart, values: Values, places: Positions, base: Values | None
) -> npt.NDArray[np.bool_]:
    """Which of these weights may move.

    None off the grid, no zero of a pruned tensor, and, where fine-tuning left many weights at the
    base's values, none of those.
    """
    assert part.grid is not None
    free: npt.NDArray[np.bool_] = part.grid.movable(values, places)
    if part.update is not None and part.update.sparse and base is not None:
        free = free & (values != base)
    return free


def look(checkpoint: Checkpoint, tensor: Tensor, base: Base | None = None) -> MarkedPart:
    """The grid of one tensor, or why it would stay as it is."""
    return _part(tensor, 0, _whole(checkpoint, tensor)[0], base)[0]


def pieces(
    checkpoint: Checkpoint, part: MarkedPart, carriers: Carriers, base: Base | None = None
) -> Iterator[Piece]:
    """The tensor again, in pieces, with the carriers in each."""
    offset = 0
    sparse = base is not None and part.update is not None and part.update.sparse
    public = base.values(part.tensor) if base is not None and sparse else None
    for raw in checkpoint.read(part.tensor.info.name):
        values = decode(raw, part.tensor.info.dtype)
        start = part.start + offset
        first, at = carriers.between(start, start + len(values))
        beside = None if public is None else public[offset : offset + len(values)].take(at)
        yield Piece(raw, first, at, offset, values.take(at), beside)
        offset += len(values)


def _part(
    tensor: Tensor, start: int, values: Values, base: Base | None
) -> tuple[MarkedPart, Values | None]:
    """What is known of a tensor, and its difference to the base."""
    if not np.isfinite(values).all():
        raise NonFiniteError(f"{tensor.name!r} holds NaN or infinity; repair it before marking")
    row = math.prod(tensor.info.shape[1:])
    try:
        grid = find_grid(values, row, MANTISSA[tensor.info.dtype])
    except UnsuitableTensorError as error:
        return MarkedPart(tensor, start, None, 0.0, str(error)), None
    size = math.sqrt(_energy(values) / max(len(values), 1))
    if base is None:
        return MarkedPart(tensor, start, grid, size), None
    public = base.values(tensor)
    if public is None:
        return MarkedPart(
            tensor, start, None, 0.0, "the base has no tensor of this name and shape"
        ), None
    difference = values - public.astype(values.dtype, copy=False)
    update = update_of(difference, max(len(values) // max(row, 1), 1))
    if update.size > _UNRELATED * size:
        why = "it has nothing in common with the base's: is that the base of this model?"
        return MarkedPart(tensor, start, None, 0.0, why, update), None
    if not update.residual:
        return MarkedPart(tensor, start, None, 0.0, "it is the base's own", update), None
    return MarkedPart(tensor, start, grid, update.residual, update=update), difference


def _sampled(part: MarkedPart, values: Values, difference: Values, count: int) -> Sample:
    """Some of the weights; which of them are carriers is not known yet."""
    assert part.update is not None
    rng = np.random.default_rng(0)
    places = np.unique(rng.integers(0, len(values), min(count, len(values))))
    some = values[places]
    residual = difference[places].astype(np.float64) - part.update.smooth_part(places)
    free = movable(part, some, places, some - difference[places])
    return Sample(0, some, residual, places, np.full(len(places), -1, np.int64), free)


def _counted(sample: Sample, part: int, first: int, at: Positions) -> Sample:
    """The sample, with the indices of its carriers."""
    index = np.searchsorted(at, sample.places)
    known = np.minimum(index, max(len(at) - 1, 0))
    hit = (index < len(at)) & (at[known] == sample.places) if len(at) else index < 0
    carrier = np.where(hit, first + index, -1)
    return Sample(part, sample.values, sample.residual, sample.places, carrier, sample.movable)


def _energy(values: Values) -> float:
    """Sum of squares, in float64, with memory for a piece."""
    starts = range(0, len(values), _PIECE)
    return sum(float(np.square(values[i : i + _PIECE], dtype=np.float64).sum()) for i in starts)


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
