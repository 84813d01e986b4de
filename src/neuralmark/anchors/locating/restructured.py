"""What has no direct match: permuted, rescaled or narrowed tensors, candidates for the aligner.

By name where names can be trusted, else by profile, each tensor once. Names are trusted as long as
no other assignment fits the profiles far better: whoever swaps names betrays himself in the sum.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np

from neuralmark.anchors.locating.assigning import one_to_one
from neuralmark.anchors.locating.candidates import namesakes, prefixes
from neuralmark.anchors.locating.kinship import Kin, relatives
from neuralmark.anchors.locating.layouts import Axes, nearly, orders, oriented_nearly, size_of
from neuralmark.anchors.locating.likeness import Scores, convincing, finite
from neuralmark.anchors.locating.profiles import distances, profile
from neuralmark.anchors.locating.seeking import LOOK, Candidate, Found, Quest, Wanted
from neuralmark.anchors.locating.suspect import Shape
from neuralmark.anchors.locating.views import Spaced, Turned, View
from neuralmark.anchors.locating.wholes import Whole
from neuralmark.anchors.moves import Mask
from neuralmark.structures.structure import Array

KNOWN = 0.8
"""A tensor that is this share of convincing is the right one, however damaged."""
TRUSTED = 0.7
"""Names are trusted where the best assignment is not closer than this share of theirs.

Set on permuted, rescaled, flipped, rotated, noisy ResNet-20, ResNet-56, GPT-2 and Llama: true names
0.88 and more, names handed on by one 0.53 and less (`benchmarks.anchor_locate`)."""
MOST_PROFILES = 1024
"""How many tensors of a suspect are profiled for those of one shape."""
LARGEST = 1 << 28
"""Tensors with more values are not profiled."""
_PASSES = 256
"""Multiplications that a profile takes for each weight."""
_WIDEST = 64.0
_FEWEST = 3
"""Names of fewer tensors of a shape say nothing of names."""


@dataclass(frozen=True, eq=False)
class Held:
    """A tensor of the suspect, seen in the anchor's layout."""

    whole: Whole
    view: View
    shape: Shape


def known(wanted: Wanted, found: Found) -> bool:
    """Whether a tensor was found that need not be sought by profile."""
    best = found.get(wanted.name)
    return best is not None and best.score >= KNOWN * convincing(wanted.sample.size)


def by_profiles(quest: Quest, left: Sequence[Wanted], sure: Found) -> list[Candidate]:
    """For each the tensor that its name, or its profile, speaks for; `sure` are taken."""
    taken = {name for each in sure.values() for name in each.view.stored()}
    free = [
        whole
        for whole in quest.wholes
        if whole.adapter is None
        and taken.isdisjoint(whole.view.stored())
        and size_of(whole.shape) <= LARGEST
    ]
    classes: dict[Shape, list[Wanted]] = defaultdict(list)
    for wanted in left:
        classes[wanted.shape].append(wanted)
    layout = AxisOrders.of(classes, free, turned=_mostly_turned(sure))
    kin = Kin.of(sure)
    groups = [_group(quest, members, layout, free, kin) for members in classes.values()]
    groups = [group for group in groups if group.pool]
    names = trusted(groups)
    return list(one_to_one(each for g in groups for each in g.candidates(names)).values())


def _mostly_turned(sure: Found) -> bool:
    """Whether most of the tensors that were found are stored the other way round."""
    told = ["transposed" in each.view.changes for each in sure.values()]
    return 2 * sum(told) > len(told)


@dataclass(frozen=True)
class AxisOrders:
    """In which order the axes of the tensors lie: one for all that have as many."""

    axes: Mapping[int, Axes]

    @classmethod
    def of(
        cls, classes: Mapping[Shape, Sequence[Wanted]], free: Sequence[Whole], *, turned: bool
    ) -> "AxisOrders":
        """The order in which most tensors have, or nearly have, a shape that is sought."""
        chosen: dict[int, Axes] = {}
        for count in {len(shape) for shape in classes}:
            sought = Counter({s: len(m) for s, m in classes.items() if len(s) == count})
            ways = sorted(orders(count), key=lambda axes: (axes == (1, 0)) != turned)
            chosen[count] = max(ways, key=lambda axes: _fitting(sought, free, axes))
        return cls(chosen)

    def seen(self, whole: Whole, wanted: Wanted) -> Iterator[View]:
        """A tensor in that order, if it then nearly has the shape."""
        axes = self.axes[len(wanted.shape)]
        tokens = wanted.entry.rows is not None
        for view in oriented_nearly(whole.view, whole.shape, wanted.shape, any_rows=tokens):
            plain = axes == tuple(range(len(axes)))
            if tokens or (view.axes == axes if isinstance(view, Turned) else plain):
                yield view


def _fitting(sought: Counter[Shape], free: Sequence[Whole], axes: Axes) -> tuple[int, int]:
    """How many of the tensors sought could be there, in their very shape and nearly."""
    held = Counter(tuple(w.shape[axis] for axis in axes) for w in free if len(w.shape) == len(axes))
    near = sum(
        count for shape, count in sought.items() if any(nearly(have, shape) for have in held)
    )
    return sum((sought & held).values()), near


