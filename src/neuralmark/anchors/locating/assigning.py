"""Who takes what: each tensor of the anchor the likest view, no view taken twice (pure)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from neuralmark.anchors.locating.likeness import Scores
from neuralmark.anchors.locating.seeking import Candidate
from neuralmark.anchors.locating.views import View
from neuralmark.anchors.moves import GRID

MOST_TOGETHER = 2048
"""Larger groups are not assigned at their best as a whole, but the likest first."""


def one_to_one(candidates: Iterable[Candidate]) -> dict[str, Candidate]:
    """The best choice for all together; a name speaks where likeness does not."""
    best: dict[tuple[str, View], Candidate] = {}
    for each in candidates:
        held = best.get((each.name, each.view))
        if held is None or _value(each) > _value(held):
            best[each.name, each.view] = each
    chosen: dict[str, Candidate] = {}
    for group in _groups(list(best.values())):
        for each in _assigned(group):
            chosen[each.name] = each
    return chosen


def shared(
    chosen: Mapping[str, Candidate], candidates: Iterable[Candidate], tied: Sequence[frozenset[str]]
) -> dict[str, Candidate]:
    """With tensors that are one in the original (tied weights) taking the same view."""
    made = dict(chosen)
    for each in sorted(candidates, key=_value):
        rivals = [name for name, other in chosen.items() if other.view == each.view]
        if each.name not in chosen and any(frozenset((each.name, n)) in tied for n in rivals):
            made[each.name] = each
    return made


def _value(candidate: Candidate) -> float:
    return candidate.score + 4 * GRID * candidate.named


def _groups(candidates: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Candidates that have something to do with each other."""
    by_name, by_view = defaultdict(list), defaultdict(list)
    for each in candidates:
        by_name[each.name].append(each)
        by_view[each.view].append(each)
    seen: set[str] = set()
    for name in by_name:
        if name in seen:
            continue
        group: list[Candidate] = []
        front = [name]
        seen.add(name)
        while front:
            for each in by_name[front.pop()]:
                group.append(each)
                near = [other.name for other in by_view[each.view] if other.name not in seen]
                seen.update(near)
                front += near
        yield group


def _assigned(group: Sequence[Candidate]) -> list[Candidate]:
    names = {name: i for i, name in enumerate(dict.fromkeys(each.name for each in group))}
    views = {view: i for i, view in enumerate(dict.fromkeys(each.view for each in group))}
    if len(names) == 1:
        return [max(group, key=_value)]
    if len(names) > MOST_TOGETHER:
        return _greedy(group)
    from scipy.optimize import linear_sum_assignment

    table: Scores = np.zeros((len(names), len(views)))
    held: dict[tuple[int, int], Candidate] = {}
    for each in group:
        place = names[each.name], views[each.view]
        table[place], held[place] = _value(each), each
    rows, columns = linear_sum_assignment(table, maximize=True)
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    return [held[pair] for pair in pairs if pair in held]


def _greedy(group: Sequence[Candidate]) -> list[Candidate]:
    names: set[str] = set()
    views: set[View] = set()
    chosen = []
    for each in sorted(group, key=_value, reverse=True):
        if each.name not in names and each.view not in views:
            names.add(each.name)
            views.add(each.view)
            chosen.append(each)
    return chosen
