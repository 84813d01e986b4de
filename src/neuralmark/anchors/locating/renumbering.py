"""Layers under other numbers: a layer is recognised by all of its tensors together (pure).

One tensor alone may be like that of another layer, or of one that was put in; all tensors of a
layer, which still share a number whatever it is, tell more.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.locating.likeness import Scores
from neuralmark.anchors.moves import Mask

MOST_LAYERS = 2048
"""Of more layers, none is sought under another number."""
_NUMBERED = re.compile(r"(.*(?:^|\.)[0-9]+)\.(.+)", re.ASCII)


@dataclass(frozen=True, eq=False)
class NamedScores:
    """Tensors of one shape and what could be each of them, by name, and how far apart they are."""

    wanted: Sequence[str]
    pool: Sequence[str]
    apart: Scores


def renumbered(groups: Sequence[NamedScores], widest: float) -> list[Mask] | None:
    """Which go together when whole layers are matched; None where there are no layers.

    A tensor that the other layer lacks counts as `widest`. A layer is what shares its name up to
    the last number; names behind it must be the same.

    >>> q = NamedScores(["h.0.q"], ["h.0.q", "h.1.q"], np.array([[1.0, 2.0]]))
    >>> k = NamedScores(["h.0.k"], ["h.0.k", "h.1.k"], np.array([[9.0, 1.0]]))
    >>> [mask.tolist() for mask in renumbered([q, k], 64.0)]
    [[[False, True]], [[False, True]]]
    """
    from scipy.optimize import linear_sum_assignment

    mine = _layers(name for group in groups for name in group.wanted)
    theirs = _layers(name for group in groups for name in group.pool)
    if not (mine and theirs) or max(len(mine), len(theirs)) > MOST_LAYERS:
        return None
    cost = np.zeros((len(mine), len(theirs)))
    pairs = [list(_pairs(group, mine, theirs)) for group in groups]
    for group, found in zip(groups, pairs, strict=True):
        for row, column, one, two in found:
            cost[one, two] += min(float(group.apart[row, column]), widest) - widest
    chosen = set(zip(*(map(int, ends) for ends in linear_sum_assignment(cost)), strict=True))
    masks = []
    for group, found in zip(groups, pairs, strict=True):
        mask = np.zeros(group.apart.shape, np.bool_)
        for row, column, one, two in found:
            mask[row, column] = (one, two) in chosen
        masks.append(mask)
    return masks


def _layers(names: Iterable[str]) -> dict[str, int]:
    """Numbers of all layers, by what their names begin with."""
    found = dict.fromkeys(layer for layer, _ in map(_split, names) if layer)
    return {layer: number for number, layer in enumerate(found)}


def _pairs(
    group: NamedScores, mine: Mapping[str, int], theirs: Mapping[str, int]
) -> Iterator[tuple[int, int, int, int]]:
    """Row, column, and the layers of both, wherever names are the same behind the number."""
    by_rest = defaultdict(list)
    for column, name in enumerate(group.pool):
        layer, rest = _split(name)
        if layer:
            by_rest[rest].append((column, theirs[layer]))
    for row, name in enumerate(group.wanted):
        layer, rest = _split(name)
        if layer:
            yield from ((row, column, mine[layer], other) for column, other in by_rest[rest])


def _split(name: str) -> tuple[str, str]:
    """A name up to its last number, and behind it; the first is empty where there is none."""
    found = _NUMBERED.fullmatch(name)
    return (found[1], found[2]) if found else ("", name)
