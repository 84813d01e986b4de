"""A second look for tensors that nothing in the suspect could be aligned to: layers cut in two.

A layer that was rearranged and factored, W = A·B, is like nothing: neither factor is like it, and
the product is not before it is in order. So products of neighbours are put in order, one by one,
and whichever is then most like the anchor is taken. Chosen by likeness: it costs no trial.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.aligning.contract import Aligned
from neuralmark.anchors.aligning.single import align_single
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating import Located
from neuralmark.anchors.locating.combined import Product
from neuralmark.anchors.locating.suspect import Shape, SuspectWeights
from neuralmark.anchors.locating.views import Stored
from neuralmark.errors import AlignLimitError

WEAK = 0.6
"""A tensor that is less like the anchor after alignment is looked for again."""
ENOUGH = 0.9
"""So much likeness is not looked beyond."""
BETTER = 0.1
"""By so much must a product be more like it."""
NEIGHBOURS = 4
"""Factors lie at most so far from each other in the file."""
MOST_TRIED = 8
"""Products that are put in order for one tensor, at most."""
LARGEST = 1 << 21
"""Weights of the largest tensor that is looked for so: each product takes an alignment."""
_STRETCH = 2.0


def refound(
    suspect: SuspectWeights,
    anchor: Anchor,
    located: Mapping[str, Located],
    aligned: Mapping[str, Aligned],
    limit: int,
) -> dict[str, Located]:
    """Products that are more like the weak ones of the aligned tensors than what was aligned."""
    found: dict[str, Located] = {}
    weak = {name for name, before in aligned.items() if before.cosine < WEAK}
    used = {
        stored
        for name, each in located.items()
        if name not in weak and (each.direct or name in aligned)
        for stored in each.view.stored()
    }
    surplus = shapes_to_spare(suspect.shapes, anchor)
    for name, before in aligned.items():
        free = FreeFactors(suspect.shapes, used, surplus)
        shape = anchor.entry(name).shape
        if before.cosine >= WEAK or len(shape) < 2 or int(np.prod(shape)) > LARGEST:
            continue
        likest, best = None, before.cosine + BETTER
        near = tuple(located[name].view.stored()) if name in located else ()
        for view in products_like(free, shape, near):
            cosine = _cosine(view, suspect, anchor, name, limit)
            if cosine > best:
                likest, best = view, cosine
            if best >= ENOUGH:
                break
        if likest is not None:
            found[name] = Located(likest, 0.0, direct=False, changes=("renamed", likest.change))
            used |= set(likest.stored())
    return found


def _cosine(view: Product, suspect: SuspectWeights, anchor: Anchor, name: str, limit: int) -> float:
    try:
        return align_single(view.read(suspect), anchor[name], limit).cosine
    except AlignLimitError:
        return 0.0


@dataclass(frozen=True)
class FreeFactors:
    """What may be factors: tensors that are nothing else, one of a pair of a shape to spare."""

    shapes: Mapping[str, Shape]
    used: Collection[str]
    surplus: Collection[Shape]

    def pair(self, one: str, two: str) -> bool:
        """Whether two tensors can stand for one: then the model has a tensor more than it had."""
        return self.shapes[one] in self.surplus or self.shapes[two] in self.surplus


def shapes_to_spare(shapes: Mapping[str, Shape], anchor: Anchor) -> frozenset[Shape]:
    """Shapes of which the suspect has more tensors than the original had."""
    had = Counter(shape for _, shape in anchor.skeleton.shapes)
    return frozenset((Counter(shapes.values()) - had).keys())


def products_like(among: FreeFactors, wanted: Shape, near: Collection[str]) -> list[Product]:
    """Neighbours whose product could be the tensor, channels added or removed; the likeliest few.

    First what lies near the part that was taken for it, then what has its lengths.
    """
    shapes, names = among.shapes, list(among.shapes)
    places = [place for place, name in enumerate(names) if name in near] or [0]
    free = [(place, name) for place, name in enumerate(names) if name not in among.used]
    found = []
    for at, one in free:
        for place, two in free:
            apart = abs(place - at)
            near_by = 0 < apart <= NEIGHBOURS and among.pair(one, two)
            if near_by and _fits(shapes[one], shapes[two], wanted):
                off = min(abs(at - each) + abs(place - each) for each in places)
                odd = abs(shapes[one][0] - wanted[0]) + abs(shapes[two][1] - wanted[1])
                found.append((off > 2 * NEIGHBOURS, odd, apart, off, one, two))
    return [Product(Stored(one), Stored(two)) for *_, one, two in sorted(found)[:MOST_TRIED]]


def _fits(left: Shape, right: Shape, wanted: Shape) -> bool:
    """Whether left times right has the kernel of the tensor, and about its channels."""
    if not len(left) == len(right) == len(wanted) or left[1] != right[0]:
        return False
    kernels = left[2:], right[2:]
    if all(any(length > 1 for length in kernel) for kernel in kernels):
        return False
    if tuple(a * b for a, b in zip(*kernels, strict=True)) != wanted[2:]:
        return False
    ends = zip((left[0], right[1]), wanted[:2], strict=True)
    return all(size / _STRETCH <= length <= size * _STRETCH for length, size in ends)
