"""How alike two models are, tensor by tensor, once the second is put into the first's order.

The first model stands in for an anchor. An alignment finds some likeness in anything: how much, the
same alignment tells on strangers whose tensors have the spectra of the second model's. What is
above that counts. Searches that end in nothing again and again are given up.
"""

import math
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.aligning import align_apart, align_together
from neuralmark.anchors.aligning.contract import Aligned, too_large
from neuralmark.anchors.anchor import MARKED, PARTNER, Anchor, AnchorEntry, Skeleton
from neuralmark.anchors.descent import taught, where_it_lies
from neuralmark.anchors.effort import AlignOptions
from neuralmark.anchors.factors import DRAWN_IN, rescaled
from neuralmark.anchors.locating import Located, LocatedWeights, locate
from neuralmark.anchors.locating.suspect import SuspectWeights
from neuralmark.anchors.locating.views import Stored
from neuralmark.anchors.moves import Move, moved
from neuralmark.anchors.ordering import moves_fit
from neuralmark.anchors.refinding import (
    BETTER,
    ENOUGH,
    LARGEST,
    WEAK,
    FreeFactors,
    products_like,
    shapes_to_spare,
)
from neuralmark.anchors.resembling import comparable, resemblance, turned
from neuralmark.anchors.restoring import Progress, sought_names
from neuralmark.anchors.standing import QUICK
from neuralmark.core.names import canonical_name
from neuralmark.records.alignment import TOO_LARGE, TensorFate, recorded
from neuralmark.records.lineage import (
    ALL_ZEROS,
    NOT_FINITE,
    NOT_LOOKED_FOR,
    RELATED_SCORE,
    Kinship,
)
from neuralmark.structures.structure import Array, Indices, Weights

PROBED = 2
"""Tensors of one shape that are put in order each by itself, in vain, before the rest is left."""
MOST_WORK = 1 << 30
"""Work that may be spent so, in vain, one after another: the cubes of the lengths of their axes."""
IN_VAIN = 8
"""Products that are put in order, in vain, before no more are tried."""

NOT_FOUND = "not found"


def kinships(
    model: SuspectWeights,
    skeleton: Skeleton,
    other: SuspectWeights,
    options: AlignOptions | None = None,
    progress: Progress | None = None,
) -> tuple[tuple[Kinship, ...], float]:
    """What in the other model is most like each tensor of the first; and how long it took."""
    begun = time.monotonic()
    tell = progress or (lambda *_: None)
    search = _Search(standing_in(model, skeleton), other, options or AlignOptions(), tell)
    told = search.told()
    return told, round(time.monotonic() - begun, 1)


def standing_in(model: SuspectWeights, skeleton: Skeleton) -> Anchor:
    """A model as an anchor: all its weights, as they are."""
    stored = {name: _stored(model, name) for name, _ in skeleton.shapes}
    entries = tuple(
        AnchorEntry(
            name,
            shape,
            MARKED if comparable(shape) else PARTNER,
        )
        for name, shape in skeleton.shapes
        if stored[name] is not None
    )

    def decode(entry: AnchorEntry, rows: Indices | None) -> Array:
        place = stored[entry.name]
        assert place is not None
        return model[place] if rows is None else model[place][rows]

    return Anchor(entries, skeleton, b"", decode)


def _stored(model: SuspectWeights, name: str) -> str | None:
    """The stored name of a canonical one."""
    if name in model.shapes:
        return name
    return next((each for each in model.shapes if canonical_name(each) == name), None)


@dataclass(frozen=True)
class _Placed:
    """One tensor put in order, and how alike it is then."""

    located: Located
    aligned: Aligned | None
    """None where it lies in order as it was found."""
    likeness: float
    found: float
    changes: tuple[str, ...]

    @classmethod
    def of(
        cls, values: Array, anchor: Array, located: Located, aligned: Aligned | None
    ) -> "_Placed":
        """`values` are as they were located."""
        likeness, done = 0.0, () if aligned is None else aligned.changes
        moves = tuple(map(Move.same, anchor.shape[:2])) if aligned is None else aligned.moves
        share = math.prod(float(move.found.mean()) for move in moves)
        if not moves_fit(values, moves, anchor.shape):
            share = 0.0
        if share > 0:
            values = moved(values, moves)
            likeness = resemblance(values, anchor)
        if likeness >= WEAK:
            done += tuple(word for word in rescaled(values, anchor)[1] if word != DRAWN_IN)
        return cls(located, aligned, likeness, share, tuple(dict.fromkeys(located.changes + done)))


