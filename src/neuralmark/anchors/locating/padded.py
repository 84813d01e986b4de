"""Kernels that were padded with zeros, or next to nothing: seen without them too.

A kernel of 3x3 within one of 5x5 computes the same. The zeros must be there for all channels, and
what is inside must have a kernel that is sought.
"""

from collections.abc import Collection, Iterator

import numpy as np

from neuralmark.anchors.locating.layouts import nearly, orders, size_of
from neuralmark.anchors.locating.likeness import finite
from neuralmark.anchors.locating.seeking import Quest
from neuralmark.anchors.locating.suspect import Shape
from neuralmark.anchors.locating.views import Trimmed
from neuralmark.anchors.locating.wholes import Whole

MOST_PLACES = 4
"""Where zeros lie within the kernel too, it may have been in several places: so many are tried."""

NOTHING = 1e-4
"""A share of a tensor's energy that one place of its kernel may have and still count as zero."""

Extents = tuple[tuple[int, int], ...]
"""For each axis the first place that is not nearly zero, and the one behind the last."""


def unpadded(quest: Quest, wholes: Collection[Whole], sought: Collection[Shape]) -> Iterator[Whole]:
    """All that are a kernel that is sought, and zeros around it."""
    for whole in wholes:
        inner = _inner_shapes(whole, sought)
        if not inner:
            continue
        if not quest.spend(float(size_of(whole.shape))):
            return
        extents = _extents(quest, whole)
        for shape in inner:
            for starts in _starts(extents, whole.shape, shape):
                yield Whole(whole.name, Trimmed(whole.view, starts, shape), shape)


def _inner_shapes(whole: Whole, sought: Collection[Shape]) -> list[Shape]:
    """Shapes with a smaller kernel that is sought, in whichever order the axes lie."""
    have = whole.shape
    found: dict[Shape, None] = {}
    alike = [want for want in sought if len(want) == len(have) > 2]
    for want in alike if whole.adapter is None else ():
        for axes in orders(len(have)):
            lengths = tuple(have[axis] for axis in axes)
            fits = nearly((*lengths[:2], *want[2:]), want) and lengths[2:] != want[2:]
            if fits and all(a >= b for a, b in zip(lengths[2:], want[2:], strict=True)):
                inner = list(have)
                for axis, length in zip(axes[2:], want[2:], strict=True):
                    inner[axis] = length
                found[tuple(inner)] = None
    return list(found)


def _extents(quest: Quest, whole: Whole) -> Extents:
    energy = np.square(finite(whole.view.read(quest.suspect)), dtype=np.float64)
    found = []
    for axis in range(energy.ndim):
        others = tuple(k for k in range(energy.ndim) if k != axis)
        each = energy.sum(axis=others)
        places = np.flatnonzero(each > NOTHING * each.sum())
        found.append((int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0))
    return tuple(found)


def _starts(extents: Extents, have: Shape, inner: Shape) -> list[tuple[int, ...]]:
    """Where a part of this shape may begin so that it holds all that is not zero; few."""
    found: list[tuple[int, ...]] = [()]
    for (first, last), length, kept in zip(extents, have, inner, strict=True):
        if length == kept:
            places = range(1)
        elif last == 0:
            return []
        else:
            places = range(max(0, last - kept), min(first, length - kept) + 1)
        found = [(*each, place) for each in found for place in places][:MOST_PLACES]
    return found
