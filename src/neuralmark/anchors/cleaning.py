"""What was added to the weights and shows itself against the anchor (pure).

What a suspect differs by from the anchor is the mark, the rounding of the anchor, and whatever was
done to the model. The last is seldom even: changes in directions that inputs never take, updates of
low rank, single weights that were hit, pruned ones. All of it is recognised without the key and
costs no trial. What is left, x, has the mark at a known share, the gain; so anchor + x/gain has
all of the mark, the anchor's own scatter included, and only the noise of x. (`weigh` does the
same for many tensors: those with more noise count less.) A wholly trusted suspect is read as it is.

Memory: four times the tensor in float32, and three square matrices of its shorter side (at most
`spectrum.SIDE`) in float64. 4096 x 11008: about 25 s on one core where much was done, one pass over
the weights where little was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from neuralmark.anchors.moves import GRID, Mask
from neuralmark.anchors.spectrum import plan
from neuralmark.errors import NonFiniteError
from neuralmark.structures.structure import Array

LITTLE = 1 / 16
"""Up to this share of the anchor's energy, a difference leaves the bits alone: nothing is done."""
WORTH = 0.9
"""A step is taken where it lowers the noise, for one unit of the mark, to no more than this."""
SHARP = 0.5
"""The same for outliers before directions are known: these may look like outliers, too."""
FAR = 6.0
"""A single difference beyond this many robust deviations is not trusted."""

_ROUNDS = 6
_LARGE = 1 << 23
"""Of more weights than this, outliers and directions are not looked for in turns."""
_SAMPLE = 1 << 20
_FEW_ZEROS = 1e-3
_ROBUST = 1.4826
_LARGEST = 1e6
"""Float32 holds nothing of a mark in a weight that is this many times too large."""
_EDGE = 0.2
_LOW_RANK = 8
_WHERE = ("", " of the inputs", " of the kernel")


@dataclass(frozen=True)
class Trust:
    """What `weigh` must know of a tensor."""

    size: int
    """How many weights it has."""
    gain: float
    """How much of the mark `kept` has, as a factor."""
    noise: float
    """Mean square of what is kept, with the share of the anchor's rounding that is in it."""
    rounding: float
    """Mean square of the anchor's own rounding."""
    little: bool = False
    """Whether all was found and little was done to it: it is read as it is."""


@dataclass(frozen=True, eq=False)
class Cleaned:
    """A suspect's tensor against the anchor: read `fill + factor · kept` (see `weigh`)."""

    kept: Array = field(repr=False)
    """What the suspect differs by and what is trusted; 0 where nothing is."""
    fill: Array = field(repr=False)
    """The anchor."""
    share: float
    """Of the weights and directions, how much is not trusted."""
    notes: tuple[str, ...]
    trust: Trust


@dataclass(frozen=True, eq=False)
class _State:
    """One way to divide a difference into what is trusted and what is not."""

    left: Array
    """What is trusted of it."""
    away: Mask
    """Single weights that are not trusted."""
    even: float = 1.0
    """Share of the weights whose small changes are passed on, outliers considered."""
    gain: float = 1.0
    spread: float = 1.0
    ranks: tuple[tuple[int, int, str], ...] = ()
    """For each filter, how many of how many directions were set aside, and of what."""

    def noise(self, rounding: float) -> float:
        """Mean square of what is trusted, with the anchor's rounding in it."""
        return _square(self.left) + rounding * self.spread * self.even

    def cost(self, rounding: float) -> float:
        """Noise for one unit of the mark."""
        left = self.gain * self.even
        return self.noise(rounding) / left**2 if left > 0 else np.inf


