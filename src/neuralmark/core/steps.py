"""Finding the scales of which a tensor's values are integer multiples (quantised weights).

A block's largest value is d steps for some small integer d: all d are tried on some blocks, then
the ones that held on all of them. Of all scales that explain a block, the simplest is taken.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from neuralmark.core.grid import DOUBLE, Ints, Multiples, shortened
from neuralmark.core.key import Float

Values = npt.NDArray[np.floating]

_GROUPS = (128, 64, 32)
_BLOCKS = 64
_SMALLEST = 16
_DISTINCT = 2048
_ROOM = 1 << 16
_NEVER = 1e300
_CROSSED = 0.05
_CAP = 255
_NEEDED_BITS = 60.0
_CHOICE_BITS = 8.0
_CROWD = 8
_FEW = 15
_COMMON = 32
_SHORTEST = 8


@dataclass(frozen=True, eq=False)
class FoundSteps:
    """Multiples that hold, and how often each is used."""

    multiples: Multiples
    seen: Ints = field(repr=False)
    counts: Ints = field(repr=False)
    name: str
    whole: bool
    """Whether one scale serves the whole tensor."""
    unclear: bool
    """Whether the products were rounded in another way than once, to the nearest."""

    def count(self, multiple: int) -> int:
        """Values that are this multiple of their scale."""
        return int(self.counts[multiple - int(self.seen[0])])

    @property
    def largest(self) -> int:
        """The largest multiple in use, without its sign."""
        return int(np.abs(self.seen[self.counts > 0]).max())

    @property
    def gaps(self) -> bool:
        """Whether a multiple is never used although the ones around it are common."""
        used = np.flatnonzero(self.counts)
        common = np.minimum(self.counts[used[1:]], self.counts[used[:-1]]) >= _COMMON
        return bool(np.any(common & (np.diff(used) > 1)))


@dataclass(frozen=True)
class _Test:
    """When a value counts as a multiple: the file's mantissa bits and its smallest step."""

    mantissa: int
    least: float

    @property
    def slack(self) -> float:
        """Relative error of a value: half a unit in the last place; some more in float32."""
        return 2.0 ** -(self.mantissa - 1 if self.mantissa >= 20 else self.mantissa + 1) * 1.02

    @property
    def share(self) -> float:
        """The share of values that has to fit: bfloat16 blocks do not all tell their scale."""
        return 0.99 if self.mantissa < 10 else 0.999

    def off(self, sizes: Float, steps: Float, errors: float = 1.0) -> npt.NDArray[np.bool_]:
        """Which sizes are not multiples of the steps, by this many errors or more."""
        error = np.abs(sizes - np.rint(sizes / steps) * steps)
        return np.asarray(error > (sizes * self.slack + self.least) * errors)

    def bits(self, sizes: Float, steps: Float) -> Float:
        """How unlikely it is that arbitrary sizes are multiples: minus log2 of the chance."""
        chance = 4 * (sizes * self.slack + self.least)[:, None] / steps
        return np.asarray(-np.log2(np.minimum(chance, 1.0)).sum(axis=0))

    def refined(self, sizes: Float, steps: Float) -> Float:
        """Steps (one for each row of sizes) that explain the sizes; small ones first.

        A step that comes from a rounded largest value may miscount the larger multiples.
        """
        for limit in (16, 64, _CAP) if self.mantissa < 10 else (_CAP,):
            low, high = self.between(sizes, np.rint(sizes / steps[:, None]), limit)
            agree = np.isfinite(high) & ~self.crossed(low, high)
            steps = np.where(agree, _simplest(low, high), steps)
        return steps

    def crossed(self, low: Float, high: Float) -> npt.NDArray[np.bool_]:
        """Where no step gives the sizes by one rounding (in float32 first, for shorter ones)."""
        twice = 2.0**-23 if self.mantissa < 20 else 0.0
        return np.asarray(low > high * (1 + 1e-5 * self.slack + twice))

    def between(self, sizes: Float, multiples: Float, limit: int) -> tuple[Float, Float]:
        """The lowest and highest step that rounds to these sizes, in each row, ties left out."""
        binade = (sizes.view(np.int64) & (0x7FF << DOUBLE)).view(np.float64)
        half = np.maximum(binade * 2.0 ** -(self.mantissa + 1), self.least / 2) * (1 - 1e-6)
        used = (multiples > 0) & (multiples <= limit)
        count = np.where(used, multiples, 1.0)
        low = np.where(used, (sizes - half) / count, 0.0).max(axis=1)
        return low, np.where(used, (sizes + half) / count, np.inf).min(axis=1)


