"""Layouts: the ways in which one shape can be stored as another.

Axes of a layer are outputs, inputs and kernel positions, in torch's order. Elsewhere they lie in
other orders (OHWI, HWIO, inputs before outputs), flattened into matrices, with axes split into
heads, or without the kernel of a 1x1 convolution.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from neuralmark.anchors.locating.shapes import Shape, groups_of
from neuralmark.anchors.locating.views import Shaped, Turned, View

Axes = tuple[int, ...]

GROWN = 4
"""Channels may have become so many times more: a thief may split each into several."""
_REMEMBERED = 1 << 14
"""Shapes of a file are few; what fits what is looked up."""


@cache
def orders(count: int) -> tuple[Axes, ...]:
    """The usual orders of so many axes: axis k of the anchor is the stored axis order[k]."""
    kernel = tuple(range(count))
    found = [
        kernel,
        (0, count - 1, *kernel[1:-1]),  # O kernel I
        (count - 1, count - 2, *kernel[:-2]),  # kernel I O
        (1, 0, *kernel[2:]),  # I O kernel
        (count - 2, count - 1, *kernel[:-2]),  # kernel O I
        (count - 1, 0, *kernel[1:-1]),  # I kernel O
    ]
    return tuple(dict.fromkeys(found)) if count > 1 else ((0,) * count,)


@dataclass(frozen=True)
class LayoutWay:
    """How a stored shape becomes another: perhaps reshaped, turned, and reshaped again."""

    first: Shape | None = None
    axes: Axes | None = None
    last: Shape | None = None

    def of(self, view: View) -> View:
        """A view in this way."""
        view = view if self.first is None else Shaped(view, self.first)
        view = view if self.axes is None else Turned(view, self.axes)
        return view if self.last is None else Shaped(view, self.last)


def layouts(view: View, have: Shape, want: Shape) -> Iterator[View]:
    """All ways to see a stored shape as the anchor's, the plainest first."""
    return (way.of(view) for way in _ways(have, want))


def oriented(view: View, have: Shape, want: Shape, free: int) -> Iterator[View]:
    """All ways to see a stored shape as the anchor's, but for the length of one axis."""
    return (way.of(view) for way in _free_ways(have, want, free))


def oriented_nearly(
    view: View, have: Shape, want: Shape, *, any_rows: bool = False
) -> Iterator[View]:
    """All ways to see a stored shape as the anchor's, channels a few more or less.

    Kernels are the same; with `any_rows`, the first axis may have any length.
    """
    return (way.of(view) for way in _near_ways(have, want, any_rows))


def size_of(shape: Shape) -> int:
    """How many values a shape holds."""
    return math.prod(shape)


@lru_cache(_REMEMBERED)
def _ways(have: Shape, want: Shape) -> tuple[LayoutWay, ...]:
    return tuple(dict.fromkeys(_all_ways(have, want)))


def _all_ways(have: Shape, want: Shape) -> Iterator[LayoutWay]:
    if have == want:
        yield LayoutWay()
    if len(have) == len(want):
        yield from (_way(a) for a in orders(len(have)) if _lengths(have, a) == want)
    if math.prod(have) != math.prod(want) or len(have) == len(want) == 1:
        return
    for axes in orders(len(want)):
        stored = [0] * len(want)
        for axis, length in zip(axes, want, strict=True):
            stored[axis] = length
        shape = tuple(stored)
        if _grouped(have, shape):
            yield replace(_way(axes), first=None if have == shape else shape)
    for axes in orders(len(have)):
        shape = _lengths(have, axes)
        if _grouped(shape, want):
            yield replace(_way(axes), last=None if shape == want else want)


@lru_cache(_REMEMBERED)
def _free_ways(have: Shape, want: Shape, free: int) -> tuple[LayoutWay, ...]:
    fixed = [k for k in range(len(want)) if k != free]

    def fits(lengths: Shape) -> bool:
        return all(lengths[k] == want[k] for k in fixed)

    return tuple(_fitting(have, len(want), fits))


@lru_cache(_REMEMBERED)
def _near_ways(have: Shape, want: Shape, any_rows: bool) -> tuple[LayoutWay, ...]:
    def fits(lengths: Shape) -> bool:
        return nearly((want[0], *lengths[1:]) if any_rows else lengths, want)

    found = [*_fitting(have, len(want), fits)]
    if len(have) == 2 < len(want):
        found += _flattened(have, want, fits)
    return tuple(found)


def _flattened(have: Shape, want: Shape, fits: Callable[[Shape], bool]) -> Iterator[LayoutWay]:
    """Ways in which a matrix is a tensor whose kernel fell together with one of its channel axes.

    Outputs or inputs are an axis of their own: else neither length could be told.
    """
    kernel = math.prod(want[2:])
    for axes in orders(len(want)):
        stored = sorted(range(len(want)), key=lambda axis: axes[axis])
        for alone, flat in ((0, 1), (1, 0)):
            own = stored[-alone]
            if own > 1 or have[flat] % kernel:
                continue
            lengths = [0, 0, *want[2:]]
            lengths[own], lengths[1 - own] = have[alone], have[flat] // kernel
            if fits(tuple(lengths)):
                yield replace(_way(axes), first=tuple(lengths[axis] for axis in stored))


def _fitting(have: Shape, count: int, fits: Callable[[Shape], bool]) -> Iterator[LayoutWay]:
    """Ways in which a shape, with axes of length 1 dropped or added, fits."""
    bare = have if len(have) == count else _without_ones(have, count)
    if len(bare) == count:
        first = None if bare == have else bare
        for axes in orders(count):
            if fits(_lengths(bare, axes)):
                yield replace(_way(axes), first=first)


def nearly(have: Shape, want: Shape) -> bool:
    """Whether shapes have one kernel, and channels up to half as many or a few times more."""
    near = all(a <= GROWN * b and b <= 2 * a for a, b in zip(have[:2], want[:2], strict=True))
    return near and have[2:] == want[2:]


def _way(axes: Axes) -> LayoutWay:
    return LayoutWay(axes=None if axes == tuple(range(len(axes))) else axes)


def _lengths(have: Shape, axes: Axes) -> Shape:
    return tuple(have[axis] for axis in axes)


def _grouped(one: Shape, two: Shape) -> bool:
    """Whether axes only fall together or apart: nothing is cut across."""
    for mine, other in groups_of(one, two):
        long = [axis for axis in mine if one[axis] != 1], [axis for axis in other if two[axis] != 1]
        if len(long[0]) > 1 and len(long[1]) > 1:
            return False
    return True


def _without_ones(have: Shape, count: int) -> Shape:
    """With axes of length 1 dropped or added at the end until there are so many."""
    bare = tuple(length for length in have if length != 1)
    return bare + (1,) * (count - len(bare)) if len(bare) <= count else bare
