"""Which part of a suspect is which tensor of the anchor, and in which layout.

By likeness to the anchor only, cheap things first: names, shapes, slices of fused tensors, joined
pieces, products; on small samples, then exactly on the whole of what was chosen.

    suspect     what is read: whole tensors, or rows
    views       parts of a suspect, put together (with `combined`)
    layouts     how one shape is stored as another (with `shapes`)
    likeness    cosines of rows and columns
    wholes      what a suspect holds, and what wrappers make of it
    seeking     what is sought, where, within which limits
    candidates  by name and by shape
    slices      of fused tensors (with `rowsearch`)
    joins       of pieces
    flattened   of vectors that hold many tensors
    products    of factors
    assembled   sums of branches, chains of factors, kernels without padding (`factored`, `padded`)
    kinship     what lies where its neighbours went
    fusions     of fused tensors whose channels were moved as well (with `cuts`)
    unpacking   of stacks, shards, factors whose channels were moved as well (with `factored`)
    restructured  candidates for the aligner, by name or profile (with `profiles`, `renumbering`)
    gathered    neighbours as one tensor, for layers that were moved and taken apart (with `runs`)
    assigning   who takes what
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating import (
    candidates,
    flattened,
    fusions,
    joins,
    kinship,
    products,
    restructured,
    slices,
)
from neuralmark.anchors.locating.assembled import assembled
from neuralmark.anchors.locating.assigning import one_to_one, shared
from neuralmark.anchors.locating.likeness import Likeness, large_sample, likeness
from neuralmark.anchors.locating.seeking import (
    LIMIT,
    SETTLED,
    Candidate,
    Found,
    Quest,
    Wanted,
    begin,
)
from neuralmark.anchors.locating.suspect import SuspectWeights, own_name
from neuralmark.anchors.locating.unpacking import unpacked
from neuralmark.anchors.locating.views import Stored, View
from neuralmark.structures.renaming import renamed
from neuralmark.structures.structure import Array, Structure

Step = Callable[[Quest, Sequence[Wanted], Found], list[Candidate]]

Progress = Callable[[str, int, int], None]
"""Called with what is being done, tensors done, tensors in all."""

_STEPS: dict[str, Step] = {
    "by name": candidates.by_names,
    "by shape": candidates.by_shapes,
    "in fused tensors": slices.by_slices,
    "in pieces": joins.by_joins,
    "as products": products.by_products,
    "in vectors": flattened.by_vectors,
    "by what is beside them": kinship.by_kin,
}
"""What is tried in turn, each for what has not been found so far."""


@dataclass(frozen=True)
class Located:
    """Where a tensor of the anchor was found."""

    view: View
    cosine: float
    """Likeness to the anchor, rows (or columns) rescaled by regression; 0 to 1."""
    direct: bool
    """Nothing is left to align."""
    changes: tuple[str, ...] = ()
    """What was done to it, its name included."""


class LocatedWeights(Mapping[str, Array]):
    """What was found for each tensor of an anchor, in its layout; read when asked for."""

    def __init__(self, suspect: SuspectWeights, located: Mapping[str, Located]) -> None:
        """By the names of the anchor."""
        self._suspect, self._located = suspect, located

    def __getitem__(self, name: str) -> Array:
        """Its values."""
        return self._located[name].view.read(self._suspect)

    def __iter__(self) -> Iterator[str]:
        """The names of what was found."""
        return iter(self._located)

    def __len__(self) -> int:
        """How many were found."""
        return len(self._located)

    def traced(self) -> Structure | None:
        """The map of a live suspect, in the anchor's names; None where there is none."""
        structure = self._suspect.traced()
        if structure is None:
            return None
        views = {name: located.view for name, located in self._located.items()}
        whole = {name: view.name for name, view in views.items() if isinstance(view, Stored)}
        return renamed(structure, {stored: name for name, stored in whole.items()})


