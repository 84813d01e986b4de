"""Layouts: the ways in which one shape can be stored as another.

Axes of a layer are outputs, inputs and kernel positions, in torch's order. Elsewhere they lie in
other orders (OHWI, HWIO, inputs before outputs), flattened into matrices, with axes split into
heads, or without the kernel of a 1x1 convolution.
"""

from collections.abc import Iterator
from functools import cache

from neuralmark.anchors.locating.shapes import Shape, groups_of
from neuralmark.anchors.locating.views import Shaped, Turned, View

Axes = tuple[int, ...]


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


def layouts(view: View, have: Shape, want: Shape) -> Iterator[View]:
    """All ways to see a stored shape as the anchor's, the plainest first."""
    seen: set[View] = set()
    for found in _layouts(view, have, want):
        if found not in seen:
            seen.add(found)
            yield found


def oriented(view: View, have: Shape, want: Shape, free: int) -> Iterator[View]:
    """All ways to see a stored shape as the anchor's, but for the length of one axis."""
    if len(have) != len(want):
        have = _without_ones(have, len(want))
        if len(have) != len(want):
            return
        view = Shaped(view, have)
    for axes in orders(len(have)):
        lengths = tuple(have[axis] for axis in axes)
        if all(a == b for k, (a, b) in enumerate(zip(lengths, want, strict=True)) if k != free):
            yield _turned(view, axes)


def size_of(shape: Shape) -> int:
    """How many values a shape holds."""
    size = 1
    for length in shape:
        size *= length
    return size


def _layouts(view: View, have: Shape, want: Shape) -> Iterator[View]:
    if have == want:
        yield view
    if len(have) == len(want):
        yield from (v for a, v in _orders_of(view, have) if _lengths(have, a) == want)
    if size_of(have) != size_of(want) or len(have) == len(want) == 1:
        return
    for axes in orders(len(want)):
        stored = [0] * len(want)
        for axis, length in zip(axes, want, strict=True):
            stored[axis] = length
        if _grouped(have, tuple(stored)):
            yield _turned(_shaped(view, have, tuple(stored)), axes)
    for axes, turned in _orders_of(view, have):
        lengths = _lengths(have, axes)
        if _grouped(lengths, want):
            yield _shaped(turned, lengths, want)


def _orders_of(view: View, have: Shape) -> Iterator[tuple[Axes, View]]:
    for axes in orders(len(have)):
        yield axes, _turned(view, axes)


def _lengths(have: Shape, axes: Axes) -> Shape:
    return tuple(have[axis] for axis in axes)


def _grouped(one: Shape, two: Shape) -> bool:
    """Whether axes only fall together or apart: nothing is cut across."""
    for mine, other in groups_of(one, two):
        long = [axis for axis in mine if one[axis] != 1], [axis for axis in other if two[axis] != 1]
        if len(long[0]) > 1 and len(long[1]) > 1:
            return False
    return True


def _turned(view: View, axes: Axes) -> View:
    return view if axes == tuple(range(len(axes))) else Turned(view, axes)


def _shaped(view: View, have: Shape, want: Shape) -> View:
    return view if have == want else Shaped(view, want)


def _without_ones(have: Shape, count: int) -> Shape:
    """With axes of length 1 dropped or added at the end until there are so many."""
    bare = tuple(length for length in have if length != 1)
    return bare + (1,) * (count - len(bare)) if len(bare) <= count else bare


def oriented_nearly(
    view: View, have: Shape, want: Shape, *, any_rows: bool = False
) -> Iterator[View]:
    """All ways to see a stored shape as the anchor's, channels a few more or less.

    Kernels are the same; with `any_rows`, the first axis may have any length.
    """
    if len(have) != len(want):
        have = _without_ones(have, len(want))
        if len(have) != len(want):
            return
        view = Shaped(view, have)
    for axes in orders(len(have)):
        lengths = _lengths(have, axes)
        if nearly((want[0], *lengths[1:]) if any_rows else lengths, want):
            yield _turned(view, axes)


def nearly(have: Shape, want: Shape) -> bool:
    """Whether shapes have one kernel, and channels within a factor of two."""
    near = all(a <= 2 * b and b <= 2 * a for a, b in zip(have[:2], want[:2], strict=True))
    return near and have[2:] == want[2:]
