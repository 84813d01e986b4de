"""Stacks, shards and factors as the tensors that they hold, for what is sought by name or profile.

Names tell what belongs together: pieces are numbered, and what is the same in every layer goes by
one name. All ways that give the shape of something sought are offered; likeness decides.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from neuralmark.anchors.locating.combined import Joined, StackItem
from neuralmark.anchors.locating.cuts import fusions_of
from neuralmark.anchors.locating.factored import factored
from neuralmark.anchors.locating.layouts import oriented_nearly
from neuralmark.anchors.locating.seeking import Quest, Wanted
from neuralmark.anchors.locating.suspect import Shape
from neuralmark.anchors.locating.views import Stored, Turned, View
from neuralmark.anchors.locating.wholes import MOST_STACKED, Whole
from neuralmark.core.names import natural

MOST_SHARDS = 64
"""Pieces that a tensor is put together from by their numbers, at most."""
_MOST_NUMBERS = 4
"""Numbers in a name that are looked at."""
_LONGEST = 16
"""Parts of a name that are looked at."""
_NUMBER = re.compile(r"[0-9]+")


def unpacked(quest: Quest, left: Sequence[Wanted]) -> Quest:
    """The same quest in a suspect whose stacks, shards, factors are also seen as what they hold."""
    names = _LayerNames.of([name for name, _ in quest.anchor.skeleton.shapes])
    sought = _Sought(tuple(_shapes(quest, left)), names)
    joined = list(islice(_joined(quest.wholes, sought), quest.limit))
    items = islice(_items((*quest.wholes, *joined), sought), quest.limit)
    products = islice(factored(quest.wholes, names.knows), quest.limit)
    made = [each for each in (*joined, *products) if sought.near(each.shape)]
    return replace(quest, unpacked=(*quest.unpacked, *made, *items))


def _shapes(quest: Quest, left: Sequence[Wanted]) -> dict[Shape, None]:
    """Of what is sought, and of what it may have been fused into."""
    found = dict.fromkeys(each.entry.kept_shape for each in left)
    structure = quest.anchor.skeleton.structure
    names = {each.name for each in left}
    for each in fusions_of(structure, dict(quest.anchor.skeleton.shapes)) if structure else ():
        if not names.isdisjoint(each.names):
            lengths = sum(each.kind.lengths), each.kind.width
            found[lengths[::-1] if each.kind.axis else lengths] = None
    return found


@dataclass(frozen=True)
class _LayerNames:
    """Where the numbers of layers stand in the anchor's names."""

    names: frozenset[str]
    around: frozenset[tuple[str, str]]
    """What stands just before a number, and all that stands behind it."""
    counts: frozenset[int]
    """How many layers have something of one name."""

    @classmethod
    def of(cls, names: Collection[str]) -> "_LayerNames":
        """Of all names with a number of their own between dots."""
        seen: Counter[tuple[str, str]] = Counter()
        for name in names:
            parts = name.split(".")
            for at, part in enumerate(parts):
                if part.isdecimal():
                    seen[".".join(parts[:at][-1:]), ".".join(parts[at + 1 :])] += 1
        return cls(frozenset(names), frozenset(seen), frozenset(seen.values()) - {1})

    def knows(self, name: str) -> bool:
        """Whether a name, or its end, is the anchor's, or that of a stack of its layers."""
        parts = name.split(".")[-_LONGEST:]
        ends = {".".join(parts[at:]) for at in range(len(parts))}
        return not self.names.isdisjoint(ends) or self.numbered(name, 0) is not None

    def counts_layers(self, before: str) -> bool:
        """Whether a number behind this counts layers in the anchor too."""
        container, dot, rest = before.rpartition(".")
        return bool(dot) and not rest and container.rpartition(".")[2] in self._containers

    @cached_property
    def _containers(self) -> frozenset[str]:
        return frozenset(before for before, _ in self.around)

    def numbered(self, name: str, number: int) -> str | None:
        """The name of one layer's tensor, given that of a stack; None where it tells nothing."""
        parts = name.split(".")
        for at in range(len(parts)):
            if (".".join(parts[:at][-1:]), ".".join(parts[at:])) in self.around:
                return ".".join((*parts[:at], str(number), *parts[at:]))
        return None