def locate(
    suspect: SuspectWeights,
    anchor: Anchor,
    names: Collection[str] | None = None,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> dict[str, Located]:
    """For each tensor of the anchor (of these names) the likest part of the suspect.

    Args:
        suspect: What is looked through.
        anchor: What is sought.
        names: Only these; None: all.
        limit: How many tensors of the suspect are compared with those of one shape, at most.
        progress: Called with what is being done, steps done, and steps in all.

    Returns:
        Where each was found, by its canonical name; those that were not are absent.
    """
    tell = progress or (lambda *_: None)
    quest = Quest(suspect, anchor, [], anchor.skeleton.heads, limit)
    exact: dict[tuple[str, View], Located] = {}
    seen: list[Candidate] = []
    sought = set(anchor) if names is None else set(names)
    for wanted in begin(quest, sought):
        tell(f"finding {wanted.name}", len(quest.wanted), len(sought))
        quest.wanted.append(wanted)
        own = candidates.at_once(quest, wanted)
        if own is not None:
            seen.append(own)
            exact[own.name, own.view] = _exact(quest, own)
    found = _chosen(quest, seen, tell)
    return {
        w.name: exact.get((w.name, found[w.name].view)) or _exact(quest, found[w.name])
        for w in quest.wanted
        if w.name in found
    }


def by_names(suspect: SuspectWeights, anchor: Anchor) -> dict[str, Located]:
    """The tensors that go by the anchor's own names, likeness aside."""
    held = {own_name(stored): stored for stored in reversed(list(suspect.shapes))}
    named = {entry.name: held.get(entry.name) for entry in anchor.entries if entry.rows is None}
    fits = {
        name: stored
        for name, stored in named.items()
        if stored and len(suspect.shapes[stored]) == len(anchor.entry(name).shape)
    }
    return {name: Located(Stored(stored), 0.0, direct=False) for name, stored in fits.items()}


def _chosen(quest: Quest, seen: list[Candidate], tell: Progress) -> dict[str, Candidate]:
    """The likest of all that is found in any way; what is not alike, by name or profile."""
    tied = [frozenset(pair) for pair in quest.anchor.skeleton.tied]
    found = {each.name: each for each in seen}
    apart = [wanted for wanted in quest.wanted if wanted.name not in found]
    quest = assembled(quest, apart) if apart else quest
    for what, step in _STEPS.items():
        left = [wanted for wanted in quest.wanted if not _settled(found.get(wanted.name), step)]
        if left:
            tell(f"finding tensors {what}", len(quest.wanted) - len(left), len(quest.wanted))
            seen += step(quest, left, found)
            found = shared(one_to_one(seen), seen, tied)
    sure = {w.name: found[w.name] for w in quest.wanted if restructured.known(w, found)}
    unlike = [wanted for wanted in quest.wanted if wanted.name not in sure]
    wide = unpacked(quest, unlike) if unlike else quest
    for last in (fusions.by_fusions, restructured.by_profiles):
        unlike = [wanted for wanted in quest.wanted if wanted.name not in sure]
        chosen = last(wide, unlike, sure) if unlike else []
        sure |= {each.name: each for each in chosen}
    return sure


def _settled(found: Candidate | None, step: Step) -> bool:
    """Whether a tensor need not be sought in this way any more."""
    if found is None:
        return False
    return found.direct and (found.score >= SETTLED or step is not candidates.by_shapes)


def _exact(quest: Quest, found: Candidate) -> Located:
    """The likeness of the whole, or of many of its weights; of other lengths, none."""
    seen, shape = Likeness(0.0, 1.0, 0), quest.anchor.entry(found.name).kept_shape
    if found.view.shape(quest.suspect.shapes) == shape:
        index = large_sample(shape, quest.anchor.digest)
        seen = likeness(found.view.take(quest.suspect, index), quest.anchor.part(found.name, index))
    renamed = any(own_name(name) != found.name for name in found.view.stored())
    told = ("renamed", *found.view.changes) if renamed else found.view.changes
    return Located(found.view, seen.cosine, seen.direct, told)