class _Search:
    """Everything that is done to find the tensors of one model in another."""

    def __init__(
        self, anchor: Anchor, other: SuspectWeights, options: AlignOptions, tell: Progress
    ) -> None:
        """Find which part of the other model is which tensor; nothing is put in order yet."""
        self._anchor, self._other, self._options, self._tell = anchor, other, options, tell
        self._marked = [entry for entry in anchor.entries if entry.role == MARKED]
        sought = sought_names(self._marked, options.effort)
        self._names = [entry.name for entry in self._marked if entry.name in sought]
        located = self._by_name(locate(other, anchor, progress=tell))
        views = LocatedWeights(other, located)
        self._broken = {n for n in located if not np.isfinite(views[n]).all()}
        self._blank: set[str] = set()
        self._look_at_the_first(located)
        left_out = self._broken | self._blank
        self._located = {n: found for n, found in located.items() if n not in left_out}
        self._views = LocatedWeights(other, self._located)

    def _by_name(self, located: Mapping[str, Located]) -> dict[str, Located]:
        """What is like nothing as it lies is taken by its name, where the other model has that."""
        chosen = dict(located)
        stored = {canonical_name(name): name for name in self._other.shapes}
        for name in self._names:
            found, own, shape = located.get(name), stored.get(name), self._anchor.entry(name).shape
            if own is None or self._other.shapes[own] != shape:
                continue
            if found is None or (
                tuple(found.view.stored()) != (own,)
                and resemblance(found.view.read(self._other), self._anchor[name]) < WEAK
            ):
                chosen[name] = Located(Stored(own), 0.0, direct=False)
        return chosen

    def _look_at_the_first(self, located: Mapping[str, Located]) -> None:
        """Note which tensors hold nothing to compare, or lie in what is not finite."""
        for name in self._names:
            values = self._anchor[name]
            if not np.isfinite(values).all():
                self._broken.add(name)
            elif not values.any():
                self._blank.add(name)
        used = {each for found in located.values() for each in found.view.stored()}
        spare = {name: shape for name, shape in self._other.shapes.items() if name not in used}
        for name in set(self._names) - set(located):
            shape = self._anchor.entry(name).shape
            near = [each for each, found in spare.items() if found == shape]
            if any(not np.isfinite(self._other[each]).all() for each in near):
                self._broken.add(name)

    def told(self) -> tuple[Kinship, ...]:
        """What became of every tensor, also of those that were not looked for."""
        there = [name for name in self._names if name in self._located]
        needy = [name for name in there if not self._located[name].direct]
        aligned = self._in_order("", self._views, needy, PROBED)
        placed: dict[str, _Placed] = {}
        for number, name in enumerate(there):
            self._tell(f"comparing {name}", number, len(there))
            placed[name] = self._placed(self._located[name], name, aligned.get(name))
        placed |= self._refound(placed)
        chances = self._chances(placed)
        told = [
            Kinship(self._fate(entry.name, placed), math.prod(entry.shape), chances[entry.name])
            for entry in self._marked
        ]
        return tuple(self._where_they_lie(told))

    def _where_they_lie(self, told: Sequence[Kinship]) -> Iterator[Kinship]:
        """For what is not very alike, what lies under the same name, where that is likelier."""
        stored = {canonical_name(name): name for name in self._other.shapes}
        vain = 0
        for number, each in enumerate(told):
            name = each.fate.name
            own = stored.get(name) if each.looked_for and name not in self._blank else None
            if own is None or each.score >= ENOUGH or self._other.shapes[own] != self._shape(name):
                yield each
                continue
            self._tell(f"comparing {name} where it lies", number, len(told))
            values, deep = self._other[own], each.weights <= QUICK and vain < IN_VAIN
            finite = bool(np.isfinite(values).all() and np.isfinite(self._anchor[name]).all())
            found = where_it_lies(name, own, values, self._anchor[name], deep=deep and finite)
            better = found.score * (1 - found.set_aside) > max(each.score, RELATED_SCORE)
            vain += deep and not better
            yield found if better else each

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._anchor.entry(name).shape

    def _in_order(
        self, what: str, views: Weights, names: Sequence[str], most: int
    ) -> dict[str, Aligned]:
        """Together, as far as the structure is known; what is not alike then, each by itself."""
        if not names:
            return {}
        self._tell(f"{what}putting tensors in order together", 0, len(names))
        found = align_together(
            views, self._anchor, names, self._options.limit, traced=self._views.traced()
        )
        shapes = {name: self._anchor.entry(name).shape for name in names}
        vain: Counter[tuple[int, ...]] = Counter()
        spent = 0
        for number, name in enumerate(sorted(names, key=lambda each: _work(shapes[each]))):
            work, done = _work(shapes[name]), name in found and found[name].cosine >= ENOUGH
            if name not in found and self._beyond(name):
                found[name] = Aligned.absent(shapes[name], TOO_LARGE)
                continue
            if done or vain[shapes[name]] >= most or (spent and spent + work > MOST_WORK):
                continue
            self._tell(f"{what}putting {name} in order", number, len(names))
            alone = align_apart(views[name], self._anchor[name], self._options.limit)
            if name not in found or alone.cosine > found[name].cosine:
                found[name] = alone
            failed = found[name].cosine < WEAK
            vain[shapes[name]] += failed
            spent = spent + work if failed else 0
        return found

    def _placed(self, located: Located, name: str, aligned: Aligned | None) -> _Placed:
        return _Placed.of(located.view.read(self._other), self._anchor[name], located, aligned)

    def _refound(self, placed: Mapping[str, _Placed]) -> dict[str, _Placed]:
        """Layers that were cut in two and rearranged, in the products of neighbours."""
        weak = {
            n: each
            for n, each in placed.items()
            if each.likeness < WEAK and not each.located.direct
        }
        used = {
            s for n, each in placed.items() if n not in weak for s in each.located.view.stored()
        }
        better: dict[str, _Placed] = {}
        spare = shapes_to_spare(self._other.shapes, self._anchor)
        vain = 0
        for number, name in enumerate(sorted(weak, key=lambda n: -self._anchor[n].size)):
            self._tell(f"looking for {name} in products", number, len(weak))
            anchor, best = self._anchor[name], weak[name]
            near = tuple(best.located.view.stored())
            free = FreeFactors(self._other.shapes, used, spare)
            for view in products_like(free, anchor.shape, near):
                if vain >= IN_VAIN or anchor.size > LARGEST or best.likeness >= ENOUGH:
                    break
                located = Located(view, 0.0, direct=False, changes=("renamed", view.change))
                aligned = align_apart(view.read(self._other), anchor, self._options.limit)
                this = self._placed(located, name, aligned)
                vain += this.likeness < WEAK
                if this.likeness > weak[name].likeness + BETTER and this.likeness > best.likeness:
                    better[name] = best = this
            if name in better:
                used |= set(better[name].located.view.stored())
        return better

    def _chances(self, placed: Mapping[str, _Placed]) -> dict[str, float]:
        """The likeness to which strangers with the same spectra are brought, for each shape."""
        names = [name for name, each in placed.items() if each.aligned is not None]
        located = self._located | {name: each.located for name, each in placed.items()}
        strangers = Strangers(LocatedWeights(self._other, located))
        aligned = self._in_order("what chance gives: ", strangers, names, 1)
        likest: dict[tuple[int, ...], float] = {}
        for name, each in aligned.items():
            anchor = self._anchor[name]
            luck = _Placed.of(strangers[name], anchor, located[name], each).likeness
            likest[anchor.shape] = max(luck, likest.get(anchor.shape, 0.0))
        luck_of = {
            name: max(likest.get(self._anchor.entry(name).shape, 0.0), taught(each.aligned.moves))
            for name, each in placed.items()
            if each.aligned is not None
        }
        return {e.name: recorded(min(luck_of.get(e.name, 0.0), 0.999)) for e in self._marked}

    def _fate(self, name: str, placed: Mapping[str, _Placed]) -> TensorFate:
        if name in placed:
            each = placed[name]
            return TensorFate(
                name=name,
                source=each.located.view.describe(),
                likeness=recorded(each.located.cosine),
                restored=recorded(each.likeness),
                found=recorded(each.found),
                changes=self._with_limit(name, each),
            )
        why = NOT_FINITE if name in self._broken else NOT_FOUND
        why = ALL_ZEROS if name in self._blank else why
        why = why if name in self._names else NOT_LOOKED_FOR
        return TensorFate(name, "", 0.0, 0.0, 0.0, (why,))

    def _with_limit(self, name: str, placed: _Placed) -> tuple[str, ...]:
        """What was done to a tensor; where it was too large to align, the limit that it needs."""
        needed = self._beyond(name) or TOO_LARGE
        return tuple(needed if change == TOO_LARGE else change for change in placed.changes)

    def _beyond(self, name: str) -> str:
        """What to say of a tensor that is too large to align; empty where it is not."""
        shape = self._located[name].view.shape(self._other.shapes)
        return too_large(shape, self._anchor.entry(name).shape, self._options.limit)


class Strangers(Mapping[str, Array]):
    """Tensors that have nothing of others but their spectra; vectors stay as they are."""

    def __init__(self, weights: Weights) -> None:
        """Of any weights."""
        self._weights = weights

    def __getitem__(self, name: str) -> Array:
        """A whole tensor, the same every time."""
        return turned(self._weights[name], zlib.crc32(name.encode("utf-8", "replace")))

    def __iter__(self) -> Iterator[str]:
        """Their names."""
        return iter(self._weights)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._weights)


def _work(shape: Sequence[int]) -> int:
    """What it takes to put a tensor in order, up to a factor: its axes are assigned."""
    return sum(length**3 for length in shape[:2])