def clean(values: Array, anchor: Array, found: Sequence[Mask]) -> Cleaned:
    """What of a suspect's tensor is trusted. `found`: which rows and columns the suspect has."""
    masks = [np.asarray(mask, np.bool_) for mask in found[: anchor.ndim]]
    whole = all(mask.all() for mask in masks)
    here = (Ellipsis,) if whole else np.ix_(*masks)
    there = anchor[here]
    base = _square(there)
    if not there.size:
        return _nothing(anchor)
    suspect = values[here]
    if not np.isfinite(suspect).all():
        raise NonFiniteError("the suspect's weights hold NaN or infinity: nothing can be read")
    rounding = rounding_of(there)
    with np.errstate(over="ignore"):
        difference = suspect - there
    state, notes = _trusted(suspect, difference, base, rounding)
    kept = state.left
    if not whole:
        kept = np.zeros(anchor.shape, np.float32)
        kept[here] = state.left
    size, part = anchor.size, there.size / anchor.size
    trust = Trust(
        size,
        part * state.even * state.gain,
        part * state.noise(rounding),
        rounding,
        little=whole and not notes and _square(state.left) <= LITTLE * base,
    )
    along = np.prod([1 - rank / side for rank, side, _ in state.ranks])
    return Cleaned(kept, anchor, float(1 - part * state.even * along), notes, trust)


def weigh(parts: Sequence[Trust]) -> tuple[float, ...]:
    """The factor of each tensor's `kept`, so that all together have the whole mark, least noise.

    The factors f minimise the noise Σ size·(f²·noise - 2f·gain·rounding + rounding) of tensors that
    have the mark once: Σ size·f·gain = Σ size. Tensors of which nothing is kept get 0.

    >>> one = Trust(100, 1.0, 0.1, 0.01)
    >>> [round(factor, 2) for factor in weigh([one, replace(one, noise=100.0)])]
    [2.0, 0.0]
    """
    if all(part.little for part in parts):
        return (1.0,) * len(parts)
    held = [part.gain > 0 and part.noise > 0 for part in parts]
    each = [p.gain / p.noise if has else 0.0 for p, has in zip(parts, held, strict=True)]
    size = sum(part.size for part in parts)
    known = sum(p.size * p.gain * e * p.rounding for p, e in zip(parts, each, strict=True))
    scale = sum(p.size * p.gain * e for p, e in zip(parts, each, strict=True))
    if scale <= 0:
        return (0.0,) * len(parts)
    level = max(size - known, 0.0) / scale
    factors = [e * (level + p.rounding) for p, e in zip(parts, each, strict=True)]
    return tuple(round(factor / GRID) * GRID for factor in factors)


def rounding_of(anchor: Array) -> float:
    """Mean square of the rounding of a coarse copy, from the steps of its rows."""
    sizes = np.abs(anchor.reshape(len(anchor), -1))
    steps = np.where(sizes > 0, sizes, np.inf).min(axis=1).astype(np.float64)
    return float(np.square(np.where(np.isfinite(steps), steps, 0.0)).mean() / 12)


def _nothing(anchor: Array) -> Cleaned:
    trust = Trust(anchor.size, 0.0, 0.0, 0.0)
    return Cleaned(np.zeros(anchor.shape, np.float32), anchor, 1.0, (), trust)


def _trusted(
    suspect: Array, difference: Array, base: float, rounding: float
) -> tuple[_State, tuple[str, ...]]:
    """The best of several ways to divide the difference, and what it sets aside."""
    plain = _State(difference, np.zeros(difference.shape, np.bool_))
    if base <= 0 or _square(difference) <= LITTLE * base:
        return plain, ()
    zeros = suspect == 0
    wild = np.abs(difference) > _LARGEST * np.sqrt(base)
    starts = [_without(plain, wild)]
    if zeros.mean() >= _FEW_ZEROS:
        starts.append(_without(plain, wild | zeros))
    if difference.size > _LARGE:
        starts = [min(starts, key=lambda state: state.cost(rounding))]
    states = [_refined(start, rounding) for start in starts]
    best = min(states, key=lambda state: state.cost(rounding))
    if best.cost(rounding) > WORTH * plain.cost(rounding):
        return plain, ()
    return best, _notes(best, zeros, np.sqrt(_square(difference) / base))


def _refined(start: _State, rounding: float) -> _State:
    """Single weights and directions set aside in turns, as long as it helps."""
    best = _without_outliers(start, rounding, SHARP)
    work = best.left
    for _ in range(_ROUNDS if work.size <= _LARGE else 1):
        filtered = _without_directions(work, best.away, rounding)
        if filtered is None:
            break
        state = _without_outliers(_without(filtered, best.away), rounding, WORTH)
        if state.cost(rounding) > WORTH * best.cost(rounding):
            break
        best = state
        if not best.away.any():
            break
        # What the directions say of a weight that is not trusted stands in for it.
        work = np.where(best.away, work - filtered.left, work)
    return best