@dataclass(frozen=True)
class _Sought:
    """What stacks and shards are looked through for."""

    shapes: tuple[Shape, ...]
    names: _LayerNames

    def near(self, shape: Shape) -> bool:
        """Whether a tensor could be one of those sought, in some layout."""
        return any(True for want in self.shapes for _ in oriented_nearly(_ANY, shape, want))

    def layers(self, name: str, before: str, pieces: Iterable[Whole]) -> bool:
        """Whether tensors of one name but for a number are those of several layers."""
        if self.names.counts_layers(before) or self.names.knows(name):
            return self.names.counts_layers(before)
        return _NUMBER.search(name) is None and any(self.about(each.shape) for each in pieces)

    def about(self, shape: Shape) -> bool:
        """Whether a shape is one that is sought, turned or not, a few channels more or less."""
        alike = [sorted(want) for want in self.shapes if len(want) == len(shape)]
        pairs = (zip(want, sorted(shape), strict=True) for want in alike)
        return any(all(4 * a <= 5 * b <= 7 * a for a, b in pair) for pair in pairs)

    def items(self, whole: Whole) -> Iterator[Whole]:
        """What a stack holds, if it could be something sought; under the name of its layer."""
        axes, length = len(whole.shape), whole.shape[0]
        if whole.adapter is not None or axes < 2:
            return
        if axes == 2:  # each matrix would be a stack of vectors
            stacked = length in self.names.counts
            ways: list[tuple[View, Shape]] = [(whole.view, whole.shape)] if stacked else []
        else:
            second = (whole.shape[1], length, *whole.shape[2:])
            turned = Turned(whole.view, (1, 0, *range(2, axes)))
            ways = [(whole.view, whole.shape), (turned, second)]
        for view, (count, *rest) in ways:
            if count <= MOST_STACKED and self.near(tuple(rest)):
                for number in range(count):
                    name = self.names.numbered(whole.name, number) or whole.name
                    yield Whole(name, StackItem(view, number), tuple(rest))


_ANY = Stored("")


def _items(wholes: Iterable[Whole], sought: _Sought) -> Iterator[Whole]:
    return (item for whole in wholes for item in sought.items(whole))


def _joined(wholes: Iterable[Whole], sought: _Sought) -> Iterator[Whole]:
    """Tensors whose names differ in one number, one behind the other along each axis."""
    groups: dict[tuple[str, str, int], dict[str, Whole]] = defaultdict(dict)
    for whole in wholes:
        if whole.adapter is None and len(whole.shape) > 1:
            for number in islice(_NUMBER.finditer(whole.name), _MOST_NUMBERS):
                before, behind = whole.name[: number.start()], whole.name[number.end() :]
                groups[before, behind, len(whole.shape)].setdefault(whole.name, whole)
    for (before, behind, axes), group in groups.items():
        if 1 < len(group) <= MOST_SHARDS:
            pieces = [group[name] for name in sorted(group, key=natural)]
            name = _without(before, behind)
            if not sought.layers(name, before, pieces):
                yield from _along_axes(name, pieces, axes, sought)


def _without(before: str, behind: str) -> str:
    """A name without the part that has the number of a piece."""
    kept = before.rpartition(".")[0], behind.partition(".")[2]
    return ".".join(part for part in kept if part)


def _along_axes(name: str, pieces: Sequence[Whole], axes: int, sought: _Sought) -> Iterator[Whole]:
    for axis in range(min(axes, 3)):
        others = {(*each.shape[:axis], *each.shape[axis + 1 :]) for each in pieces}
        if len(others) == 1:
            length = sum(each.shape[axis] for each in pieces)
            shape = (*pieces[0].shape[:axis], length, *pieces[0].shape[axis + 1 :])
            whole = Whole(name, Joined(tuple(each.view for each in pieces), axis), shape)
            if sought.near(shape) or next(sought.items(whole), None) is not None:
                yield whole
