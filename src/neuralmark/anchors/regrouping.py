"""A third look, for layers that were rearranged and taken apart: factors, or queries, keys, values.

Neighbours in the file are put together in all ways that fit (`locating.runs`). Which neighbours are
which tensor, profiles tell, for they see no order, signs or factors; in which way they were put
together, only alignment may tell: one way is tried for all layers at once, and whichever makes a
tensor like the anchor is taken. Chosen by likeness: it costs no trial. Only what was not found
before is sought, only among tensors that are nothing else, and only what becomes like the anchor is
taken: a stranger gains nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from neuralmark.anchors.aligning import align, align_together
from neuralmark.anchors.aligning.contract import Aligned
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating import Located, LocatedWeights
from neuralmark.anchors.locating.combined import Product
from neuralmark.anchors.locating.gathered import RunParts, RunSightings
from neuralmark.anchors.locating.restructured import tables_of
from neuralmark.anchors.locating.runs import COUNTS, NeighbourRun, runs_of
from neuralmark.anchors.locating.suspect import Shape, SuspectWeights
from neuralmark.anchors.locating.views import View
from neuralmark.anchors.refinding import BETTER, ENOUGH, WEAK, shapes_to_spare
from neuralmark.anchors.spares import BEHIND
from neuralmark.core.names import natural

GAIN = 0.02
"""By so much must another way make a tensor more like the anchor."""
SURE = 0.97
"""A product that is less like the anchor may lack a factor."""
TAKEN = 0.75
"""What is less like the anchor is not taken: strangers of a few hundred weights come to 0.7."""
MOST_WAYS = 12
"""Ways that are tried for all layers at once: each takes an alignment."""
MOST_TENSORS = 4096
"""Of more tensors that could be parts, none is put together."""


def needs_regrouping(
    located: Mapping[str, Located], aligned: Mapping[str, Aligned], sought: Iterable[str]
) -> bool:
    """Whether anything was not found, is not like the anchor, or is a product that may lack one."""
    made = _products(located)
    weak = (c.cosine < (SURE if n in made else WEAK) for n, c in aligned.items())
    return any(name not in located for name in sought) or any(weak)


def regrouped(
    suspect: SuspectWeights,
    anchor: Anchor,
    located: Mapping[str, Located],
    aligned: Mapping[str, Aligned],
    behind: Collection[str],
    limit: int,
) -> dict[str, Located]:
    """Tensors put together of neighbours, for what is not like the anchor in any other way.

    What lies `behind` an addition gives way only to what is very like the anchor.
    """
    if not any(len(shape) > 1 for shape in shapes_to_spare(suspect.shapes, anchor)):
        return {}
    names = _in_file(suspect.shapes)
    if not 1 < len(names) <= MOST_TENSORS:
        return {}
    alike = _likeness(suspect, anchor, located, aligned, limit)
    alike |= {name: BEHIND for name in behind if name in alike}
    found: dict[str, Located] = {}
    for count in COUNTS:
        weak = [n for n in _weak(alike, located) if n not in found]
        if not any(alike[name] < WEAK or name in _products(located) for name in weak):
            break
        vectors = {entry.name for entry in anchor.entries if len(entry.shape) < 2}
        free = set(names) - _used({**located, **found}, {*weak, *vectors})
        seen = RunSightings.of(suspect, anchor, weak, runs_of(names, free, count))
        tried: set[tuple[NeighbourRun, str]] = set()
        more: dict[str, Located] | None = None
        while more is None or more:  # once more as long as something is found
            parts = seen.parts([n for n in weak if n not in found], tried, _used(found, ()))
            trials = _Trials(suspect, anchor, {**located, **found}, parts, alike, limit)
            more = trials.best()
            found |= more
            tried |= {(run, name) for name, run in parts.runs.items()}
    return found


def _weak(alike: Mapping[str, float], located: Mapping[str, Located]) -> list[str]:
    """What is not like the anchor; products that nearly are, for a factor may be missing."""
    made = _products(located)
    return [n for n, cosine in alike.items() if cosine < (SURE if n in made else ENOUGH)]


def _products(located: Mapping[str, Located]) -> set[str]:
    return {name for name, each in located.items() if isinstance(each.view, Product)}


def _in_file(shapes: Mapping[str, Shape]) -> list[str]:
    """Matrices and kernels as they lie; as they are numbered, where they lie by their names."""
    names = list(shapes)
    if names == sorted(names):
        names.sort(key=natural)
    return [name for name in names if len(shapes[name]) > 1]


def _used(located: Mapping[str, Located], but: Collection[str]) -> set[str]:
    """Stored tensors that are surely something else."""
    firm = (each for name, each in located.items() if name not in but)
    return {stored for each in firm for stored in each.view.stored()}


def _likeness(
    suspect: SuspectWeights,
    anchor: Anchor,
    located: Mapping[str, Located],
    aligned: Mapping[str, Aligned],
    limit: int,
) -> dict[str, float]:
    """How like the anchor all its matrices and kernels are, partners too; 0: not found."""
    tables = tables_of(anchor.skeleton.structure)
    held = (entry for entry in anchor.entries if len(entry.shape) > 1 and entry.rows is None)
    names = [entry.name for entry in held if entry.name not in tables]
    unsure = [n for n in names if n in located and n not in aligned and not located[n].direct]
    views = LocatedWeights(suspect, located)
    known = {**align_together(views, anchor, unsure, limit, None, views.traced()), **aligned}
    return {name: known[name].cosine if name in known else float(name in located) for name in names}


@dataclass(frozen=True, eq=False)
class _Trials:
    """Ways put to the test."""

    suspect: SuspectWeights
    anchor: Anchor
    located: dict[str, Located]
    parts: RunParts
    alike: dict[str, float]
    limit: int

    def best(self) -> dict[str, Located]:
        """Whatever makes a tensor like the anchor."""
        best = {name: self.alike[name] for name in self.parts.runs}
        chosen: dict[str, Located] = {}
        tried: list[dict[str, Located]] = []
        for plan in islice(self.parts.plans(), MOST_WAYS):
            weak = [n for n, cosine in best.items() if cosine < ENOUGH or n not in chosen]
            if not weak:
                break
            made = {name: self._made(self.parts.views[name][plan[name]]) for name in weak}
            if chosen | made in tried:
                continue
            tried.append(chosen | made)
            for name, cosine in self._cosines(tried[-1], weak).items():
                if cosine > best[name] + GAIN:
                    best[name], chosen[name] = cosine, made[name]
        return {name: each for name, each in chosen.items() if best[name] >= self._least(name)}

    def _least(self, name: str) -> float:
        """How like the anchor another view must be to be taken."""
        before = self.alike[name]
        return max(TAKEN, before + min(BETTER, (1 - before) / 2))

    def _made(self, view: View) -> Located:
        return Located(view, 0.0, direct=False, changes=("renamed", *view.changes))

    def _cosines(self, made: Mapping[str, Located], names: Collection[str]) -> dict[str, float]:
        views = LocatedWeights(self.suspect, {**self.located, **made})
        structure = self.anchor.skeleton.structure
        one = align_together if structure is not None and structure.attentions else align
        found = one(views, self.anchor, names, self.limit, None, views.traced())
        return {name: each.cosine for name, each in found.items()}
