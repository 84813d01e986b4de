"""What has no direct match: permuted, rescaled or narrowed tensors, candidates for the aligner.

By name where names can be trusted, else by profile, each tensor once. Names are trusted as long as
no other assignment fits the profiles far better: whoever swaps names betrays himself in the sum.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

import numpy as np

from neuralmark.anchors.locating.assigning import one_to_one
from neuralmark.anchors.locating.candidates import namesakes, prefixes
from neuralmark.anchors.locating.combined import pieces_of
from neuralmark.anchors.locating.kinship import Kin, relatives
from neuralmark.anchors.locating.layouts import Axes, nearly, orders, oriented_nearly, size_of
from neuralmark.anchors.locating.likeness import Scores, convincing, finite
from neuralmark.anchors.locating.profiles import distances, profile
from neuralmark.anchors.locating.renumbering import NamedScores, renumbered
from neuralmark.anchors.locating.seeking import LOOK, Candidate, Found, Quest, Wanted
from neuralmark.anchors.locating.suspect import Shape
from neuralmark.anchors.locating.views import Spaced, Stored, Turned, View
from neuralmark.anchors.locating.wholes import Whole
from neuralmark.anchors.moves import Mask
from neuralmark.structures.structure import STREAM, Array, Structure

KNOWN = 0.8
"""A tensor that is this share of convincing is the right one, however damaged."""
TRUSTED = 0.7
"""Names are trusted where the best assignment is not closer than this share of theirs.

