"""Fused tensors whose channels were moved as well: no row lies where its neighbours would have it.

Which tensors may be fused, the map of the network tells. All layers are cut in one way: so that
rows fall into their own part, or, where inputs were moved too, so that the profiles fit best.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from neuralmark.anchors.locating.candidates import namesakes, prefixes
from neuralmark.anchors.locating.cuts import Cut, Fusion, FusionKind, fusions_of
from neuralmark.anchors.locating.kinship import vectors_beside
from neuralmark.anchors.locating.layouts import oriented_nearly, size_of
from neuralmark.anchors.locating.likeness import even
from neuralmark.anchors.locating.profiles import Profile, distances, profile
from neuralmark.anchors.locating.restructured import LARGEST, MOST_PROFILES, PASSES, profile_cost
from neuralmark.anchors.locating.seeking import Candidate, Found, Quest, Wanted
from neuralmark.anchors.locating.sightings import Fused, Sighted, sighted
from neuralmark.anchors.locating.slices import longer
from neuralmark.anchors.locating.views import Taken, View

_LAYERS = 4
"""Layers whose profiles tell how all of them are cut."""
_IN_PART = {"slice of fused tensor", "one of a stack"}


def by_fusions(quest: Quest, left: Sequence[Wanted], sure: Found) -> list[Candidate]:
    """What lies in a fused tensor in another order; biases as their weights."""
    structure = quest.anchor.skeleton.structure
    if structure is None:
        return []
    sought = {wanted.name for wanted in left}
    kinds: dict[FusionKind, list[Fusion]] = defaultdict(list)
    for fusion in fusions_of(structure, dict(quest.anchor.skeleton.shapes)):
        if not sought.isdisjoint(fusion.names):
            kinds[fusion.kind].append(fusion)
    views: dict[str, View] = {}
    for kind in sorted(kinds, key=lambda kind: not kind.rigid):
        used = {view.of for view in views.values() if isinstance(view, Taken)}
        held = _held(quest, kind, sure, used | _whole_tensors(quest, kinds[kind]))
        views |= _of_kind(quest, kind, kinds[kind], held, sure)
    views |= dict(_vectors(quest, left, views))
    return [Candidate(name, view, 0.0) for name, view in views.items() if name in sought]


def _vectors(
    quest: Quest, left: Sequence[Wanted], views: Mapping[str, View]
) -> Iterator[tuple[str, View]]:
    """Biases beside the fused tensors."""
    for wanted in left:
        stem, _, leaf = wanted.name.rpartition(".")
        weight = views.get(f"{stem}.weight")
        if weight is not None and len(wanted.shape) == 1:
            beside = vectors_beside(weight, leaf, quest.suspect.shapes)
            yield from ((wanted.name, view) for view in beside if isinstance(view, Taken))


def _of_kind(
    quest: Quest,
    kind: FusionKind,
    fusions: Sequence[Fusion],
    held: Sequence[Fused],
    sure: Found,
) -> dict[str, View]:
    """The parts of all layers; none where each tensor has one of its own."""
    if not held:
        return {}
    layers = [
        each
        for each in sighted(quest, fusions, held)
        if any(_agrees(each, cut, sure) for cut in kind.cuts())
    ]
    cuts = [cut for cut in kind.cuts() if all(_agrees(each, cut, sure) for each in layers)]
    cut = _by_rows(layers, cuts) or _by_profiles(quest, layers, cuts)
    if cut is None:
        return {}
    parts = {name: view for each in layers for name, view in parts_of(each, cut).items()}
    return {} if _own(quest, parts) else parts


def parts_of(layer: Sighted, cut: Cut) -> dict[str, View]:
    """The tensors of a layer; none where it has not so many turns."""
    parts = layer.fusion.kind.parts(layer.fused.view, layer.fused.length, cut)
    return dict(zip(layer.fusion.names, parts, strict=False))


def _held(quest: Quest, kind: FusionKind, sure: Found, used: Collection[View]) -> list[Fused]:
    """All that could be such a fused tensor, and is nothing else."""
    taken = {
        name
        for each in sure.values()
        if _IN_PART.isdisjoint(each.view.changes)
        for name in each.view.stored()
    }
    rest = (kind.width, 0) if kind.axis else (0, kind.width)
    found: dict[View, Fused] = {}
    for whole, view in longer(quest, kind.axis, rest, min(kind.lengths)):
        length = size_of(whole.shape) // kind.width
        fits = kind.fits(length) and size_of(whole.shape) <= LARGEST
        free = {view, whole.view}.isdisjoint(used) and taken.isdisjoint(view.stored())
        if fits and free and len(found) < MOST_PROFILES:
            found[view] = Fused(whole, view, length)
    return list(found.values())


def _whole_tensors(quest: Quest, fusions: Sequence[Fusion]) -> set[View]:
    """Tensors that go by names of their own, where every part does.

    With each of its channels split in several, one may be as long as what is fused.
    """
    ways = prefixes(quest)
    named = {w.name: {each.view for each in namesakes(quest, w.name, ways)} for w in quest.wanted}
    whole = all(named.get(name) for fusion in fusions for name in fusion.names)
    return set().union(*named.values()) if whole else set()


def _own(quest: Quest, parts: Mapping[str, View]) -> bool:
    """Whether each tensor has one of its own name and about its shape that is no less like it.

    Other tensors of these shapes say nothing: whoever fuses may leave any beside.
    """
    ways = prefixes(quest)
    shapes = dict(quest.anchor.skeleton.shapes)
    named = {
        name: view
        for name in parts
        for whole in namesakes(quest, name, ways)
        for view in oriented_nearly(whole.view, whole.shape, shapes[name])
    }
    if len(named) < len(parts):
        return False
    names = [name for name in parts if name in quest.anchor]
    cost = PASSES * 2.0 * sum(size_of(shapes[name]) for name in names)
    if not names or not quest.spend(cost):
        return True
    mine = [profile(quest.anchor[name]) for name in names]
    views = [each[name] for each in (named, parts) for name in names]
    apart = distances(mine, [profile(view.read(quest.suspect)) for view in views])
    own, cut = apart[:, : len(names)], apart[:, len(names) :]
    return float(np.trace(own)) <= float(np.trace(cut))


def _agrees(layer: Sighted, cut: Cut, sure: Found) -> bool:
    """Whether a cut fits what was found for sure: parts of this tensor that were not moved."""
    parts = parts_of(layer, cut)
    return bool(parts) and all(sure[n].view == view for n, view in parts.items() if n in sure)


def _by_rows(layers: Sequence[Sighted], cuts: Sequence[Cut]) -> Cut | None:
    """The cut by which most rows that were seen lie in their own part."""
    told = [(each, each.seen) for each in layers if each.seen is not None and each.told]
    if 2 * len(told) <= len(layers) or not cuts:
        return None

    def share(cut: Cut) -> float:
        return sum(
            seen.within(list(parts_of(each, cut).values()), each.fused.length)
            for each, seen in told
        )

    return max(cuts, key=share)


def _by_profiles(quest: Quest, layers: Sequence[Sighted], cuts: Sequence[Cut]) -> Cut | None:
    """The cut whose parts look most like the anchor's tensors; None: there is none."""
    some = [layers[place] for place in even(len(layers), _LAYERS).tolist()]
    if len(cuts) < 2 or not some:
        return next(iter(cuts), None)
    if not all(quest.spend(len(cuts) * profile_cost(each.fused.whole)) for each in some):
        return cuts[0]
    names = [name for each in some for name in each.fusion.names if name in quest.anchor]
    mine = [profile(quest.anchor[name]) for name in names]
    known: dict[View, Profile] = {}

    def apart(cut: Cut) -> float:
        views = {name: view for each in some for name, view in parts_of(each, cut).items()}
        for view in views.values():
            if view not in known:
                known[view] = profile(view.read(quest.suspect))
        return float(np.trace(distances(mine, [known[views[name]] for name in names])))

    return min(cuts, key=apart)
