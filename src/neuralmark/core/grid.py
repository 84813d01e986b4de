"""The grid on which a tensor's values lie, and moves that stay on it (docs/method.md, section 4).

A float32 file may hold bfloat16 values, a bfloat16 file multiples of a row's int8 scale. Weights
off that grid would be found by their low bits. `core.grid_finding` finds the grid.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from neuralmark.core.key import Float
from neuralmark.core.readout import Array, namespace

Ints = npt.NDArray[np.int64]

SINGLE = 23
"""Mantissa bits of float32; words of this width hold every coarser format."""

DOUBLE = 52
"""Mantissa bits of float64."""

_PIECE = 1 << 16


@dataclass(frozen=True, eq=False)
class Multiples:
    """Values that are integer multiples of a step, one step for each block of weights."""

    block: int
    """Weights that share a step: the whole tensor, a row, or a group within a row."""
    steps: Float = field(repr=False)
    """One step for each block; beyond all values where the block is not on the grid."""
    lows: Float = field(repr=False)
    """The smallest multiple in each block; nothing below it is written."""
    highs: Float = field(repr=False)
    """The largest multiple in each block; nothing above it is written."""
    anchors: Ints = field(repr=False)
    """Flat position of one largest weight of each block: it stays, since it sets the step."""
    slack: float = 0.0
    """How far a value may be from its multiple, relative to the value."""

    def at(self, positions: Ints) -> "Multiples":
        """Step, range and anchor for each of these flat positions."""
        index = positions // self.block
        return replace(
            self,
            **{name: getattr(self, name)[index] for name in ("steps", "lows", "highs", "anchors")},
        )


@dataclass(frozen=True, eq=False)
class Grid:
    """What a tensor's values have in common; what is written must have it too."""

    name: str
    """In plain words: "bfloat16", "float8 e4m3", "multiples of 64 row scales", ..."""
    mantissa: int
    """Mantissa bits after the leading one that the values use."""
    top: float
    """No written value exceeds this in absolute value."""
    least: float = 0.0
    """The smallest step around zero; 0 where the file's own format decides."""
    zeros_stay: bool = False
    """Exact zeros stay zero (a pruned tensor)."""
    multiples: Multiples | None = None
    """Where the values are integer multiples of a scale."""
    bottom: float = 0.0
    """No weight that is not zero comes closer to it than this: pruning by size left none."""

    def moved(
        self, values: Array, shift: Array, noise: Array, positions: Array | None = None
    ) -> Array:
        """The values plus the shift, on the grid, with means kept by dithered rounding.

        Where a step is larger than the shift, `noise` (uniform in [0, 1), one for each value)
        decides who moves. A zero shift moves nothing; neither does what is not `movable`.
        `positions` are the values' flat positions in the tensor (0, 1, ... when left out); only
        multiples of a scale look at them. These are computed by numpy, for torch tensors too.
        For torch tensors, keep shift and noise in float32 or wider.
        """
        if not isinstance(values, np.ndarray):
            return self._moved(values, shift, noise, positions)
        new = np.empty_like(values)
        shift = np.broadcast_to(shift, values.shape)
        for start in range(0, len(values), _PIECE):
            part = slice(start, start + _PIECE)
            at = np.arange(*part.indices(len(values))) if positions is None else positions[part]
            new[part] = self._moved(values[part], shift[part], noise[part], at)
        return new

    def _moved(self, values: Array, shift: Array, noise: Array, positions: Array | None) -> Array:
        if self.multiples is not None:
            local = self._local(len(values), positions)
            new = self._stepped(_numpy(values), _numpy(shift), _numpy(noise), local)
            return _kind(values, new)
        xp = namespace(values)
        width, word = _word(self.mantissa)
        wide = _cast(values, getattr(xp, f"float{word}"))
        shift = self._inside(wide, shift, noise)
        if self.mantissa == width and not self.least:
            target = _cast(xp.clip(_filled(wide, shift, noise), -self.top, self.top), wide.dtype)
        else:
            target = self._dithered(wide + shift, noise)
        new = _cast(target, values.dtype) + 0.0
        stays = (new == values) | ~self.movable(values) | (abs(values) >= self.top)  # clipped
        if self.bottom:
            stays |= abs(new) < self.bottom
        return xp.where(stays, values, new)

    def movable(self, values: Array, positions: Array | None = None) -> Array:
        """Where a value may move: on the grid, and no zero that has to stay."""
        if self.multiples is None:
            may = self.holds(values)
            return may & (values != 0) if self.zeros_stay else may
        plain = _numpy(values)
        free = self._free(plain, self._local(len(plain), positions))
        return free if plain is values else namespace(values).from_numpy(free).to(values.device)

    def _inside(self, values: Array, shift: Array, noise: Array) -> Array:
        """The shift; anywhere in the room that is left where it leads out of bottom and top.

        Stopping at the bounds would heap weights there; staying would not help the mark.
        """
        if not self.bottom and _largest(values) + _largest(shift) <= self.top:
            return shift
        xp, target = namespace(values), values + shift
        size, new = abs(values), abs(target)
        if self.mantissa >= _word(self.mantissa)[0]:
            noise = _own_noise(values)  # the same wherever a value is, in a shard or in the whole
        outwards = size + _within(self.top - size, new - self.top, noise)
        shift = xp.where(new > self.top, xp.sign(target) * outwards - values, shift)
        if self.bottom:
            inwards = size - _within(size - self.bottom, self.bottom - new, noise)
            shift = xp.where(new < self.bottom, xp.sign(values) * inwards - values, shift)
        return shift

    def holds(self, values: Array) -> Array:
        """Which values have no more digits than the grid."""
        xp = namespace(values)
        width, word = _word(self.mantissa)
        narrow = _cast(values, getattr(xp, f"float{word}"))
        on = narrow == values
        if self.mantissa < width:
            low = (1 << (width - self.mantissa)) - 1
            on &= (narrow.view(getattr(xp, f"int{word}")) & low) == 0
        if self.least:
            on &= xp.floor(narrow / self.least) * self.least == narrow
        return on

    def _dithered(self, target: Array, noise: Array) -> Array:
        """Rounded up or down in magnitude, by chance, so that the mean is the target's."""
        xp = namespace(target)
        width, word = _word(self.mantissa)
        narrow = _cast(target, getattr(xp, f"float{word}"))
        unit, integer = 1 << (width - self.mantissa), getattr(xp, f"int{word}")
        words = narrow.view(integer) + _cast(noise * unit, integer)
        new = (words & -unit).view(narrow.dtype)
        if self.least:
            small = abs(narrow) < 2.0**self.mantissa * self.least
            new[small] = _by_steps(narrow[small] / self.least, noise[small]) * self.least
        return xp.clip(new, -self.top, self.top)

    def _local(self, count: int, positions: Array | None) -> Multiples:
        """What holds at each of these positions; the anchors become distances."""
        assert self.multiples is not None
        at: Ints = np.arange(count) if positions is None else _numpy(positions)
        local = self.multiples.at(at)
        return replace(local, anchors=local.anchors - at)

    def _free(self, values: Float, local: Multiples) -> npt.NDArray[np.bool_]:
        """On the block's grid, not the weight that sets its step, and no zero that stays."""
        off = np.abs(values - np.rint(values / local.steps) * local.steps)
        free = off <= np.abs(values) * local.slack + self.least
        free &= (local.anchors != 0) & (local.lows < local.highs)
        return free & (values != 0) if self.zeros_stay else free

    def _stepped(self, values: Float, shift: Float, noise: Float, local: Multiples) -> Float:
        """The multiples that the shift leads to, as the file would have rounded them."""
        now = np.rint(values / local.steps)
        new = np.clip(_by_steps(now + shift / local.steps, noise), local.lows, local.highs)
        product = np.clip(self.nearest(new * local.steps), -self.top, self.top) + 0.0
        return np.where((new != now) & self._free(values, local), product, values)

    def nearest(self, values: Float) -> Float:
        """Rounded to the nearest value with this grid's mantissa and least step (float64)."""
        short = shortened(values, self.mantissa)
        if not self.least:
            return short
        small = np.abs(values) < 2.0**self.mantissa * self.least
        return np.where(small, np.rint(values / self.least) * self.least, short)


