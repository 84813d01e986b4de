"""A suspect in the anchor's coordinates: located, aligned, rescaled, cleaned, the rest filled.

Everything here is decided by likeness to the anchor, before a key is drawn from its digest. Tensors
are restored one at a time, so memory is a few times the largest of them.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.aligning import align
from neuralmark.anchors.aligning.contract import ALIKE, Aligned, too_large
from neuralmark.anchors.anchor import ALIGNER_VERSION, MARKED, Anchor, AnchorEntry
from neuralmark.anchors.cleaning import Cleaned, Trust, clean, rounding_of
from neuralmark.anchors.descent import kinship, lost
from neuralmark.anchors.effort import AlignOptions, over_all_depths
from neuralmark.anchors.factors import likeness, rescaled
from neuralmark.anchors.locating import Located, LocatedWeights, locate
from neuralmark.anchors.locating.suspect import SuspectWeights, own_name
from neuralmark.anchors.locating.views import Stored, View
from neuralmark.anchors.moves import Move, Moves, moved
from neuralmark.anchors.ordering import Ordering, moves_fit
from neuralmark.anchors.refinding import WEAK
from neuralmark.anchors.regrouping import needs_regrouping, regrouped
from neuralmark.anchors.resembling import comparable
from neuralmark.anchors.spares import BEHIND, LeftOver
from neuralmark.anchors.standing import (
    FAINT,
    QUICK,
    Closeness,
    closeness,
    holding,
    hollow,
    left_of,
    stands,
    trusted,
)
from neuralmark.records.alignment import Alignment, TensorFate, recorded
from neuralmark.records.lineage import NOT_FINITE, NOT_LOOKED_FOR, Kinship
from neuralmark.structures.structure import Array

Progress = Callable[[str, int, int], None]
"""Called with what is being done, tensors done, tensors in all."""

LEAST_LIKENESS = 0.35
"""A tensor that is less like the anchor than this, put in order, was not found: all of it is
filled. Strangers that are put in order come to 0.2 or 0.3."""
LEAST_BEHIND = 0.1
"""The same of one that lies in place behind what was added: nothing was put in order, so strangers
come to 0, and what has at most `standing.FAINT` times its energy in noise to 0.24 or more."""

HELD = 128 << 20
"""Bytes of tensors that are kept between two looks at them."""


@dataclass(frozen=True, eq=False)
class RestoredTensor:
    """One marked tensor: what is the suspect's, and what the anchor gives for the rest."""

    kept: Array | None
    """What the suspect differs by from the anchor, as far as it is trusted; None: nothing."""
    fill: Array
    """The anchor; or the suspect's own values, where little was done to any of its tensors."""
    share: float
    """Of its weights and directions, how much is not trusted."""
    trust: Trust
    """What `weigh` must know to join it with the others."""
    fate: TensorFate
    kinship: Kinship
    """How alike it is to the anchor, and what chance would give."""
    notes: tuple[str, ...] = ()
    products: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Suspect with anchor, suspect with itself, anchor with itself."""


class _Told:
    """What is remembered of a restored tensor: all but its weights."""

    def __init__(self, tensor: RestoredTensor) -> None:
        self.share, self.fate, self.notes = tensor.share, tensor.fate, tensor.notes
        self.products, self.kinship = tensor.products, tensor.kinship


class Restoration:
    """A suspect put back in order; its marked tensors come one at a time."""

    def __init__(
        self,
        suspect: SuspectWeights,
        anchor: Anchor,
        options: AlignOptions,
        progress: Progress | None = None,
    ) -> None:
        """Find the tensors and decide how each is put back; nothing is restored yet."""
        self._begun = time.monotonic()
        self._suspect, self._anchor, self._options = suspect, anchor, options
        self._progress = progress or (lambda *_: None)
        self._marked = [entry for entry in anchor.entries if entry.role == MARKED]
        self._sought = sought_names(self._marked, options.effort)
        found = locate(suspect, anchor, progress=self._progress)
        self._located: dict[str, Located] = dict(found)
        self._close: dict[str, Closeness] = {}
        self._held: dict[str, Array] = {}
        self._behind: set[str] = set()
        """Tensors that lie in place behind what was added to them, or were put in order there."""
        self.broken: set[str] = set()
        """Stored tensors that hold NaN or infinity in the place of a marked one, once restored."""
        sought = [entry.name for entry in self._marked if entry.name in self._sought]
        needy = [name for name in sought if not self._in_place(name) and name in self._located]
        self._aligned: dict[str, Aligned] = {}
        if needy:
            self._aligned = self._in_order(needy)
        self._put_together(sought)
        self._look_again(sought)
        self._done: list[_Told] = []

    def _in_place(self, name: str) -> bool:
        """Whether all of a tensor lies as in the anchor, so that nothing is to be aligned."""
        located, entry = self._located.get(name), self._anchor.entry(name)
        anchor = self._anchor[name]
        if located is not None and located.direct:
            values = located.view.read(self._suspect)
            if values.shape == entry.shape:
                found = closeness(values, anchor) if entry.shape else None
                if found is not None and found.near:
                    self._close[name] = found
                    self._hold(name, values)
                    return True
                if stands(values, anchor):
                    return True
        return math.prod(entry.shape) <= QUICK and self._lies_behind(name, anchor)

    def _hold(self, name: str, values: Array) -> None:
        """Keep what was read for the second look, as long as that is little."""
        if values.nbytes + sum(each.nbytes for each in self._held.values()) <= HELD:
            self._held[name] = values

    def _lies_behind(self, name: str, anchor: Array, beyond: float | None = None) -> bool:
        """Whether a tensor lies in place behind what was added; remembered if it does.

        `beyond`: with less noise than this, that of another order of its channels.
        """
        located = self._located.get(name)
        own = [] if located is None else [located.view]
        for view in dict.fromkeys([*own, *_namesakes(self._suspect, name)]):
            if view.shape(self._suspect.shapes) != anchor.shape:
                continue
            found = trusted(view.read(self._suspect), anchor)
            if found.firm if beyond is None else found.noise < min(beyond, FAINT):
                known = located is not None and located.view == view
                changes = located.changes if located is not None and known else view.changes
                cosine = located.cosine if located is not None and known else 0.0
                self._located[name] = Located(view, cosine, direct=True, changes=changes)
                self._behind.add(name)
                return True
        return False

    def _in_order(self, needy: list[str]) -> dict[str, Aligned]:
        """How those that do not lie in place are put in order."""
        suspect, anchor, limit = self._suspect, self._anchor, self._options.limit
        found = Ordering(suspect, anchor, limit, self._progress).of(self._located, needy)
        self._located, aligned = found.located, found.aligned
        self._behind |= found.clear
        weak = [name for name, one in aligned.items() if one.cosine < WEAK]
        for name in weak:
            beyond = self._noise(name, aligned[name])
            if self._lies_behind(name, anchor[name], beyond):
                del aligned[name]
        return aligned

    def _put_together(self, sought: list[str]) -> None:
        """For what was taken apart as well, put neighbours together; all of it in order again."""
        if not needs_regrouping(self._located, self._aligned, sought):
            return
        suspect, anchor, limit = self._suspect, self._anchor, self._options.limit
        found = regrouped(suspect, anchor, self._located, self._aligned, self._behind, limit)
        if not found:
            return
        self._located |= found
        views = LocatedWeights(suspect, self._located)
        names = [n for n in sought if n in self._aligned or n in found]
        for name, one in align(views, anchor, names, limit, self._progress, views.traced()).items():
            if name in found or one.cosine > self._aligned[name].cosine:
                self._aligned[name] = one
                self._behind.discard(name)

    def _look_again(self, sought: list[str]) -> None:
        """For what is not very like the anchor, take what is left over where that is likelier."""
        looked = LeftOver(self._suspect, self._anchor, self._located)
        if not any(len(shape) > 1 for shape in looked.rest(set()).shapes.values()):
            return
        taken = {n: self._likeness(n) for n in sought if n in self._located if n not in self._close}
        for name, found in looked.likest(taken, self._options.limit, self._progress).items():
            self._located[name], self._aligned[name] = found
            self._behind.discard(name)

    def _likeness(self, name: str) -> float:
        """Of what was taken for a tensor, in order; behind what was added it is not seen."""
        if name in self._behind:
            return BEHIND
        if name in self._aligned:
            return self._aligned[name].cosine
        return _as_found(self._located[name].view.read(self._suspect), self._anchor[name])

    def _noise(self, name: str, aligned: Aligned) -> float:
        """What noise is left in a tensor that was put in order."""
        anchor, values = self._anchor[name], self._located[name].view.read(self._suspect)
        if not moves_fit(values, aligned.moves, anchor.shape):
            return math.inf
        values, _ = rescaled(moved(values, aligned.moves), anchor)
        return trusted(values, anchor, [move.found for move in aligned.moves]).noise

    def tensors(self) -> Iterator[tuple[AnchorEntry, RestoredTensor]]:
        """The marked tensors, in the order of the mark."""
        self._done = []
        for number, entry in enumerate(self._marked):
            self._progress(f"restoring {entry.name}", number, len(self._marked))
            restored = self._restored(entry)
            self._done.append(_Told(restored))
            yield entry, restored
        self._progress("restoring tensors", len(self._marked), len(self._marked))

    def record(self) -> Alignment:
        """What became of the tensors; to be asked for when all were restored."""
        sizes = [math.prod(entry.shape) for entry in self._marked]
        whole = sum(sizes)
        found = _mean([each.fate.found for each in self._done], sizes)
        filled = _mean([each.share for each in self._done], sizes)
        products = [each.products for each in self._done]
        dot, energy, held = (math.fsum(p[i] for p in products) for i in range(3))
        return Alignment(
            anchor=self._anchor.digest.hex(),
            aligner=ALIGNER_VERSION,
            tensors=tuple(each.fate for each in self._done),
            effort=self._options.effort,
            found=recorded(found if whole else 0.0),
            set_aside=recorded(max(0.0, filled - (1 - found))),
            likeness=recorded(_cosine((dot, energy, held))),
            notes=tuple(f"{each.fate.name}: {note}" for each in self._done for note in each.notes),
            seconds=round(time.monotonic() - self._begun, 1),
        )

    def kinships(self) -> tuple[Kinship, ...]:
        """How alike the tensors are to the anchor; to be asked for when all were restored."""
        told = zip(self._marked, self._done, strict=True)
        return tuple(each.kinship for entry, each in told if comparable(entry.shape))

    def _restored(self, entry: AnchorEntry) -> RestoredTensor:
        if self._untouched:
            return self._as_it_is(entry)
        anchor = self._anchor[entry.name]
        placed = self._placed(entry)
        if placed is None:
            return self._filled(entry, anchor, NOT_LOOKED_FOR)
        located, moves, changes = placed
        values = located.view.read(self._suspect)
        if not moves_fit(values, moves, entry.shape):
            return self._filled(entry, anchor, "of another shape")
        before = located.cosine or _as_found(values, anchor)
        beyond = too_large(values.shape, entry.shape, self._options.limit)
        values = moved(values, moves)
        if not np.isfinite(values).all():
            self.broken.update(located.view.stored())
            return self._filled(entry, anchor, NOT_FINITE)
        if entry.name not in self._close and hollow(values, anchor):
            return self._filled(entry, anchor, beyond or "it is nothing but one pattern")
        behind = entry.name in self._behind
        scaled: tuple[str, ...] = ()
        if entry.name not in self._close and not behind:
            if likeness(values, anchor) < LEAST_LIKENESS:
                return self._filled(entry, anchor, beyond or "nothing like it was found")
            fitted, scaled = rescaled(values, anchor)
            still = all(move.is_same for move in moves)
            values = fitted if scaled or not still else values  # else what was regressed is noise
        masks = [move.found for move in moves] + [np.ones(1, bool)] * (2 - len(moves))
        masks = list(holding(values)) if behind else masks
        cleaned = clean(values, anchor, (masks[0], masks[1]))
        read = _as_read(cleaned) if behind else values
        products = _products(read, anchor)
        cosine = _cosine(products)
        if behind and cosine < LEAST_BEHIND:
            return self._filled(entry, anchor, beyond or "nothing like it was found")
        if beyond and cosine < ALIKE and not located.direct and not behind:
            changes = (*changes, beyond)
        fate = TensorFate(
            name=entry.name,
            source=located.view.describe(),
            likeness=recorded(before),
            restored=recorded(cosine),
            found=recorded(float(masks[0].mean() * masks[1].mean())),
            changes=tuple(dict.fromkeys((*changes, *scaled))),
        )
        kin = self._kin(fate, values, cleaned, moves)
        share, trust, notes = cleaned.share, cleaned.trust, cleaned.notes
        return RestoredTensor(cleaned.kept, cleaned.fill, share, trust, fate, kin, notes, products)

    def _kin(self, fate: TensorFate, values: Array, cleaned: Cleaned, moves: Moves) -> Kinship:
        """How alike it is; behind what was added, if that can be told from the rest."""
        if fate.name in self._behind and left_of(cleaned).firm:
            return kinship(fate, _as_read(cleaned), self._anchor, moves, cleaned.share)
        return kinship(fate, values, self._anchor, moves)

    @property
    def _untouched(self) -> bool:
        """Whether every tensor lies in place and little was done: what is there is read."""
        return len(self._close) == len(self._marked) and all(c.little for c in self._close.values())

    def _as_it_is(self, entry: AnchorEntry) -> RestoredTensor:
        located, products = self._located[entry.name], self._close[entry.name].products
        fate = TensorFate(
            name=entry.name,
            source=located.view.describe(),
            likeness=recorded(located.cosine),
            restored=recorded(_cosine(products)),
            found=1.0,
            changes=tuple(dict.fromkeys(located.changes)),
        )
        values = self._held.pop(entry.name, None)
        values = located.view.read(self._suspect) if values is None else values
        trust = Trust(values.size, 1.0, 0.0, 0.0, little=True)
        kin = kinship(fate, values, self._anchor, ())
        return RestoredTensor(None, values, 0.0, trust, fate, kin, (), products)

    def _placed(self, entry: AnchorEntry) -> tuple[Located, Moves, tuple[str, ...]] | None:
        """Where a tensor was found, and how its axes move; None where it was not looked for."""
        located = self._located.get(entry.name)
        if located is None or entry.name not in self._sought:
            return None
        aligned = self._aligned.get(entry.name)
        if aligned is None:
            axes = entry.shape[:2]
            return located, tuple(map(Move.same, axes)), located.changes
        return located, aligned.moves, (*located.changes, *aligned.changes)

    def _filled(self, entry: AnchorEntry, anchor: Array, why: str) -> RestoredTensor:
        sought, located = entry.name in self._sought, self._located.get(entry.name)
        if sought and located is None:
            why = "not found"
        fate = TensorFate(
            name=entry.name,
            source="",
            likeness=0.0,
            restored=0.0,
            found=0.0,
            changes=(f"filled from the anchor: {why}",),
        )
        trust = Trust(anchor.size, 0.0, 0.0, rounding_of(anchor))
        return RestoredTensor(None, anchor, 1.0, trust, fate, lost(entry, why))


def _as_found(values: Array, anchor: Array) -> float:
    """Likeness before anything was put in order; 0 where shapes differ."""
    return likeness(values, anchor) if values.shape == anchor.shape else 0.0


def _namesakes(suspect: SuspectWeights, name: str) -> list[View]:
    """What the suspect has under this very name."""
    return [Stored(each) for each in suspect.shapes if own_name(each) == name]


def sought_names(marked: list[AnchorEntry], effort: float) -> frozenset[str]:
    """The tensors that are looked for: a share of the weights, spread over all depths."""
    if effort >= 1:
        return frozenset(entry.name for entry in marked)
    order = over_all_depths(len(marked))
    wanted = effort * sum(math.prod(entry.shape) for entry in marked)
    chosen, total = set(), 0
    for place in order:
        if total >= wanted:
            break
        chosen.add(marked[place].name)
        total += math.prod(marked[place].shape)
    return frozenset(chosen)


def _as_read(cleaned: Cleaned) -> Array:
    """A tensor as the mark is read from it, where most of it was set aside: noise and all."""
    gain = cleaned.trust.gain
    return cleaned.fill + cleaned.kept / np.float32(gain) if gain > 0 else cleaned.kept


def _cosine(products: tuple[float, float, float]) -> float:
    dot, energy, held = products
    return dot / math.sqrt(energy * held) if energy * held > 0 else 0.0


def _products(values: Array, anchor: Array) -> tuple[float, float, float]:
    """Inner product and both energies, the same on every machine: no BLAS."""
    one, two = values.reshape(-1), anchor.reshape(-1)
    dot, energy, held = (
        float(np.einsum("i,i->", *pair, dtype=np.float64))
        for pair in ((one, two), (one, one), (two, two))
    )
    return dot, energy, held


def _mean(values: list[float], sizes: list[int]) -> float:
    whole = sum(sizes)
    return math.fsum(v * s for v, s in zip(values, sizes, strict=True)) / whole if whole else 0.0


def restore(
    suspect: SuspectWeights,
    anchor: Anchor,
    options: AlignOptions | None = None,
    progress: Progress | None = None,
) -> Restoration:
    """Put a suspect back into the order that the anchor knows."""
    return Restoration(suspect, anchor, options or AlignOptions(), progress)
