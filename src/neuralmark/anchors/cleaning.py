"""What was added to the weights and shows itself against the anchor (pure).

What a suspect differs by from the anchor is the mark, the rounding of the anchor, and whatever was
done to the model. The last is seldom even: changes in directions that inputs never take, updates of
low rank, single weights that were hit, pruned ones. All of it is recognised without the key and
costs no trial. What is left, x, has the mark at a known share, the gain; so anchor + x/gain has
all of the mark, the anchor's own scatter included, and only the noise of x. (`weigh` does the
same for many tensors: those with more noise count less.) A wholly trusted suspect is read as it is.

Memory: five times the tensor in float32, and three square matrices of its shorter side (at most
`spectrum.SIDE`) in float64. 4096 x 11008: about 25 s on one core where much was done, one pass over
the weights where little was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from neuralmark.anchors.levels import by_size, leftover, overall
from neuralmark.anchors.moves import GRID, Mask
from neuralmark.anchors.residue import LARGE, Aside, Residue, divided, mean_square, untouched
from neuralmark.errors import NonFiniteError
from neuralmark.structures.structure import Array

LITTLE = 1 / 16
"""Up to this share of the anchor's energy, a difference leaves the bits alone: nothing is done."""

_TURNS = 3
_LOW_RANK = 8
_DIRECTIONS = "directions"
_RESCALED = "factors that were hidden by it were divided out"


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
class _Look:
    """A suspect's rows and columns that were found, looked at with one set of factors."""

    residue: Residue
    notes: tuple[str, ...] = ()
    little: bool = False
    rescaled: bool = False


def clean(values: Array, anchor: Array, found: Sequence[Mask]) -> Cleaned:
    """What of a suspect's tensor is trusted. `found`: which rows and columns the suspect has."""
    masks = [np.asarray(mask, np.bool_) for mask in found[: anchor.ndim]]
    whole = all(mask.all() for mask in masks)
    here = (Ellipsis,) if whole else np.ix_(*masks)
    there, suspect = anchor[here], values[here]
    if not there.size:
        trust = Trust(anchor.size, 0.0, 0.0, 0.0)
        return Cleaned(np.zeros(anchor.shape, np.float32), anchor, 1.0, (), trust)
    if not np.isfinite(suspect).all():
        raise NonFiniteError("the suspect's weights hold NaN or infinity: nothing can be read")
    rounding = rounding_of(there)
    look = _best_look(suspect, there, rounding)
    residue, part = look.residue, there.size / anchor.size
    kept = residue.left
    if not whole:
        kept = np.zeros(anchor.shape, np.float32)
        kept[here] = residue.left
    noise = part * residue.noise(rounding)
    trust = Trust(anchor.size, part * residue.gain, noise, rounding, whole and look.little)
    along = np.prod([each.kept for each in residue.aside])
    notes = (*look.notes, *[_RESCALED] * look.rescaled)
    return Cleaned(kept, anchor, float(1 - part * residue.even * along), notes, trust)


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


def _best_look(suspect: Array, anchor: Array, rounding: float) -> _Look:
    """With the factors that leave the least noise."""
    best = _look(suspect, anchor, rounding)
    if best.little:
        return best
    starts = list(_other_sizes(suspect, anchor))
    small = anchor.size <= LARGE
    for other in starts if small else starts[-1:]:
        look = _look(other, anchor, rounding)
        if look.residue.cost(rounding) < best.residue.cost(rounding):
            best, suspect = replace(look, rescaled=True), other
    for _ in range(_TURNS if small else 0):
        left, gain = best.residue.alike()
        factors = leftover(left, anchor, gain)
        if best.little or factors is None:
            break
        suspect = _over(suspect, factors)
        look = _look(suspect, anchor, rounding)
        if look.residue.cost(rounding) >= best.residue.cost(rounding):
            break
        best = replace(look, rescaled=True)
    return best


def _other_sizes(suspect: Array, anchor: Array) -> Iterator[Array]:
    """The suspect with one factor, and with those of its rows and columns, divided out."""
    factor = overall(suspect, anchor)
    if factor != 1.0:
        yield _over(suspect, np.float32(factor))
    sizes = by_size(suspect, anchor)
    if sizes is not None:
        even = _over(suspect, sizes)
        yield _over(even, np.float32(overall(even, anchor)))


def _over(values: Array, factors: Array | np.float32) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(values / factors, np.float32)


def _look(suspect: Array, anchor: Array, rounding: float) -> _Look:
    with np.errstate(over="ignore"):
        difference = suspect - anchor
    base, energy = mean_square(anchor), mean_square(difference)
    if base <= 0 or energy <= LITTLE * base:
        return _Look(untouched(difference), little=base > 0)
    zeros = suspect == 0
    residue = divided(difference, zeros, float(np.sqrt(base)), rounding)
    notes = _notes(residue, zeros)
    if notes:
        size = float(np.sqrt(energy / base))
        notes = (*notes, f"what the suspect differs by is {size:.2g} times the anchor")
    return _Look(residue, notes)


def _notes(residue: Residue, zeros: Mask) -> tuple[str, ...]:
    """In words, what was set aside."""
    notes = []
    pruned = residue.away & zeros
    if pruned.any():
        share = f"{100 * float(pruned.mean()):.2g} %"
        notes.append(f"{share} of the weights are zeros and were not read")
    others = int(residue.away.sum() - pruned.sum())
    if others:
        notes.append(f"{others:,} {'outlier was' if others == 1 else 'outliers were'} set aside")
    return (*notes, *(_told(each) for each in residue.aside))


def _told(aside: Aside) -> str:
    count, total, what = f"{aside.count:,}", f"{aside.total:,}", aside.what
    if not aside.count:
        return f"{what} with more change than others count less"
    if aside.count * _LOW_RANK <= aside.total:
        return f"a change of rank {count}{what.removeprefix(_DIRECTIONS)} was set aside"
    return f"changes in {count} of {total} {what} were set aside"