def find_steps(values: Values, row: int, mantissa: int, least: float) -> FoundSteps | None:
    """The coarsest blocks (tensor, rows, groups) in which all values are multiples, if any."""
    test, size, gapped = _Test(mantissa, least), len(values), None
    parts = (block for block in (row, *_GROUPS) if block < size and not row % block)
    blocks = [size, *parts] if size % row == 0 else [size]
    for block in blocks:
        divisors = _divisors(values, block, test) if block >= _SHORTEST else []
        found = _confirmed(values, block, row, divisors, test) if divisors else None
        if found is not None and not found.gaps:
            return found
        gapped = gapped or found
    return gapped


def _divisors(values: Values, block: int, test: _Test) -> list[int]:
    """How many steps the largest values of some blocks are, commonest first; empty if none fit."""
    count, bits, failures = Counter[int](), 0.0, 0
    total = len(values) // block
    chosen = np.unique(np.random.default_rng(0).integers(0, total, 2 * _BLOCKS))[::2]
    for index in chosen.tolist():
        sizes, crowd = _distinct(values[index * block : (index + 1) * block])
        if not len(sizes):
            continue
        divisor, evidence = _fit(sizes, test)
        count[divisor] += divisor > 0
        failures += not divisor
        if 0 < divisor <= _FEW and crowd >= _CROWD * len(sizes):
            evidence = _NEEDED_BITS + _CHOICE_BITS
        bits += max(evidence - _CHOICE_BITS, 0.0)
        if failures > len(chosen) // 20:
            return []
    if bits < max(_NEEDED_BITS, len(chosen) * 4.0):
        return []
    return sorted(filter(None, count), key=lambda divisor: (-count[divisor], divisor))


def _distinct(block: Values) -> tuple[Float, int]:
    """Different absolute values but 0, in order (a part of many), and of how many values."""
    if len(block) > 8 * _DISTINCT:
        picked = block[np.random.default_rng(0).integers(0, len(block), 8 * _DISTINCT)]
        block = np.append(picked, block[[block.argmax(), block.argmin()]])
    nonzero = block[block != 0]
    sizes = np.unique(np.abs(nonzero).astype(np.float64))
    if len(sizes) > _DISTINCT:
        sizes = np.append(sizes[: _DISTINCT - 1], sizes[-1])
    return sizes, len(nonzero)


def _fit(sizes: Float, test: _Test) -> tuple[int, float]:
    """The fewest steps to the largest value for which all are multiples, and the evidence."""
    steps = sizes[-1] / np.arange(1, _CAP + 1)
    fits = np.asarray(~test.off(sizes[:_SMALLEST, None], steps, 2.0).any(axis=0))
    bits = test.bits(sizes[:-1], steps)
    fits[_FEW:] &= bits[_FEW:] > _CHOICE_BITS
    for index in np.flatnonzero(fits).tolist():
        step = test.refined(sizes[None], steps[[index]])
        different = len(np.unique(np.rint(sizes / step)))
        if different >= 0.99 * len(sizes) and test.off(sizes, step).mean() <= 0.01:
            return index + 1, float(bits[index])
    return 0, 0.0


