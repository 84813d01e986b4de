"""A suspect in the anchor's coordinates: located, aligned, rescaled, cleaned, the rest filled.

Everything here is decided by likeness to the anchor, before a key is drawn from its digest. Tensors
are restored one at a time, so memory is a few times the largest of them.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from neuralmark.anchors.aligning import align
from neuralmark.anchors.aligning.contract import Aligned
from neuralmark.anchors.anchor import ALIGNER_VERSION, MARKED, Anchor, AnchorEntry
from neuralmark.anchors.cleaning import Trust, clean, rounding_of
from neuralmark.anchors.effort import AlignOptions
from neuralmark.anchors.factors import rescaled, unscaled
from neuralmark.anchors.locating import Located, locate
from neuralmark.anchors.locating.suspect import SuspectWeights
from neuralmark.anchors.moves import Move, Moves, moved
from neuralmark.anchors.refinding import refound
from neuralmark.records.alignment import Alignment, TensorFate
from neuralmark.structures.structure import Array

Progress = Callable[[str, int, int], None]
"""Called with what is being done, steps done, steps in all."""

LEAST_LIKENESS = 0.1
"""A tensor that is less like the anchor than this was not found: all of it is filled."""


@dataclass(frozen=True, eq=False)
class RestoredTensor:
    """One marked tensor: what is the suspect's, and what the anchor gives for the rest."""

    kept: Array | None
    """What the suspect differs by from the anchor, as far as it is trusted; None: nothing."""
    fill: Array
    """The anchor."""
    share: float
    """Of its weights and directions, how much is not trusted."""
    trust: Trust
    """What `weigh` must know to join it with the others."""
    fate: TensorFate
    notes: tuple[str, ...] = ()
    products: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Suspect with anchor, suspect with itself, anchor with itself."""


class _Told:
    """What is remembered of a restored tensor: all but its weights."""

    def __init__(self, tensor: RestoredTensor) -> None:
        self.share, self.fate, self.notes = tensor.share, tensor.fate, tensor.notes
        self.products = tensor.products


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
        self._progress("finding tensors", 0, 1)
        found = locate(suspect, anchor)
        self._located: dict[str, Located] = found
        needy = [name for name in self._sought if name in found and not found[name].direct]
        self._aligned: dict[str, Aligned] = {}
        if needy:
            self._progress("aligning", 0, 1)
            views = LocatedWeights(suspect, found)
            self._aligned = align(views, anchor, needy, options.limit)
            better = refound(suspect, anchor, found, self._aligned, options.limit)
            if better:
                self._located = found = {**found, **better}
                views = LocatedWeights(suspect, found)
                self._aligned = align(views, anchor, needy, options.limit)
        self._done: list[_Told] = []

    def tensors(self) -> Iterator[tuple[AnchorEntry, RestoredTensor]]:
        """The marked tensors, in the order of the mark."""
        self._done = []
        for number, entry in enumerate(self._marked):
            self._progress(f"restoring {entry.name}", number, len(self._marked))
            restored = self._restored(entry)
            self._done.append(_Told(restored))
            yield entry, restored
        self._progress("restored", len(self._marked), len(self._marked))

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
            found=_short(found if whole else 0.0),
            set_aside=_short(max(0.0, filled - (1 - found))),
            likeness=_short(dot / math.sqrt(energy * held) if energy * held > 0 else 0.0),
            notes=tuple(f"{each.fate.name}: {note}" for each in self._done for note in each.notes),
            seconds=round(time.monotonic() - self._begun, 1),
        )

    def _restored(self, entry: AnchorEntry) -> RestoredTensor:
        anchor = self._anchor[entry.name]
        placed = self._placed(entry)
        if placed is None:
            return self._filled(entry, anchor, "not looked for")
        located, moves, changes = placed
        values = located.view.read(self._suspect)
        if not _fits(values, moves, entry.shape):
            return self._filled(entry, anchor, "of another shape")
        values = moved(values, moves)
        if not np.isfinite(values).all():
            return self._filled(entry, anchor, "it holds NaN or infinity")
        scaled: tuple[str, ...] = ()
        still = all(move.is_same for move in moves)
        if not (still and unscaled(values, anchor)):
            fitted, scaled = rescaled(values, anchor)
            values = fitted if scaled or not still else values  # else what was regressed is noise
        dot, energy, held = _products(values, anchor)
        cosine = dot / math.sqrt(energy * held) if energy * held > 0 else 0.0
        if cosine < LEAST_LIKENESS:
            return self._filled(entry, anchor, "nothing like it was found")
        masks = [move.found for move in moves] + [np.ones(1, bool)] * (2 - len(moves))
        cleaned = clean(values, anchor, (masks[0], masks[1]))
        fate = TensorFate(
            name=entry.name,
            source=located.view.describe(),
            likeness=_short(located.cosine),
            restored=_short(cosine),
            found=_short(float(masks[0].mean() * masks[1].mean())),
            changes=tuple(dict.fromkeys((*changes, *scaled))),
        )
        products = dot, energy, held
        share, trust, notes = cleaned.share, cleaned.trust, cleaned.notes
        return RestoredTensor(cleaned.kept, cleaned.fill, share, trust, fate, notes, products)

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
            source="" if located is None else located.view.describe(),
            likeness=0.0 if located is None else _short(located.cosine),
            restored=0.0,
            found=0.0,
            changes=(f"filled from the anchor: {why}",),
        )
        trust = Trust(anchor.size, 0.0, 0.0, rounding_of(anchor))
        return RestoredTensor(None, anchor, 1.0, trust, fate)


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


def sought_names(marked: list[AnchorEntry], effort: float) -> frozenset[str]:
    """The tensors that are looked for: a share of the weights, spread over all depths."""
    if effort >= 1:
        return frozenset(entry.name for entry in marked)
    order = sorted(range(len(marked)), key=lambda i: (i * 0.6180339887498949) % 1.0)
    wanted = effort * sum(math.prod(entry.shape) for entry in marked)
    chosen, total = set(), 0
    for place in order:
        if total >= wanted:
            break
        chosen.add(marked[place].name)
        total += math.prod(marked[place].shape)
    return frozenset(chosen)


def _fits(values: Array, moves: Moves, shape: tuple[int, ...]) -> bool:
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


def _products(values: Array, anchor: Array) -> tuple[float, float, float]:
    """Inner product and both energies, the same on every machine: no BLAS, fixed pieces."""
    one, two = values.reshape(-1), anchor.reshape(-1)
    totals = np.zeros(3)
    for start in range(0, one.size, 1 << 20):
        a = one[start : start + (1 << 20)].astype(np.float64)
        b = two[start : start + (1 << 20)].astype(np.float64)
        totals += (float(np.sum(a * b)), float(np.sum(a * a)), float(np.sum(b * b)))
    return float(totals[0]), float(totals[1]), float(totals[2])


def _mean(values: list[float], sizes: list[int]) -> float:
    whole = sum(sizes)
    return math.fsum(v * s for v, s in zip(values, sizes, strict=True)) / whole if whole else 0.0


def _short(value: float) -> float:
    """To six digits: what is recorded does not hang on the last bits of a sum."""
    return float(min(1.0, max(-1.0, round(value, 6))))


def restore(
    suspect: SuspectWeights,
    anchor: Anchor,
    options: AlignOptions | None = None,
    progress: Progress | None = None,
) -> Restoration:
    """Put a suspect back into the order that the anchor knows."""
    return Restoration(suspect, anchor, options or AlignOptions(), progress)