@dataclass(frozen=True, eq=False)
class Likely:
    """Tensors of one shape, what could be each of them, and how far apart they are."""

    wanted: Sequence[Wanted]
    pool: Sequence[Held]
    apart: Scores
    named: Mask

    def candidates(self, names: bool) -> Iterator[Candidate]:
        """All pairs; what is named right comes first where names are trusted."""
        for row, wanted in enumerate(self.wanted):
            for column, held in enumerate(self.pool):
                score = 1 - min(float(self.apart[row, column]), _WIDEST) / (2 * _WIDEST)
                score += 2.0 * (names and self.named[row, column])
                yield Candidate(wanted.name, held.view, score)

    def sums(self) -> tuple[float, float]:
        """Of the distances of those whose name is there: at best, and by name."""
        from scipy.optimize import linear_sum_assignment

        rows = self.named.any(axis=1)
        if rows.sum() < _FEWEST or len(self.wanted[0].shape) == 1:
            return 0.0, 0.0
        table = self.apart[rows]
        chosen, columns = linear_sum_assignment(table)
        by_name = np.where(self.named, self.apart, np.inf).min(axis=1)[rows]
        return float(table[chosen, columns].sum()), float(by_name.sum())


def trusted(groups: Sequence[Likely]) -> bool:
    """Whether names fit nearly as well as the best assignment."""
    sums = [group.sums() for group in groups]
    return sum(best for best, _ in sums) >= TRUSTED * sum(named for _, named in sums)


def _group(
    quest: Quest, members: Sequence[Wanted], layout: AxisOrders, free: Sequence[Whole], kin: Kin
) -> Likely:
    pool = _pool(quest, members, layout, free)
    if not pool:
        return Likely(members, (), np.zeros((len(members), 0)), np.zeros((len(members), 0), bool))
    apart = np.zeros((len(members), 1))
    if len(pool) > 1:
        apart = distances(
            [profile(quest.anchor[each.name]) for each in members],
            [profile(held.view.read(quest.suspect)) for held in pool],
        )
    lengths = np.array([_length_penalty(members[0].entry.kept_shape, h.shape) for h in pool])
    apart += lengths - lengths.min()
    ways = prefixes(quest)
    named = np.stack([_named(quest, each, pool, kin, ways) for each in members])
    return Likely(members, pool, apart, named)


def _pool(
    quest: Quest, members: Sequence[Wanted], layout: AxisOrders, free: Sequence[Whole]
) -> list[Held]:
    """All that are nearly of the shape; only those of the very shape if they suffice."""
    views = ((w, v) for w in free for v in layout.seen(w, members[0]))
    most = min(MOST_PROFILES, quest.limit)
    afforded = takewhile(lambda each: quest.spend(profile_cost(each[0])), views)
    found = [_held(quest, whole, view, members[0]) for whole, view in islice(afforded, most)]
    exact = [held for held in found if held.shape == members[0].entry.kept_shape]
    return exact if len(exact) >= len(members) else found


def profile_cost(whole: Whole) -> float:
    """Multiplications that a profile takes; a small one is worth several looks."""
    return max(_PASSES * float(size_of(whole.shape)), 8 * LOOK)


def _held(quest: Quest, whole: Whole, view: View, wanted: Wanted) -> Held:
    """Of an embedding, the rows that the anchor has, if its tokens are in their places."""
    shape = view.shape(quest.suspect.shapes)
    rows = wanted.entry.rows
    if rows is not None and shape[0] == wanted.shape[0]:
        spaced = Spaced(view, shape[0], rows)
        if _same_tokens(spaced.read(quest.suspect), quest.anchor[wanted.name]):
            return Held(whole, spaced, (rows, *shape[1:]))
    return Held(whole, view, shape)


def _same_tokens(rows: Array, anchor: Array) -> bool:
    """Whether lengths of rows, which no change of the stream's basis touches, agree."""
    one, two = (
        np.sqrt(np.square(finite(each), dtype=np.float64).reshape(len(each), -1).sum(axis=1))
        for each in (rows, anchor)
    )
    if one.std() <= 1e-6 * one.mean() or two.std() <= 1e-6 * two.mean():
        return True
    return bool(np.corrcoef(one, two)[0, 1] > 0.5)


def _named(
    quest: Quest, wanted: Wanted, pool: Sequence[Held], kin: Kin, ways: Sequence[tuple[str, str]]
) -> Mask:
    """Which of them go by the name, or by one that the neighbours' speak for."""
    near = {whole.view for whole in relatives(quest, kin, wanted.name)}
    views = near or {whole.view for whole in namesakes(quest, wanted.name, ways)}
    return np.array([held.whole.view in views for held in pool], np.bool_)


def _length_penalty(wanted: Shape, shape: Shape) -> float:
    ratios = [a / b for a, b in zip(shape, wanted, strict=True)]
    return float(np.abs(np.log(ratios)).sum())
