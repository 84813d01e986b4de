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
from neuralmark.anchors.locating.profiles import distances, profile
from neuralmark.anchors.locating.restructured import PASSES, length_penalty
from neuralmark.anchors.locating.runs import Run, Way, crossings, named_order, tiled, work_of
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

    runs: dict[str, Run]
    apart: dict[str, dict[Way, float]]
    views: dict[str, dict[Way, View]]

    def plans(self) -> Iterator[dict[str, Way]]:
        """Ways for all tensors at once: each as its profile tells, then one for all."""
        first = {name: self._first(name) for name in self.apart}
        yield first
        sums: dict[Way, list[float]] = defaultdict(list)
        for ways in self.apart.values():
            for way, cost in ways.items():
                sums[way].append(cost)
        kinds: dict[bool, list[Way]] = defaultdict(list)
        for way in sorted(sums, key=lambda w: (not w.usual, sum(sums[w]) / len(sums[w]), w.order)):
            kinds[way.axis is None].append(way)
        for number in range(max(map(len, kinds.values()), default=0)):
            now = [kind[number] for kind in kinds.values() if number < len(kind)]
            yield {
                name: next((way for way in now if way in own), first[name])
                for name, own in self.apart.items()
            }

    def _first(self, name: str) -> Way:
        """As names tell, else the nearest by profile."""
        order, ways = named_order(self.runs[name].names), self.apart[name]
        told = [way for way in ways if way.axis is not None and way.order == order]
        return min(told or ways, key=lambda way: ways[way])


@dataclass(frozen=True, eq=False)
class RunSightings:
    """Runs of tensors seen as those of the anchor."""

    suspect: SuspectWeights
    anchor: Anchor
    views: dict[tuple[Run, str], dict[Way, View]] = field(default_factory=dict)
    spent: list[float] = field(default_factory=lambda: [0.0])
    charged: set[View] = field(default_factory=set)

    @classmethod
    def of(
        cls, suspect: SuspectWeights, anchor: Anchor, weak: Sequence[str], runs: Iterable[Run]
    ) -> "RunSightings":
        """All that there is room for."""
        seen = cls(suspect, anchor)
        for run in runs:
            seen.add(run, weak)
        return seen

    def parts(
        self, weak: Sequence[str], tried: Collection[tuple[Run, str]], used: set[str]
    ) -> RunParts:
        """Runs that are near these tensors and do not overlap; none that was tried for it."""
        table = {
            key: ways
            for key, ways in self.table.items()
            if key[1] in weak and key not in tried and used.isdisjoint(key[0].names)
        }
        costs: dict[Run, float] = {}
        for (run, _), ways in table.items():
            cost = min(*ways.values(), FARTHEST) + CROSSED * crossings(run)
            costs[run] = min(cost, costs.get(run, np.inf))
        length = max((run.stop for run in costs), default=0)
        runs = _assigned(weak, tiled(length, costs, SKIPPED), table)
        apart = _of_one_orientation({name: table[run, name] for name, run in runs.items()})
        return RunParts(runs, apart, {name: self.views[runs[name], name] for name in runs})

    def add(self, run: Run, weak: Sequence[str]) -> None:
        """All ways in which a run may be one of these, as long as there is room for it."""
        fused = _fused(self.anchor)
        shapes = self.suspect.shapes
        ways: dict[tuple[Shape, bool], dict[Way, View]] = {}
        for name in weak:
            shape = self.anchor.entry(name).shape
            kind = shape, name in fused
            if size_of(shape) > LARGEST:
                continue
            if kind not in ways:
                found = run.ways(shapes, shape, fused=kind[1])
                ways[kind] = found if self._afford(found) else {}
            if ways[kind]:
                self.views[run, name] = ways[kind]

    def _afford(self, ways: Mapping[Way, View]) -> bool:
        shapes = self.suspect.shapes
        fresh = {view for view in ways.values() if view not in self.charged}
        cost = sum(work_of(v, shapes) + PASSES * float(size_of(v.shape(shapes))) for v in fresh)
        if self.spent[0] + cost > _BUDGET:
            return False
        self.spent[0] += cost
        self.charged.update(fresh)
        return True

    @cached_property
    def table(self) -> dict[tuple[Run, str], dict[Way, float]]:
        """How far apart the profiles are."""
        found: dict[tuple[Run, str], dict[Way, float]] = defaultdict(dict)
        classes: dict[Shape, dict[str, None]] = defaultdict(dict)
        for _, name in self.views:
            classes[self.anchor.entry(name).shape][name] = None
        for shape, names in classes.items():
            pairs = {k: ways for k, ways in self.views.items() if k[1] in names}
            views = list(dict.fromkeys(view for ways in pairs.values() for view in ways.values()))
            held = [profile(view.read(self.suspect)) for view in views]
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


def _of_one_orientation(apart: dict[str, dict[Way, float]]) -> dict[str, dict[Way, float]]:
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
    weak: Sequence[str], runs: Sequence[Run], table: Mapping[tuple[Run, str], dict[Way, float]]
) -> dict[str, Run]:
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
