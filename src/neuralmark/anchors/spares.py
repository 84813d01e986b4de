"""Another look, among tensors that nothing was taken from: decoys under the names of the real ones.

A file may hold more than its network: the weights with noise, which no code uses, under the old
names, and the real ones, rearranged, under others. In their places the noisy ones are likest.
Where what was taken is not very like the anchor, and tensors are left that could hold it, these are
located and put in order too, and whichever is then likest is taken. Chosen by likeness: it costs no
trial.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from neuralmark.anchors.aligning import align
from neuralmark.anchors.aligning.contract import ALIKE, Aligned
from neuralmark.anchors.anchor import MARKED, Anchor
from neuralmark.anchors.locating import Located, LocatedWeights, locate
from neuralmark.anchors.locating.suspect import Shape, SuspectWeights
from neuralmark.structures.structure import Array, Indices, Structure

Progress = Callable[[str, int, int], None]
Chosen = dict[str, tuple[Located, Aligned]]

BETTER = 0.02
"""By so much must another be more like the anchor."""
BEHIND = ALIKE - BETTER
"""What lies in place behind an addition gives way only to what is very like the anchor."""
MOST_LOOKS = 3
"""How often it is looked again, each time without what was seen before."""
SOMEWHAT = 0.35
"""What is less alike is not taken, nor looked beyond: strangers come to 0.2 or 0.3."""
_LEAST = 2
"""A tensor that has less than one in so many of the weights is not it."""


class RestWeights(Mapping[str, Array]):
    """A suspect without some of its tensors."""

    def __init__(self, suspect: SuspectWeights, without: set[str]) -> None:
        """Nothing is read."""
        self._suspect = suspect
        shapes = suspect.shapes.items()
        self.shapes: Mapping[str, Shape] = {n: shape for n, shape in shapes if n not in without}

    def __getitem__(self, name: str) -> Array:
        """A whole tensor as float32."""
        if name not in self.shapes:
            raise KeyError(name)
        return self._suspect[name]

    def __iter__(self) -> Iterator[str]:
        """Stored names."""
        return iter(self.shapes)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.shapes)

    def read_rows(self, name: str, rows: Indices, axes: int = 1) -> Array:
        """Some rows of a tensor."""
        return self._suspect.read_rows(name, rows, axes)

    def traced(self) -> Structure | None:
        """The map of a live module."""
        return self._suspect.traced()


@dataclass(frozen=True, eq=False)
class LeftOver:
    """What was taken for the tensors of an anchor, and how like it that is."""

    suspect: SuspectWeights
    anchor: Anchor
    located: Mapping[str, Located]

    def rest(self, seen: set[str]) -> RestWeights:
        """What was taken for nothing, nor seen before."""
        return RestWeights(self.suspect, seen | taken_for(self.located))

    def likest(
        self, taken: Mapping[str, float], limit: int, progress: Progress | None = None
    ) -> Chosen:
        """Others that are more like the anchor than what was taken, with their likeness, was."""
        best, chosen, seen = dict(taken), Chosen(), set[str]()
        held = dict(self.located)
        for _ in range(MOST_LOOKS):
            rest = self.rest(seen)
            weak = {n for n, cosine in best.items() if cosine < ALIKE and self._held(n, rest)}
            if not weak:
                break
            located = locate(rest, self.anchor, progress=progress)
            held |= self._but_firm(located, weak)
            views = LocatedWeights(self.suspect, held)
            names = [name for name in taken if name in weak and name in located]
            aligned = align(views, self.anchor, names, limit, progress, views.traced())
            for name, found in aligned.items():
                if found.cosine > max(best[name] + BETTER, SOMEWHAT):
                    best[name], chosen[name] = found.cosine, (located[name], found)
            if all(found.cosine < SOMEWHAT for found in aligned.values()):
                break
            seen |= taken_for(located)
        return chosen

    def _but_firm(self, located: Mapping[str, Located], weak: set[str]) -> dict[str, Located]:
        """What is put in order beside what was firmly found: the weak, and what is not marked."""
        firm = {e.name for e in self.anchor.entries if e.role == MARKED} - weak
        return {name: each for name, each in located.items() if name not in firm}

    def _held(self, name: str, rest: RestWeights) -> bool:
        """Whether any of the rest is large enough to hold a tensor."""
        size = math.prod(self.anchor.entry(name).shape) / _LEAST
        return any(len(each) > 1 and math.prod(each) >= size for each in rest.shapes.values())


def taken_for(located: Mapping[str, Located]) -> set[str]:
    """The stored tensors that were taken for any; not those of which something was made.

    A product of two may be likest by chance, and its factors may be what is sought.
    """
    parts = (set(each.view.stored()) for each in located.values())
    return {stored for each in parts if len(each) == 1 for stored in each}
