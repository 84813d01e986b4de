"""Tensors in a row as one: factors multiplied in every order, parts behind each other (pure).

A layer that was taken apart lies in a few tensors beside each other, whatever they are called.
Square factors fit in any order; so do queries, keys and values that were one tensor. All ways that
give about a shape that is sought are told here; which it was, likeness decides.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

from neuralmark.anchors.locating.combined import Joined, Product
from neuralmark.anchors.locating.layouts import nearly, size_of
from neuralmark.anchors.locating.suspect import Shape, own_name
from neuralmark.anchors.locating.views import Shapes, Stored, Turned, View

COUNTS = (3, 2, 4)
"""Tensors that a layer is put together from, in the order in which that is tried."""
ANY_ORDER = 3
"""So many are multiplied in any order; more as they lie, or the other way round."""
PARTS = 3
"""Queries, keys and values."""
_ROLES = {"q": 0, "query": 0, "k": 1, "key": 1, "v": 2, "value": 2}
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class RunWay:
    """How tensors in a row are put together."""

    order: tuple[int, ...]
    """From the left in a product, from the first in a joined tensor."""
    axis: int | None = None
    """Along which they are joined; None: they are multiplied."""
    turned: bool = False
    """Whether the whole lies the other way round."""

    @property
    def usual(self) -> bool:
        """Whether they lie as they are applied, or the other way round."""
        plain = tuple(range(len(self.order)))
        return self.order in (plain, plain[::-1])


@dataclass(frozen=True)
class NeighbourRun:
    """Tensors that lie in a row."""

    start: int
    names: tuple[str, ...]

    @property
    def stop(self) -> int:
        """Where the next begins."""
        return self.start + len(self.names)

    def ways(self, shapes: Shapes, wanted: Shape, *, fused: bool) -> dict[RunWay, View]:
        """All ways to see them as a tensor of about this shape; `fused`: of three parts too."""
        axes = (None, 0, 1) if fused and len(self.names) == PARTS else (None,)
        found = {}
        for way in (
            RunWay(order, axis) for axis in axes for order in _orders(len(self.names), axis)
        ):
            view = self._seen(way, shapes)
            shape = None if view is None else view.shape(shapes)
            if view is None or shape is None or len(shape) != len(wanted):
                continue
            if nearly(shape, wanted):
                found[way] = view
            if len(shape) == 2 and nearly(shape[::-1], wanted):
                found[RunWay(way.order, way.axis, turned=True)] = Turned(view, (1, 0))
        return found

    def _seen(self, way: RunWay, shapes: Shapes) -> View | None:
        names = [self.names[place] for place in way.order]
        if way.axis is not None:
            return _joined(names, way.axis, shapes)
        made: View = Stored(names[0])
        for name in names[1:]:
            if not _fit(made.shape(shapes), shapes[name]):
                return None
            made = Product(made, Stored(name))
        return made


def runs_of(names: Sequence[str], free: Collection[str], count: int) -> Iterator[NeighbourRun]:
    """All runs of so many of these that are free."""
    for start in range(len(names) - count + 1):
        run = NeighbourRun(start, tuple(names[start : start + count]))
        if all(name in free for name in run.names):
            yield run


def tiled(count: int, costs: Mapping[NeighbourRun, float], skipped: float) -> list[NeighbourRun]:
    """Runs that do not overlap, of the least cost together; what lies in none costs `skipped`.

    >>> one, two = NeighbourRun(0, ("a", "b")), NeighbourRun(1, ("b", "c"))
    >>> three = NeighbourRun(2, ("c",))
    >>> [run.names for run in tiled(3, {one: 0.1, two: 0.05, three: 0.2}, 1.0)]
    [('a', 'b'), ('c',)]
    """
    ending: dict[int, list[NeighbourRun]] = {}
    for run in costs:
        ending.setdefault(run.stop, []).append(run)
    best: list[tuple[float, NeighbourRun | None]] = [(0.0, None)]
    for stop in range(1, count + 1):
        ways: list[tuple[float, NeighbourRun | None]] = [(best[stop - 1][0] + skipped, None)]
        ways += [(best[run.start][0] + costs[run], run) for run in ending.get(stop, ())]
        best.append(min(ways, key=lambda way: way[0]))
    found: list[NeighbourRun] = []
    at = count
    while at:
        last = best[at][1]
        found += [] if last is None else [last]
        at = at - 1 if last is None else last.start
    return found[::-1]


def crossings(run: NeighbourRun) -> int:
    """How often the names of neighbours are not those of one layer.

    >>> crossings(NeighbourRun(0, ("fc.a.weight", "fc.b.weight", "out.a.weight")))
    1
    """
    layers = [_layer(name) for name in run.names]
    return sum(one != two for one, two in pairwise(layers))


def named_order(names: Sequence[str]) -> tuple[int, ...] | None:
    """In which order queries, keys and values lie, where their names tell.

    >>> named_order(["h.0.v_proj.weight", "h.0.k_proj.weight", "h.0.q_proj.weight"])
    (2, 1, 0)
    """
    roles = [[_ROLES[w] for w in _WORD.findall(name.lower()) if w in _ROLES] for name in names]
    last = [role[-1] if role else -1 for role in roles]
    if sorted(last) != list(range(len(names))):
        return None
    return tuple(last.index(part) for part in range(len(names)))


def work_of(view: View, shapes: Shapes) -> float:
    """Multiplications that reading a view takes."""
    mine = 0.0
    if isinstance(view, Product):
        mine = float(size_of(view.shape(shapes))) * view.left.shape(shapes)[1]
    return mine + sum(work_of(part, shapes) for part in view.parts())


def _orders(count: int, axis: int | None) -> Iterator[tuple[int, ...]]:
    plain = tuple(range(count))
    if axis is not None:
        yield from permutations(plain)
    elif count <= ANY_ORDER:
        yield from dict.fromkeys((plain[::-1], plain, *permutations(plain)))
    else:
        yield from (plain[::-1], plain)


def _joined(names: Sequence[str], axis: int, shapes: Shapes) -> View | None:
    lengths = {shapes[name] for name in names}
    same = len(lengths) == 1 and len(next(iter(lengths))) == 2
    return Joined(tuple(map(Stored, names)), axis) if same else None


def _fit(left: Shape, right: Shape) -> bool:
    """Whether one reads what the other makes, and one of them has no kernel."""
    if len(left) != len(right) or left[1] != right[0]:
        return False
    return 1 in (size_of(left[2:]), size_of(right[2:]))


def _layer(name: str) -> str:
    """A name without its last part: what tensors of one layer share."""
    stem = own_name(name).removesuffix(".weight")
    return re.split(r"[._-][^._-]*$", stem)[0] if re.search(r"[._-]", stem) else ""