def _confirmed(
    values: Values, block: int, row: int, divisors: list[int], test: _Test
) -> FoundSteps | None:
    """The steps of all blocks, if nearly all values are multiples of them."""
    whole = block == len(values)
    top = max(float(values.max()), -float(values.min()))
    parts, off = [], 0
    shared = test.refined(_distinct(values)[0][None], np.array([top / divisors[0]]))
    for start, rows in _rows(values, block):
        sizes = np.abs(rows)
        steps = np.repeat(shared, len(rows)) if whole else _steps(sizes, divisors, test)
        parts.append(_measured(rows, sizes, steps, test, start))
        off += parts[-1].off
        if off > (1 - test.share) * len(values):
            return None
    anchors = np.concatenate([part.anchors for part in parts])
    steps, low, high, lows, highs, tops = np.concatenate([part.columns for part in parts], axis=1)
    if whole:
        anchors = anchors[[int(tops.argmax())]]
        steps, low, high = steps[:1], low.max(keepdims=True), high.min(keepdims=True)
        lows, highs = lows.min(keepdims=True), highs.max(keepdims=True)
    crossed = test.crossed(low, high) & (steps > 0)
    usable = (steps > 0) & ~crossed
    steps = np.where(usable, _simplest(low, high), _NEVER)
    lows, highs = lows * usable, highs * usable
    kind = "row" if block == row else f"group-of-{block}"
    return FoundSteps(
        Multiples(block, steps, lows, highs, anchors, test.slack),
        np.arange(-_CAP - 1, _CAP + 2),
        np.sum([part.histogram for part in parts], axis=0),
        "multiples of one scale" if whole else f"multiples of {len(steps)} {kind} scales",
        whole,
        bool(crossed.mean() > _CROSSED),
    )


def _rows(values: Values, block: int) -> Iterator[tuple[int, Float]]:
    """Blocks as float64 rows, some at a time; a whole tensor in pieces."""
    width = min(block, _ROOM) if block == len(values) else block
    rows = max(_ROOM // width, 1)
    for start in range(0, len(values), rows * width):
        part = values[start : start + rows * width].astype(np.float64)
        yield start, part.reshape(-1, width) if len(part) % width == 0 else part[None]


def _steps(sizes: Float, divisors: list[int], test: _Test) -> Float:
    """One step for each row, 0 where none fits."""
    tops = sizes.max(axis=1)
    steps, open_rows = np.zeros(len(sizes)), np.flatnonzero(tops)
    others = [divisor for divisor in range(1, _CAP + 1) if divisor not in divisors]
    for divisor in (*divisors, *others):
        if not len(open_rows):
            break
        first = test.off(sizes[open_rows, :32], tops[open_rows, None] / divisor, 2.0)
        rows = open_rows[~first.any(axis=1)]
        tried = test.refined(sizes[rows], tops[rows] / divisor)
        fits = test.off(sizes[rows], tried[:, None]).mean(axis=1) <= 0.01
        steps[rows[fits]] = tried[fits]
        open_rows = np.setdiff1d(open_rows, rows[fits], assume_unique=True)
    return steps


@dataclass(frozen=True, eq=False)
class _Part:
    """What some blocks tell."""

    columns: Float
    anchors: Ints
    off: int
    histogram: Ints


def _measured(rows: Float, sizes: Float, steps: Float, test: _Test, start: int) -> _Part:
    """Multiples, their range, and the range of steps that would round to these values."""
    known = steps > 0
    unit = np.where(known, steps, 1.0)[:, None]
    off = test.off(sizes, unit) | (~known[:, None] & (rows != 0))
    multiples = np.where(off, 0.0, np.rint(rows / unit))
    low, high = test.between(sizes, np.abs(multiples), _CAP)
    inside = np.clip(multiples[~off], -_CAP - 1, _CAP + 1).astype(np.int64)
    lows, highs = multiples.min(axis=1), multiples.max(axis=1)
    return _Part(
        np.stack([steps, low, high, lows, highs, sizes.max(axis=1)]),
        start + np.arange(len(rows)) * rows.shape[1] + sizes.argmax(axis=1),
        int(np.count_nonzero(off)),
        np.bincount(inside + _CAP + 1, minlength=2 * _CAP + 3),
    )


def _simplest(low: Float, high: Float) -> Float:
    """The number with the fewest bits (bfloat16, float16, float32) between two, or the middle.

    Bounds that cross by next to nothing are those of a scale whose products are ties.
    """
    high = np.where(np.isfinite(high), high, low)
    low, high = np.minimum(low, high), np.maximum(low, high)
    best = middle = (low + high) / 2
    for bits in (23, 10, 7):
        short = shortened(middle, bits)
        best = np.where((short >= low) & (short <= high), short, best)
    return best
