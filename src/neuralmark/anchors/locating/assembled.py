"""Layers that were taken apart, or padded with zeros, seen as they were, for all further steps.

What is in place has been found before this: it costs nothing where nothing was changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from neuralmark.anchors.locating.factored import branched
from neuralmark.anchors.locating.layouts import oriented_nearly
from neuralmark.anchors.locating.padded import unpadded
from neuralmark.anchors.locating.seeking import Quest, Wanted
from neuralmark.anchors.locating.suspect import Shape
from neuralmark.anchors.locating.views import Stored

_ANY = Stored("")
_LONGEST = 16
"""Parts of a name that are looked at."""


def assembled(quest: Quest, left: Sequence[Wanted]) -> Quest:
    """The same quest in a suspect with sums of branches, chains of factors, unpadded kernels."""
    sought = tuple(dict.fromkeys(each.shape for each in left))
    names = _KnownNames(frozenset(name for name, _ in quest.anchor.skeleton.shapes))
    made = list(islice(branched(quest.wholes, names.knows), quest.limit))
    inner = list(islice(unpadded(quest, (*quest.wholes, *made), sought), quest.limit))
    near = (each for each in made if _near(each.shape, sought))
    return replace(quest, unpacked=(*quest.unpacked, *near, *inner))


def _near(shape: Shape, sought: Sequence[Shape]) -> bool:
    """Whether a tensor could be one of those sought, in some layout."""
    return any(True for want in sought for _ in oriented_nearly(_ANY, shape, want))


@dataclass(frozen=True)
class _KnownNames:
    """Those of the anchor."""

    names: frozenset[str]

    def knows(self, name: str) -> bool:
        """Whether a name, or its end, is one of them."""
        parts = name.split(".")[-_LONGEST:]
        return any(".".join(parts[at:]) in self.names for at in range(len(parts)))
