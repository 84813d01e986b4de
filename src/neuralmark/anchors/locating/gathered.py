"""Which neighbours in a file are which tensor, by what no order, signs or factors change.

Runs of tensors, put together in all ways that fit, are held against the anchor's tensors by their
profiles. Those that do not overlap and are nearest all together are taken; in which of the ways
they were put together, profiles tell only where factors are not rotations.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating.layouts import size_of
from neuralmark.anchors.locating.profiles import Profile, distances, profile
from neuralmark.anchors.locating.restructured import CLOSE, PASSES, length_penalty
from neuralmark.anchors.locating.runs import (
    NeighbourRun,
    RunWay,
    crossings,
    named_order,
    tiled,
    work_of,
)
from neuralmark.anchors.locating.seeking import LIMIT, LOOK
from neuralmark.anchors.locating.suspect import Shape, SuspectWeights
from neuralmark.anchors.locating.views import View

LARGEST = 1 << 24
"""Weights of the largest tensor that is put together."""
FARTHEST = 4.0
"""Profiles that are farther apart than this are not told apart where tensors lie in a row."""
SKIPPED = 4.0
"""What a tensor costs that is no part of anything, as a distance of profiles."""
CROSSED = 0.5
"""What it costs to put tensors together whose names are not of one layer."""
_BUDGET = LIMIT * 2 * LOOK
"""Multiplications that go into products and their profiles."""


@dataclass(frozen=True, eq=False)
class RunParts:
    """Which neighbours are which tensor, and how far from it they are in each way."""

    runs: dict[str, NeighbourRun]
    apart: dict[str, dict[RunWay, float]]
    views: dict[str, dict[RunWay, View]]

    def plans(self) -> Iterator[dict[str, RunWay]]:
        """Ways for all tensors at once: each as its profile tells, then one for all."""
        first = {name: self._first(name) for name in self.apart}
        yield first
        sums: dict[RunWay, list[float]] = defaultdict(list)
        for ways in self.apart.values():
            for way, cost in ways.items():
                sums[way].append(cost)
        kinds: dict[bool, list[RunWay]] = defaultdict(list)
        for way in sorted(sums, key=lambda w: (not w.usual, sum(sums[w]) / len(sums[w]), w.order)):
            kinds[way.axis is None].append(way)
        for number in range(max(map(len, kinds.values()), default=0)):
            now = [kind[number] for kind in kinds.values() if number < len(kind)]
            yield {
                name: next((way for way in now if way in own), first[name])
                for name, own in self.apart.items()
            }

    def _first(self, name: str) -> RunWay:
        """As names tell, else the nearest by profile."""
        order, ways = named_order(self.runs[name].names), self.apart[name]
        told = [way for way in ways if way.axis is not None and way.order == order]
        return min(told or ways, key=lambda way: ways[way])


@dataclass(frozen=True, eq=False)
class RunSightings:
    """Runs of tensors seen as those of the anchor."""

    suspect: SuspectWeights
    anchor: Anchor
    views: dict[tuple[NeighbourRun, str], dict[RunWay, View]] = field(default_factory=dict)
    spent: list[float] = field(default_factory=lambda: [0.0])

    @classmethod
    def of(
        cls,
        suspect: SuspectWeights,
        anchor: Anchor,
        weak: Sequence[str],
        runs: Iterable[NeighbourRun],
    ) -> "RunSightings":
        """All that there is room for."""
        seen = cls(suspect, anchor)
        for run in runs:
            seen.add(run, weak)
        return seen

    def parts(
        self, weak: Sequence[str], tried: Collection[tuple[NeighbourRun, str]], used: set[str]
    ) -> RunParts:
        """Runs that are near these tensors and do not overlap; none that was tried for it."""
        table = {
            key: ways
            for key, ways in self.table.items()
            if key[1] in weak and key not in tried and used.isdisjoint(key[0].names)
        }
        costs: dict[NeighbourRun, float] = {}
        for (run, _), ways in table.items():
            cost = min(*ways.values(), FARTHEST) + CROSSED * crossings(run)
            costs[run] = min(cost, costs.get(run, np.inf))
        length = max((run.stop for run in costs), default=0)
        runs = _assigned(weak, tiled(length, costs, SKIPPED), table)
        apart = _of_one_orientation({name: table[run, name] for name, run in runs.items()})
        return RunParts(runs, apart, {name: self.views[runs[name], name] for name in runs})

    def add(self, run: NeighbourRun, weak: Sequence[str]) -> None:
        """All ways in which a run may be one of these, as long as there is room for it."""
        fused, shapes = _fused(self.anchor), self.suspect.shapes
        kinds = {name: (self.anchor.entry(name).shape, name in fused) for name in weak}
        ways = {
            kind: run.ways(shapes, kind[0], fused=kind[1])
            for kind in dict.fromkeys(kinds.values())
            if size_of(kind[0]) <= LARGEST
        }
        off = {
            (kind, way): length_penalty(kind[0], view.shape(shapes))
            for kind, found in ways.items()
            for way, view in found.items()
        }
        most = min(off.values(), default=0.0) + CLOSE
        near = {
            kind: {way: view for way, view in found.items() if off[kind, way] <= most}
            for kind, found in ways.items()
        }
        if self._afford({view for found in near.values() for view in found.values()}):
            self.views.update({(run, n): near[k] for n, k in kinds.items() if near.get(k)})

    def _afford(self, views: Collection[View]) -> bool:
        shapes = self.suspect.shapes
        cost = sum(work_of(v, shapes) + PASSES * float(size_of(v.shape(shapes))) for v in views)
        if self.spent[0] + cost > _BUDGET:
            return False
        self.spent[0] += cost
        return True

    @cached_property
    def table(self) -> dict[tuple[NeighbourRun, str], dict[RunWay, float]]:
        """How far apart the profiles are."""
        found: dict[tuple[NeighbourRun, str], dict[RunWay, float]] = defaultdict(dict)
        known: dict[View, Profile] = {}
        classes: dict[Shape, dict[str, None]] = defaultdict(dict)
        for _, name in self.views:
            classes[self.anchor.entry(name).shape][name] = None
        for shape, names in classes.items():
            pairs = {k: ways for k, ways in self.views.items() if k[1] in names}
            views = list(dict.fromkeys(view for ways in pairs.values() for view in ways.values()))
            for view in views:
                if view not in known:
                    known[view] = profile(view.read(self.suspect))
            held = [known[view] for view in views]
            mine = [profile(self.anchor[name]) for name in names]
            apart = distances(mine, held)
            shapes = [view.shape(self.suspect.shapes) for view in views]
            apart += np.array([length_penalty(shape, each) for each in shapes])
            rows = {name: row for row, name in enumerate(names)}
            columns = {view: column for column, view in enumerate(views)}
            for (run, name), ways in pairs.items():
                for way, view in ways.items():
                    found[run, name][way] = float(apart[rows[name], columns[view]])
        return dict(found)


def _of_one_orientation(apart: dict[str, dict[RunWay, float]]) -> dict[str, dict[RunWay, float]]:
    """What lengths tell of most matrices holds for square ones too."""
    told = [{way.turned for way in ways} for ways in apart.values()]
    sure = [turned == {True} for turned in told if len(turned) == 1]
    if not sure:
        return apart
    turned = 2 * sum(sure) > len(sure)
    kept = {n: {w: c for w, c in ways.items() if w.turned == turned} for n, ways in apart.items()}
    return {name: kept[name] or ways for name, ways in apart.items()}


def _fused(anchor: Anchor) -> frozenset[str]:
    """Tensors that hold queries, keys and values."""
    structure = anchor.skeleton.structure
    layers = () if structure is None else structure.attentions
    parts = [[side[0].tensor for side in (x.query, x.key, x.value)] for x in layers]
    return frozenset(names[0] for names in parts if len(set(names)) == 1)


def _assigned(
    weak: Sequence[str],
    runs: Sequence[NeighbourRun],
    table: Mapping[tuple[NeighbourRun, str], dict[RunWay, float]],
) -> dict[str, NeighbourRun]:
    """Each tensor the run that is nearest, none twice, all together at best."""
    from scipy.optimize import linear_sum_assignment

    far = 1e6
    costs = np.full((len(weak), len(runs)), far)
    for row, name in enumerate(weak):
        for column, run in enumerate(runs):
            if (run, name) in table:
                costs[row, column] = min(table[run, name].values())
    rows, columns = linear_sum_assignment(costs)
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    return {weak[row]: runs[column] for row, column in pairs if costs[row, column] < far}
