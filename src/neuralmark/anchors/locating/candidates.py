"""Candidates by name and by shape: the likest of all that could be a tensor of the anchor."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from neuralmark.anchors.locating.combined import Adapted
from neuralmark.anchors.locating.layouts import size_of
from neuralmark.anchors.locating.likeness import finite, matrix
from neuralmark.anchors.locating.seeking import SETTLED, Candidate, Found, Quest, Wanted
from neuralmark.anchors.locating.suspect import Shape
from neuralmark.anchors.locating.views import View
from neuralmark.anchors.locating.wholes import Whole, items_of

MOST_NAMESAKES = 16
"""How many tensors of one canonical name are looked at."""
MOST_PREFIXES = 4
"""How many common prefixes are tried, those that cover most tensors first."""
FLOOR = 0.3
"""What is less alike than this is no candidate."""
_EXPLAINED = 0.95
"""An adapter belongs to what was marked if it leaves at most this of what the base leaves."""
_KEPT = 6
"""Candidates that are kept of all that have the right shape."""
_TOGETHER = 64
"""Samples of a suspect that are compared at once."""


def at_once(quest: Quest, wanted: Wanted) -> Candidate | None:
    """The only tensor of its name, if a sample leaves no doubt that it is the one."""
    own = quest.by_name.get(wanted.name, ())
    if len(own) != 1:
        return None
    best = _best(quest, wanted, own[0])
    return best if best is not None and best.direct and best.score >= SETTLED else None


def by_names(quest: Quest, left: Sequence[Wanted], _: Found) -> list[Candidate]:
    """Of the same canonical name, or of the same after one common prefix."""
    found: list[Candidate] = []
    ways = prefixes(quest)
    for wanted in left:
        for whole in islice(namesakes(quest, wanted.name, ways), MOST_NAMESAKES):
            best = _best(quest, wanted, whole)
            found += [best] if best is not None else []
    return found


def namesakes(quest: Quest, name: str, ways: Sequence[tuple[str, str]]) -> Iterator[Whole]:
    """What goes by this name, or by this name with another beginning."""
    for removed, added in ways:
        if name.startswith(removed):
            yield from quest.by_name.get(added + name[len(removed) :], ())


def prefixes(quest: Quest) -> list[tuple[str, str]]:
    """Pairs (what the anchor's names begin with, what the suspect's do instead)."""
    wanted = {each.name for each in quest.wanted}
    counts: Counter[tuple[str, str]] = Counter()
    for name in quest.by_name:
        counts.update(("", start) for start, rest in _splits(name) if rest in wanted)
    for name in wanted:
        counts.update((start, "") for start, rest in _splits(name) if rest in quest.by_name)
    ranked = sorted(counts, key=lambda way: (-counts[way], way))
    return [("", ""), *ranked[:MOST_PREFIXES]]


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """The first few ways to cut a name in two behind a dot."""
    at = 0
    for _ in range(8):
        at = name.find(".", at) + 1
        if not at:
            return
        yield name[:at], name[at:]


def _best(quest: Quest, wanted: Wanted, whole: Whole) -> Candidate | None:
    """The likest way to see it."""
    best: Candidate | None = None
    for view in wanted.views(whole):
        seen = quest.judged(view, wanted, named=True)
        if best is None or seen.score > best.score:
            best = seen
        if best.score >= SETTLED:
            break
    if best is None or whole.adapter is None:
        return best
    return _with_adapter(quest, wanted, whole, best)


def _with_adapter(quest: Quest, wanted: Wanted, whole: Whole, best: Candidate) -> Candidate | None:
    """The base with its adapter at the scale that the anchor speaks for; None: at none."""
    assert whole.adapter is not None
    added = next(iter(wanted.views(replace(whole, view=whole.adapter))), None)
    plain = next(iter(wanted.views(whole)), None)
    if added is None or plain is None or plain != best.view:
        return None
    base, delta = (finite(quest.sample(v, wanted)).astype(np.float64) for v in (plain, added))
    square = float((delta * delta).sum())
    if not square:
        return None
    gap = finite(wanted.sample) - base
    scale = float(np.float32((gap * delta).sum() / square))
    seen = quest.judged(Adapted(plain, added, scale), wanted, named=True)
    gained = 1 - seen.score**2 < _EXPLAINED * (1 - best.score**2)
    return seen if gained else None


def by_shapes(quest: Quest, left: Sequence[Wanted], _: Found) -> list[Candidate]:
    """Of any name: the likest of all that have the same shape in some layout."""
    classes: dict[tuple[Shape, Shape], list[Wanted]] = defaultdict(list)
    for wanted in left:
        classes[wanted.shape, wanted.entry.kept_shape].append(wanted)
    return [found for members in classes.values() for found in _of_one_shape(quest, members)]


def _of_one_shape(quest: Quest, members: Sequence[Wanted]) -> Iterator[Candidate]:
    views = islice(_shaped_alike(quest, members[0]), quest.limit)
    anchors = [each.sample for each in members]
    best: list[list[Candidate]] = [[] for _ in members]
    while batch := list(islice(views, _TOGETHER)):
        samples = [quest.sample(view, members[0]) for _, view in batch]
        scores = matrix(samples, anchors)
        for row, wanted in enumerate(members):
            likely = np.flatnonzero(scores[row] >= FLOOR)
            fresh = [_candidate(wanted, *batch[i], float(scores[row, i])) for i in likely]
            if fresh:
                kept = sorted((*best[row], *fresh), key=lambda each: -each.score)
                best[row] = kept[:_KEPT]
    for wanted, kept in zip(members, best, strict=True):
        for each in kept:
            yield quest.judged(each.view, wanted, named=each.named)


def _candidate(wanted: Wanted, whole: Whole, view: View, score: float) -> Candidate:
    return Candidate(wanted.name, view, score, named=whole.name == wanted.name)


def _shaped_alike(quest: Quest, wanted: Wanted) -> Iterator[tuple[Whole, View]]:
    """Every tensor, and every one of a stack, that can be seen in this shape."""
    size = size_of(wanted.shape)
    for whole in quest.wholes:
        if whole.adapter is not None:
            continue
        here = size_of(whole.shape)
        if here == size or (wanted.entry.rows is not None and here > size):
            yield from ((whole, view) for view in wanted.views(whole))
        if here > size:
            for item in items_of(whole, {size}):
                yield from ((item, view) for view in wanted.views(item))