def _without(state: _State, away: Mask) -> _State:
    """With these weights set aside."""
    if not away.any():
        return state
    left = np.where(away, np.float32(0), state.left)
    return replace(state, left=left, away=away, even=float(1 - away.mean()))


def _without_outliers(state: _State, rounding: float, worth: float) -> _State:
    """With single weights set aside that lie far out, where that helps."""
    sizes = np.abs(state.left)
    deviation = _deviation(sizes, state.away)
    limit = np.float32(FAR * deviation)
    odd = sizes > limit
    if deviation <= 0 or not odd.any():
        return state
    # A threshold cuts off changes of the weights near it as well.
    near = float(((sizes > (1 - _EDGE) * limit) & ~odd).mean()) / _EDGE
    less = _without(state, state.away | odd)
    less = replace(less, even=less.even - near)
    return less if less.cost(rounding) <= worth * state.cost(rounding) else state


def _without_directions(work: Array, away: Mask, rounding: float) -> _State | None:
    """With directions shrunk in which there is most; None where none stands out.

    Of kernels, directions of the outputs, of the inputs and of positions, the best first.
    """
    state = _State(work, away)
    orders = list(_orders(work.ndim))
    while orders:
        plans = [plan(_unfolded(state.left, order), rounding * state.spread) for order in orders]
        best = min(range(len(plans)), key=lambda i: plans[i].cost)
        chosen, order = plans[best], orders.pop(best)
        if chosen.cost > WORTH:
            break
        matrix = _unfolded(state.left, order)
        state = _State(
            _folded(chosen.of(matrix), order, work.shape),
            away,
            gain=state.gain * chosen.gain,
            spread=state.spread * chosen.spread,
            ranks=(*state.ranks, (chosen.rank, min(matrix.shape), _WHERE[order])),
        )
    return state if state.ranks else None


def _orders(dimensions: int) -> tuple[int, ...]:
    """Which axis stands against the others: outputs, inputs, or the kernel's (2)."""
    return (0, 1, 2)[: {0: 0, 1: 0, 2: 1}.get(dimensions, 3)]


def _unfolded(values: Array, order: int) -> Array:
    if order == 2:
        return values.reshape(values.shape[0] * values.shape[1], -1)
    turned = values.swapaxes(0, 1) if order else values
    return turned.reshape(len(turned), -1)


def _folded(matrix: Array, order: int, shape: tuple[int, ...]) -> Array:
    if order != 1:
        return matrix.reshape(shape)
    return matrix.reshape(shape[1], shape[0], *shape[2:]).swapaxes(0, 1)


def _deviation(sizes: Array, away: Mask) -> float:
    """Robust deviation of the weights that are not set aside, from a sample at fixed places."""
    step = -(-sizes.size // _SAMPLE)
    sample = sizes.reshape(-1)[::step][~away.reshape(-1)[::step]]
    return _ROBUST * float(np.median(sample)) if sample.size else 0.0


def _square(values: Array) -> float:
    """Mean square, summed in float64 row by row."""
    if not values.size:
        return 0.0
    rows = values.reshape(len(values), -1)
    return float(np.einsum("ij,ij->i", rows, rows, dtype=np.float64).sum() / values.size)


def _notes(state: _State, zeros: Mask, size: float) -> tuple[str, ...]:
    """In words, what was set aside."""
    notes = []
    pruned = state.away & zeros
    if pruned.any():
        notes.append(f"{_percent(pruned.mean())} of the weights are zeros and were not read")
    others = int(state.away.sum() - pruned.sum())
    if others:
        notes.append(f"{others:,} {'outlier was' if others == 1 else 'outliers were'} set aside")
    notes += [_aside(*each) for each in state.ranks]
    return (*notes, f"what the suspect differs by is {size:.2g} times the anchor")


def _aside(rank: int, side: int, where: str) -> str:
    if not rank:
        return f"directions{where} with more change than others count less"
    if rank * _LOW_RANK <= side:
        return f"a change of rank {rank:,}{where} was set aside"
    return f"changes in {rank:,} of {side:,} directions{where} were set aside"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