def shortened(values: Float, mantissa: int) -> Float:
    """Rounded to this many mantissa bits, ties to even (float64, no smallest step)."""
    if mantissa >= DOUBLE:
        return values
    low, words = DOUBLE - mantissa, values.view(np.int64)
    words = words + ((1 << (low - 1)) - 1) + ((words >> low) & 1)
    return (words & -(1 << low)).view(np.float64)


def _own_noise(values: Array) -> Array:
    """Numbers in [0, 1) that the digits of a value decide: as good as random at full precision."""
    xp = namespace(values)
    word = 64 if values.dtype == xp.float64 else 32
    words = values.view(getattr(xp, f"int{word}"))
    mixed = (words ^ (words >> 15)) * -1640531535
    return _cast((mixed >> 7) & 0xFFFFFF, xp.float64) / 2.0**24


def _within(room: Array, beyond: Array, noise: Array) -> Array:
    """How much of the room a shift uses that leads so far beyond it: random parts, no jumps.

    All of it where the shift ends at the bound, or far beyond.
    """
    xp = namespace(room)
    room, beyond = xp.clip(room, 0.0, None), xp.clip(beyond, 0.0, None)
    share = beyond / xp.clip(room + beyond, 1e-30, None)
    return room * (1.0 - 4.0 * share * (1.0 - share) * noise)


