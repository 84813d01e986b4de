"""What is sought, where, and within which limits."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from neuralmark.anchors.anchor import Anchor, AnchorEntry
from neuralmark.anchors.locating.layouts import layouts, oriented, size_of
from neuralmark.anchors.locating.likeness import SIDE, likeness, sample_of
from neuralmark.anchors.locating.suspect import Index, Shape, SuspectWeights
from neuralmark.anchors.locating.views import Spaced, View
from neuralmark.anchors.locating.wholes import Whole, wholes_of
from neuralmark.structures.structure import Array

SETTLED = 0.9
"""A tensor of the right name that is this alike is not sought anywhere else."""
LIMIT = 20_000
"""How many tensors of a suspect are compared with those of one shape, and how many are looked
through for rows, factors and profiles, at most."""

LOOK = 2.0**24
"""Multiplications that a look at a tensor costs at least; of twice the limit there is no more."""

_ROOM = 256 << 20
"""Bytes that all samples of the anchor may take."""


@dataclass(frozen=True, eq=False)
class Wanted:
    """A tensor of the anchor, and a sample of it."""

    entry: AnchorEntry
    index: Index
    sample: Array

    @property
    def name(self) -> str:
        """Its canonical name."""
        return self.entry.name

    @property
    def shape(self) -> Shape:
        """Of the original."""
        return self.entry.shape

    def views(self, whole: Whole) -> Iterator[View]:
        """All ways to see a tensor of a suspect as this one, rows of an embedding picked."""
        for view in layouts(whole.view, whole.shape, self.shape):
            yield self._kept(view)
        if self.entry.rows is None:
            return
        lengths = whole.shape
        for view in oriented(whole.view, lengths, self.shape, 0):
            if max(lengths) > self.shape[0] and size_of(lengths) > size_of(self.shape):
                yield self._kept(view)  # a vocabulary with more tokens at its end

    def _kept(self, view: View) -> View:
        rows = self.entry.rows
        return view if rows is None else Spaced(view, self.shape[0], rows)


@dataclass(frozen=True)
class Candidate:
    """A view that may be a tensor of the anchor."""

    name: str
    """The anchor's."""
    view: View
    score: float
    """Likeness of a sample, 0 to 1."""
    named: bool = False
    """Whether its name speaks for it too."""
    direct: bool = False
    """Whether the sample leaves nothing to align."""


Found = Mapping[str, Candidate]
"""The best so far, by the anchor's names."""


@dataclass(frozen=True, eq=False)
class Quest:
    """A suspect and what is sought in it."""

    suspect: SuspectWeights
    anchor: Anchor
    wanted: list[Wanted]
    heads: int = 0
    limit: int = LIMIT
    spent: list[float] = field(default_factory=lambda: [0.0])
    """Multiplications that went into looking through tensors."""
    unpacked: tuple[Whole, ...] = ()
    """What its stacks and shards hold, where that is looked at too."""

    @cached_property
    def wholes(self) -> list[Whole]:
        """What the suspect holds."""
        return [*wholes_of(self.suspect.shapes), *self.unpacked]

    @cached_property
    def by_name(self) -> dict[str, list[Whole]]:
        """All that go by a canonical name."""
        table: dict[str, list[Whole]] = defaultdict(list)
        for whole in self.wholes:
            table[whole.name].append(whole)
        return dict(table)

    def sample(self, view: View, wanted: Wanted) -> Array:
        """The part of a view that is compared."""
        return view.take(self.suspect, wanted.index)

    def judged(self, view: View, wanted: Wanted, *, named: bool = False) -> Candidate:
        """A view, and how alike samples are."""
        seen = likeness(self.sample(view, wanted), wanted.sample)
        return Candidate(wanted.name, view, seen.cosine, named, seen.direct)

    def busy(self, found: Found) -> set[str]:
        """Stored tensors that are surely something else as a whole."""
        shapes = self.suspect.shapes
        taken = set()
        for each in found.values():
            view = each.view.of if isinstance(each.view, Spaced) else each.view
            names = set(view.stored()) if each.score >= SETTLED else set()
            if size_of(view.shape(shapes)) == sum(size_of(shapes[name]) for name in names):
                taken |= names
        return taken

    def spend(self, multiplications: float) -> bool:
        """Whether there is room for one more look; a short one costs something too."""
        self.spent[0] += max(multiplications, LOOK)
        return not self.exhausted

    @property
    def exhausted(self) -> bool:
        """Whether there is no room for any more looks."""
        return self.spent[0] > self.limit * 2 * LOOK


def begin(quest: Quest, names: Collection[str]) -> Iterator[Wanted]:
    """Each tensor of these names, with a sample that is small enough to be held."""
    entries = [entry for entry in quest.anchor.entries if entry.name in names]
    secret = quest.anchor.digest
    side = SIDE
    while side > 8 and 4 * sum(_sampled(e.kept_shape, side) for e in entries) > _ROOM:
        side //= 2
    for entry in entries:
        index = sample_of(entry.kept_shape, side, secret)
        yield Wanted(entry, index, quest.anchor.part(entry.name, index))


def _sampled(shape: Shape, side: int) -> int:
    return size_of(tuple(0 if i is None else len(i) for i in sample_of(shape, side, b"")))
