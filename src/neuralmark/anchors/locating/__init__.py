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
    assigning   who takes what
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating import candidates, slices
from neuralmark.anchors.locating.assigning import one_to_one, shared
from neuralmark.anchors.locating.likeness import CONVINCING, likeness
from neuralmark.anchors.locating.seeking import (
    LIMIT,
    SETTLED,
    Candidate,
    Found,
    Quest,
    Wanted,
    quest_of,
)
from neuralmark.anchors.locating.suspect import SuspectWeights
from neuralmark.anchors.locating.views import View
from neuralmark.core.names import canonical_name

Step = Callable[[Quest, Sequence[Wanted], Found], list[Candidate]]

_STEPS: tuple[tuple[Step, float], ...] = (
    (candidates.by_names, 1.0),
    (candidates.by_shapes, SETTLED),
    (slices.by_slices, CONVINCING),
)
"""What is tried in turn, each for what is less alike than so far."""


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


def locate(
    suspect: SuspectWeights,
    anchor: Anchor,
    names: Collection[str] | None = None,
    limit: int = LIMIT,
) -> dict[str, Located]:
    """For each tensor of the anchor (of these names) the likest part of the suspect.

    Args:
        suspect: What is looked through.
        anchor: What is sought.
        names: Only these; None: all.
        limit: How many tensors of the suspect are compared with those of one shape, at most.

    Returns:
        Where each was found, by its canonical name; those that were not are absent.
    """
    quest = quest_of(suspect, anchor, set(anchor) if names is None else set(names), limit)
    tied = [frozenset(pair) for pair in anchor.skeleton.tied]
    seen: list[Candidate] = []
    found: dict[str, Candidate] = {}
    for step, enough in _STEPS:
        left = [w for w in quest.wanted if w.name not in found or found[w.name].score < enough]
        if left:
            seen += step(quest, left, found)
            found = shared(one_to_one(seen), seen, tied)
    return {name: _exact(suspect, anchor, each) for name, each in found.items()}


def _exact(suspect: SuspectWeights, anchor: Anchor, found: Candidate) -> Located:
    whole = likeness(found.view.read(suspect), anchor[found.name])
    renamed = any(canonical_name(name) != found.name for name in found.view.stored())
    told = ("renamed", *found.view.changes) if renamed else found.view.changes
    return Located(found.view, whole.cosine, whole.direct, told)
