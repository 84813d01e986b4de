"""Products: a layer that was factored into two, W = A·B, exactly or nearly.

Nobody's list has it, and it costs nothing: the outputs stay the same, and neither factor is like
the layer. Pairs whose inner lengths agree are multiplied (in samples: some rows of A, some columns
of B), those that lie near each other in the file first.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from neuralmark.anchors.locating.combined import Product, multiplied
from neuralmark.anchors.locating.layouts import oriented, size_of
from neuralmark.anchors.locating.likeness import CONVINCING, finite, matrix
from neuralmark.anchors.locating.seeking import LOOK, Candidate, Found, Quest, Wanted
from neuralmark.anchors.locating.suspect import Shape
from neuralmark.anchors.locating.views import View
from neuralmark.anchors.resembling import resemblance
from neuralmark.structures.structure import Array

MOST_PAIRS = 1 << 16
"""How many pairs are multiplied for tensors of one shape."""
NEIGHBOURS = 8
"""Of many tensors, only those are multiplied that are so near in the file."""
ALIKE = 0.25
"""Products must be so alike without their leading directions, which strangers may share: those of
two strangers come to 0.1, of a layer's factors with noise of 0.3 deviations to 0.7 and more."""
FEWEST = 4
"""Values that each row and each column must have: shorter ones are like anything by chance."""
_TOGETHER = 32
_HELD = 256
"""Samples of factors that are held at once."""


@dataclass(frozen=True, eq=False)
class Factor:
    """A tensor that may be one of two factors."""

    view: View
    place: int
    """In the file."""
    inner: int
    kernel: Shape


def by_products(quest: Quest, left: Sequence[Wanted], found: Found) -> list[Candidate]:
    """What is the product of two tensors."""
    classes: dict[Shape, list[Wanted]] = defaultdict(list)
    for wanted in left:
        if len(wanted.shape) > 1 and wanted.entry.rows is None and _told_apart(wanted.shape):
            classes[wanted.shape].append(wanted)
    busy = quest.busy(found)
    if quest.exhausted:
        return []
    return [
        each
        for shape, members in classes.items()
        for each in _of_shape(quest, members, list(islice(_pairs(quest, shape, busy), MOST_PAIRS)))
    ]


def _told_apart(shape: Shape) -> bool:
    """Whether rows and columns are long enough to be compared."""
    return size_of(shape) >= FEWEST * max(shape[:2])


def _of_shape(
    quest: Quest, members: Sequence[Wanted], pairs: Sequence[tuple[Factor, Factor]]
) -> list[Candidate]:
    samples = _Samples(quest, members[0])
    best: dict[str, Candidate] = {}
    for start in range(0, len(pairs), _TOGETHER):
        batch = pairs[start : start + _TOGETHER]
        size = float(members[0].sample.size)
        if not quest.spend(sum(max(size * one.inner, LOOK / 32) for one, _ in batch)):
            break
        made = [samples.product(one, two) for one, two in batch]
        scores = matrix(made, [wanted.sample for wanted in members])
        for wanted, row in zip(members, scores, strict=True):
            least = max(CONVINCING, best[wanted.name].score if wanted.name in best else 0)
            likely = [int(i) for i in np.argsort(-row, kind="stable") if row[i] >= least]
            at = next((i for i in likely if resemblance(made[i], wanted.sample) >= ALIKE), None)
            if at is not None:
                view = Product(batch[at][0].view, batch[at][1].view)
                best[wanted.name] = quest.judged(view, wanted)
        if len(best) == len(members):
            break
    return list(best.values())


def _pairs(quest: Quest, shape: Shape, busy: set[str]) -> Iterator[tuple[Factor, Factor]]:
    """Factors that fit each other: neighbours in the file first, then all, if they are few."""
    kernel = shape[2:]
    plain = tuple(1 for _ in kernel)
    kinds = dict.fromkeys((kernel, plain))
    lefts = [f for kind in kinds for f in _factors(quest, (shape[0], 0, *kind), 1, busy)]
    rights = [f for kind in kinds for f in _factors(quest, (0, shape[1], *kind), 0, busy)]
    rights.sort(key=lambda each: each.place)
    inner = {each.inner for each in lefts} & {each.inner for each in rights}
    fitting: list[tuple[Factor, Factor]] = []
    for length in sorted(inner):
        ones = [each for each in lefts if each.inner == length]
        twos = [each for each in rights if each.inner == length]
        fitting += [p for p in _coupled(ones, twos) if _meets(p[0].kernel, p[1].kernel, kernel)]
    fitting.sort(key=lambda pair: (not _near(*pair), min(pair[0].place, pair[1].place)))
    return iter(fitting)


def _coupled(ones: Sequence[Factor], twos: Sequence[Factor]) -> Iterator[tuple[Factor, Factor]]:
    """All pairs of few; of many, neighbours."""
    places = [each.place for each in twos]  # in the order of the file
    for one in ones:
        if max(len(ones), len(twos)) <= _HELD:
            near = twos
        else:
            first = bisect_left(places, one.place - NEIGHBOURS)
            near = twos[first : bisect_right(places, one.place + NEIGHBOURS)]
        yield from ((one, two) for two in near if one.place != two.place)


def _near(one: Factor, two: Factor) -> bool:
    return abs(one.place - two.place) <= NEIGHBOURS


def _meets(one: Shape, two: Shape, kernel: Shape) -> bool:
    """Whether one of them reads single positions, so that their product has this kernel."""
    return tuple(a * b for a, b in zip(one, two, strict=True)) == kernel and (
        size_of(one) == 1 or size_of(two) == 1
    )


def _factors(quest: Quest, shape: Shape, free: int, busy: set[str]) -> Iterator[Factor]:
    others = size_of(tuple(length for axis, length in enumerate(shape) if axis != free))
    count = 0
    for place, whole in enumerate(quest.wholes):
        fits = whole.adapter is None and size_of(whole.shape) % others == 0
        if not fits or not busy.isdisjoint(whole.view.stored()):
            continue
        for view in oriented(whole.view, whole.shape, shape, free):
            yield Factor(view, place, size_of(whole.shape) // others, shape[2:])
            count += 1
            if count >= quest.limit:
                return


@dataclass(frozen=True, eq=False)
class _Samples:
    """Samples of factors: rows of left ones, columns of right ones."""

    quest: Quest
    wanted: Wanted
    held: OrderedDict[tuple[View, bool], Array] = field(default_factory=OrderedDict)

    def product(self, one: Factor, two: Factor) -> Array:
        """A sample of the product, as of a whole tensor."""
        return np.asarray(multiplied(self._part(one, left=True), self._part(two, left=False)))

    def _part(self, factor: Factor, *, left: bool) -> Array:
        key = factor.view, left
        if key not in self.held:
            index = self.wanted.index
            ends = tuple(
                None if length == 1 else places
                for length, places in zip(factor.kernel, index[2:], strict=True)
            )
            pair = (index[0], None) if left else (None, index[1])
            self.held[key] = finite(factor.view.take(self.quest.suspect, (*pair, *ends)))
            if len(self.held) > _HELD:
                self.held.popitem(last=False)
        return self.held[key]
