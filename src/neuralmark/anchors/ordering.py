"""How a suspect's tensors are put in order: by likeness, or behind what was added to them.

Noise in directions that a layer's inputs never take may be many times the layer. What was moved as
well is then not like the anchor even when it is in order again; that it is, shows when the noise is
set aside (`standing`). And such noise alone may have told which tensor is which: then it is tried
whether the names tell better. Chosen by likeness to the anchor: it costs no trial.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from neuralmark.anchors.aligning import align, align_together
from neuralmark.anchors.aligning.contract import Aligned, Progress
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating import Located, LocatedWeights, by_names
from neuralmark.anchors.locating.suspect import SuspectWeights
from neuralmark.anchors.moves import Moves, moved
from neuralmark.anchors.recutting import recut
from neuralmark.anchors.refinding import WEAK, refound
from neuralmark.anchors.spares import BEHIND
from neuralmark.anchors.standing import trusted
from neuralmark.structures.structure import Array


@dataclass(frozen=True, eq=False)
class InOrder:
    """Tensors that were put in order."""

    located: dict[str, Located]
    aligned: dict[str, Aligned]
    clear: frozenset[str] = frozenset()
    """Those that are like the anchor behind what was added to them."""


@dataclass(frozen=True, eq=False)
class Ordering:
    """A suspect and an anchor, and what may be spent on putting one in the other's order."""

    suspect: SuspectWeights
    anchor: Anchor
    limit: int
    tell: Progress

    def of(self, located: dict[str, Located], needy: list[str]) -> InOrder:
        """How those that do not lie in place are put in order, and where they were found."""
        cut = recut(self.suspect, self.anchor, located, needy, self.limit)
        found = self._as_named(self._aligned({**located, **cut}, needy), needy)
        better = refound(self.suspect, self.anchor, found.located, found.aligned, self.limit)
        return self._aligned({**found.located, **better}, needy) if better else found

    def _aligned(self, located: dict[str, Located], needy: list[str]) -> InOrder:
        views = LocatedWeights(self.suspect, located)
        traced = views.traced()
        aligned = align(views, self.anchor, needy, self.limit, self.tell, traced)
        weak = [name for name, found in aligned.items() if found.cosine < WEAK]
        clear = {name: aligned[name] for name in weak if self._behind(located[name], name, aligned)}
        rest = [name for name in weak if name not in clear]
        if rest and self._has_heads:
            beside = align_together(views, self.anchor, rest, self.limit, self.tell, traced)
            clear |= {n: beside[n] for n in beside if self._behind(located[n], n, beside)}
        for name, found in clear.items():
            aligned[name] = replace(found, cosine=max(found.cosine, BEHIND))
        return InOrder(located, aligned, frozenset(clear))

    @property
    def _has_heads(self) -> bool:
        structure = self.anchor.skeleton.structure
        return structure is not None and bool(structure.attentions)

    def _behind(self, located: Located, name: str, aligned: dict[str, Aligned]) -> bool:
        """Whether a tensor that was put in order is like the anchor behind what was added."""
        anchor, values = self.anchor[name], located.view.read(self.suspect)
        moves = aligned[name].moves
        if anchor.ndim < 2 or not moves_fit(values, moves, anchor.shape):
            return False
        return trusted(moved(values, moves), anchor).firm

    def _as_named(self, found: InOrder, needy: list[str]) -> InOrder:
        """By the names instead, where less than half is like the anchor and names tell twice it."""
        before, held = self._alike(found), found.located
        named = by_names(self.suspect, self.anchor)
        named = {n: one for n, one in named.items() if n not in held or held[n].view != one.view}
        if 2 * before > self._weights(needy) or not named:
            return found
        other = self._aligned({**held, **named}, needy)
        return other if self._alike(other) > 2 * before else found

    def _alike(self, found: InOrder) -> int:
        return self._weights(n for n, one in found.aligned.items() if one.cosine >= WEAK)

    def _weights(self, names: Iterable[str]) -> int:
        return sum(math.prod(self.anchor.entry(name).shape) for name in names)


def moves_fit(values: Array, moves: Moves, shape: tuple[int, ...]) -> bool:
    """Whether what was found has the axes that its moves and the anchor expect."""
    if values.ndim != len(shape) or len(moves) > values.ndim:
        return False
    for axis, move in enumerate(moves):
        length = values.shape[axis]
        if move.size != shape[axis]:
            return False
        if move.index is not None and len(move.index) and int(move.index.max()) >= length:
            return False
        if move.matrix is not None and move.matrix.shape[1] != length:
            return False
    return values.shape[len(moves) :] == shape[len(moves) :]