def _largest(values: Array) -> float:
    """The largest absolute value; 0 of none."""
    return max(float(values.max()), -float(values.min())) if len(values) else 0.0


def _filled(values: Array, shift: Array, noise: Array) -> Array:
    """The sum at full precision, with random digits below those of the value.

    A sum much smaller than its terms would end in zeros, as no other weight does.
    """
    xp = namespace(values)
    size = abs(values)
    if xp.__name__ == "numpy":
        last = np.spacing(size)
    else:
        last = xp.nextafter(size, xp.full_like(size, float("inf"))) - size
    noise, last, fine = (_cast(each, xp.float64) for each in (noise, last, shift))
    filled = xp.where(fine == 0, fine, fine + (noise - 0.5) * last)
    return _cast(values, xp.float64) + filled


def _by_steps(place: Array, noise: Array) -> Array:
    """One of the two integers around each place, by chance; integers stay what they are."""
    xp = namespace(place)
    below = xp.floor(abs(place))
    up = (abs(place) - below) + noise >= 1.0
    return xp.copysign(xp.where(up, below + 1.0, below), place)


def _word(mantissa: int) -> tuple[int, int]:
    """Mantissa bits and size in bits of the float that the work is done in."""
    return (SINGLE, 32) if mantissa <= SINGLE else (DOUBLE, 64)


def _cast(array: Array, dtype: Any) -> Array:
    return array.astype(dtype, copy=False) if isinstance(array, np.ndarray) else array.to(dtype)


def _numpy(array: Array) -> npt.NDArray[Any]:
    if isinstance(array, np.ndarray):
        return array
    array = array.detach().cpu()
    return np.asarray((array.double() if array.is_floating_point() else array).numpy())


def _kind(like: Array, array: Float) -> Array:
    """The array as the same kind (numpy or torch, device, dtype) as another."""
    if isinstance(like, np.ndarray):
        return array
    return namespace(like).from_numpy(array).to(device=like.device, dtype=like.dtype)