Set on permuted, rescaled, flipped, rotated, noisy ResNet-20, ResNet-56, GPT-2 and Llama: true names
0.88 and more, names handed on by one 0.53 and less (`benchmarks.anchor_locate`). For layers under
other numbers: layers put in or doubled 0.89 and more, names of one kind shuffled 0.47 and less."""
CLOSE = 0.25
"""Lengths of this ratio (its logarithm) are looked at even where others are the very ones."""
MOST_PROFILES = 1024
"""How many tensors of a suspect are profiled for those of one shape."""
LARGEST = 1 << 28
"""Tensors with more values are not profiled."""
PASSES = 256
"""Multiplications that a profile takes for each weight."""
_WIDEST = 64.0
_SLACK = 0.02
"""Lengths that differ by so much, as their logarithms, do not speak for another order."""
_FURTHEST = 2.0
"""Of shapes that are not there: more than any that is nearly there."""
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
    taken = {part for each in sure.values() for part in pieces_of(each.view)}
    free = [
        whole
        for whole in quest.wholes
        if whole.adapter is None and free_of(whole, taken) and size_of(whole.shape) <= LARGEST
    ]
    classes: dict[Shape, list[Wanted]] = defaultdict(list)
    for wanted in left:
        classes[wanted.shape].append(wanted)
    tokens = tables_of(quest.anchor.skeleton.structure)
    turned = _mostly_turned(quest, left, sure)
    layout = AxisOrders.of(classes, free, tokens, turned=turned)
    kin = Kin.of(sure)
    groups = [_group(quest, members, layout, free, kin) for members in classes.values()]
    groups = [group for group in groups if group.pool]
    names = trusted(groups)
    if not names:
        moved = by_layers(groups)
        groups, names = moved or groups, moved is not None
    return list(one_to_one(each for g in groups for each in g.candidates(names)).values())


def free_of(whole: Whole, taken: Collection[View]) -> bool:
    """Whether a tensor has no part in these: stored tensors, or ones of a stack."""
    parts = (*pieces_of(whole.view), *map(Stored, whole.view.stored()))
    return not any(part in taken for part in parts)


def tables_of(structure: Structure | None) -> frozenset[str]:
    """Tokens, positions and the like: tensors of rows that touch the stream and nothing else.

    They stay as they are where layers are stored the other way round.
    """
    if structure is None:
        return frozenset()
    streams = [group for group in structure.groups if group.kind == STREAM]
    inner = [group for group in structure.groups if group.kind != STREAM]
    layers = set().union(*(each.tensors() for each in inner))
    layers |= set().union(*(each.tensors() for each in structure.attentions))
    tokens = set() if structure.vocabulary is None else structure.vocabulary.tensors()
    return frozenset(set().union(*(each.tensors() for each in streams)) - layers | tokens)


def _mostly_turned(quest: Quest, left: Sequence[Wanted], sure: Found) -> bool:
    """Whether most matrices are stored the other way round: those found, and those of the name."""
    matrices = {each.name for each in quest.wanted if len(each.shape) == 2} - tables_of(
        quest.anchor.skeleton.structure
    )
    told = ["transposed" in each.view.changes for name, each in sure.items() if name in matrices]
    ways = prefixes(quest)
    for wanted in left:
        back = wanted.shape[::-1]
        if wanted.name in matrices and back != wanted.shape:
            shapes = [whole.shape for whole in namesakes(quest, wanted.name, ways)]
            told += [
                length_penalty(back, shape) < length_penalty(wanted.shape, shape)
                for shape in shapes
                if len(shape) == 2 and (nearly(shape, back) or nearly(shape, wanted.shape))
            ]
    return 2 * sum(told) > len(told)


@dataclass(frozen=True)
class AxisOrders:
    """In which order the axes of the tensors lie: one for all that have as many."""

    axes: Mapping[int, Axes]
    tokens: frozenset[str] = frozenset()
    """Tensors that may lie in any order."""

    @classmethod
    def of(
        cls,
        classes: Mapping[Shape, Sequence[Wanted]],
        free: Sequence[Whole],
        tokens: frozenset[str] = frozenset(),
        *,
        turned: bool,
    ) -> "AxisOrders":
        """The order in which the shapes that are sought are there, or about as near as in any."""
        chosen: dict[int, Axes] = {}
        counts = {s: sum(each.name not in tokens for each in m) for s, m in classes.items()}
        for count in {len(shape) for shape in classes}:
            sought = Counter({s: n for s, n in counts.items() if len(s) == count})
            ways = sorted(orders(count), key=lambda axes: (axes == (1, 0)) != turned)
            apart = {axes: _misfit(sought, free, axes) for axes in ways}
            most = min(apart.values()) + _SLACK * sought.total()
            chosen[count] = next(axes for axes in ways if apart[axes] <= most)
        return cls(chosen, tokens)

    def seen(self, whole: Whole, wanted: Wanted) -> Iterator[View]:
        """A tensor in that order, if it then nearly has the shape."""
        axes = self.axes[len(wanted.shape)]
        tokens = wanted.entry.rows is not None
        for view in oriented_nearly(whole.view, whole.shape, wanted.shape, any_rows=tokens):
            plain = axes == tuple(range(len(axes)))
            either = tokens or wanted.name in self.tokens
            if either or (view.axes == axes if isinstance(view, Turned) else plain):
                yield view


def _misfit(sought: Counter[Shape], free: Sequence[Whole], axes: Axes) -> float:
    """How far the tensors sought are from the nearest shapes that are there, in this order."""
    held = {tuple(w.shape[axis] for axis in axes) for w in free if len(w.shape) == len(axes)}
    total = 0.0
    for shape, count in sought.items():
        near = (length_penalty(shape, have) for have in held if nearly(have, shape))
        total += count * min(near, default=_FURTHEST)
    return total


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

    def sums(self, fewest: int) -> tuple[float, float]:
        """Of the distances of those whose name is there: at best, and by name."""
        from scipy.optimize import linear_sum_assignment

        rows = self.named.any(axis=1)
        if rows.sum() < fewest or len(self.wanted[0].shape) == 1:
            return 0.0, 0.0
        table = self.apart[rows]
        chosen, columns = linear_sum_assignment(table)
        by_name = np.where(self.named, self.apart, np.inf).min(axis=1)[rows]
        return float(table[chosen, columns].sum()), float(by_name.sum())


def trusted(groups: Sequence[Likely], fewest: int = _FEWEST) -> bool:
    """Whether names fit nearly as well as the best assignment."""
    sums = [group.sums(fewest) for group in groups]
    return sum(best for best, _ in sums) >= TRUSTED * sum(named for _, named in sums)


def by_layers(groups: Sequence[Likely]) -> list[Likely] | None:
    """With names under other numbers, where whole layers fit well so; None where they do not."""
    scores = [
        NamedScores([w.name for w in g.wanted], [h.whole.name for h in g.pool], g.apart)
        for g in groups
    ]
    masks = renumbered(scores, _WIDEST)
    if masks is None:
        return None
    made = [replace(g, named=mask) for g, mask in zip(groups, masks, strict=True)]
    some = any(group.named.any() for group in made)
    return made if some and trusted(made, 1) else None


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
    lengths = np.array([length_penalty(members[0].entry.kept_shape, h.shape) for h in pool])
    apart += lengths - lengths.min()
    ways = prefixes(quest)
    named = np.stack([_named(quest, each, pool, kin, ways) for each in members])
    return Likely(members, pool, apart, named)


def _pool(
    quest: Quest, members: Sequence[Wanted], layout: AxisOrders, free: Sequence[Whole]
) -> list[Held]:
    """All that are nearly of the shape; only those very near if some have it and suffice."""
    views = ((w, v) for w in free for v in layout.seen(w, members[0]))
    most = min(MOST_PROFILES, quest.limit)
    afforded = takewhile(lambda each: quest.spend(profile_cost(each[0])), views)
    found = [_held(quest, whole, view, members[0]) for whole, view in islice(afforded, most)]
    kept = members[0].entry.kept_shape
    exact = sum(held.shape == kept for held in found)
    if exact < len(members):
        return found
    return [held for held in found if length_penalty(kept, held.shape) <= CLOSE]


def profile_cost(whole: Whole) -> float:
    """Multiplications that a profile takes; a small one is worth several looks."""
    return max(PASSES * float(size_of(whole.shape)), 8 * LOOK)


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


def length_penalty(wanted: Shape, shape: Shape) -> float:
    """How far lengths are apart: logarithms of their ratios, added."""
    ratios = [a / b for a, b in zip(shape, wanted, strict=True)]
    return float(np.abs(np.log(ratios)).sum())
