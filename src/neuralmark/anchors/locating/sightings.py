"""Which fused tensor holds the rows of which layer, in whatever order they lie.

By rows as long as the inputs lie as in the anchor; where these were moved too, by numbers in names
and by profiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.locating.cuts import Fusion
from neuralmark.anchors.locating.likeness import Scores, finite
from neuralmark.anchors.locating.profiles import distances, profile
from neuralmark.anchors.locating.restructured import TRUSTED, profile_cost
from neuralmark.anchors.locating.rowsearch import found_rows, needles_of, threshold, unit_rows
from neuralmark.anchors.locating.seeking import Quest
from neuralmark.anchors.locating.slices import along, hay_of, same_layer
from neuralmark.anchors.locating.views import GatheredView, View
from neuralmark.anchors.locating.wholes import Whole
from neuralmark.anchors.moves import Mask
from neuralmark.structures.structure import Array, Indices

PRESENT = 0.5
"""The share of the rows that must be there for rows to tell anything."""


@dataclass(frozen=True, eq=False)
class Fused:
    """A tensor of the suspect that may hold all tensors of a layer."""

    whole: Whole
    view: View
    length: int
    """Along the axis of the fusion."""


@dataclass(frozen=True, eq=False)
class RowSighting:
    """Where those of some rows that are in a fused tensor lie, part by part."""

    places: tuple[Indices, ...]
    share: float
    """How many of them are there."""

    def within(self, parts: Sequence[View], length: int) -> float:
        """The share of what is there that lies in its own part."""
        own = [
            np.isin(places, part.places(length))
            for places, part in zip(self.places, parts, strict=True)
            if isinstance(part, GatheredView)
        ]
        return float(np.concatenate(own).mean()) if own else 0.0


@dataclass(frozen=True, eq=False)
class Sighted:
    """A layer, the fused tensor that holds it, and where its rows were seen."""

    fusion: Fusion
    fused: Fused
    seen: RowSighting | None = None

    @property
    def told(self) -> bool:
        """Whether rows tell where they lie."""
        return self.seen is not None and self.seen.share >= PRESENT


def sighted(quest: Quest, fusions: Sequence[Fusion], held: Sequence[Fused]) -> list[Sighted]:
    """For each layer the tensor that holds it; those of one kind together."""
    named = np.array([_numbered(quest, fusion, held) for fusion in fusions], np.bool_)
    unique = bool((named.sum(axis=0) == 1).all() and (named.sum(axis=1) <= 1).all())
    looked = named if unique else np.ones_like(named)
    seen = _seen(quest, fusions, held, looked)
    apart = np.ones(named.shape)
    for place, sighting in seen.items():
        apart[place] = 1 - sighting.share
    if (apart.min(axis=1) > 1 - PRESENT).mean() > PRESENT:
        apart = _by_profiles(quest, fusions, held)
    pairs = _paired(apart, named if unique else None)
    return [Sighted(fusions[i], held[j], seen.get((i, j))) for i, j in pairs]


def _numbered(quest: Quest, fusion: Fusion, held: Sequence[Fused]) -> list[bool]:
    """Which of them have the layer's number."""
    wanted = next(wanted for wanted in quest.wanted if wanted.name in fusion.names)
    return [same_layer(wanted, each.whole) for each in held]


def _seen(
    quest: Quest, fusions: Sequence[Fusion], held: Sequence[Fused], looked: Mask
) -> dict[tuple[int, int], RowSighting]:
    """Rows of these layers in these tensors, as long as that can be afforded."""
    seen: dict[tuple[int, int], RowSighting] = {}
    needles = [_needles(quest, fusion) for fusion in fusions]
    for column, each in enumerate(held):
        rows = np.flatnonzero(looked[:, column]).tolist()
        cost = sum(float(part.size) for row in rows for part in needles[row])
        if not rows or not quest.spend(each.length * cost):
            continue
        hay = hay_of(quest.suspect, each.view, fusions[0].kind.axis, each.length)
        seen |= {(row, column): _sighting(needles[row], hay) for row in rows}
    return seen


def _needles(quest: Quest, fusion: Fusion) -> list[Array]:
    """Unit rows of each part; none of those that the anchor has not."""
    found = []
    for name, length in zip(fusion.names, fusion.kind.lengths, strict=True):
        if name in quest.anchor:
            values = along(quest.anchor[name], fusion.kind.axis, needles_of(length))
            found.append(unit_rows(finite(values)))
        else:
            found.append(np.zeros((0, 0), np.float32))
    return found


def _sighting(needles: Sequence[Array], hay: Array) -> RowSighting:
    places: list[Indices] = []
    for part in needles:
        if len(part):
            at, alike = found_rows(part, hay)
            places.append(at[alike >= threshold(*hay.shape)])
        else:
            places.append(np.zeros(0, np.intp))
    return RowSighting(tuple(places), sum(map(len, places)) / max(1, sum(map(len, needles))))


def _by_profiles(quest: Quest, fusions: Sequence[Fusion], held: Sequence[Fused]) -> Scores:
    """How far apart the profiles of fused tensors are, if the anchor has all of their parts."""
    whole = all(name in quest.anchor for fusion in fusions for name in fusion.names)
    afforded = all(quest.spend(profile_cost(each.whole)) for each in held)
    if len(held) == len(fusions) == 1 or not whole or not afforded:
        return np.ones((len(fusions), len(held)))
    mine = [
        profile(np.concatenate([quest.anchor[n] for n in each.names], axis=each.kind.axis))
        for each in fusions
    ]
    return distances(mine, [profile(each.view.read(quest.suspect)) for each in held])


def _paired(apart: Scores, named: Mask | None) -> list[tuple[int, int]]:
    """Who is whose at best; by name where that fits nearly as well."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(apart)
    if named is not None and apart[rows, columns].sum() >= TRUSTED * apart[named].sum():
        rows, columns = named.nonzero()
    return list(zip(rows.tolist(), columns.tolist(), strict=True))
