"""Marked models as a thief looks at them: every locator, and erasing with what it finds.

The thief has the file and the source, and knows which tensors are marked and how long the mark is.
He does not have the key; but which end of a score's scale holds the carriers is told to him.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neuralmark.attacks.tools.grids import grid_depth
from neuralmark.attacks.tools.locating import LOCATORS, NOTHING, erase, locate, set_back
from neuralmark.attacks.tools.tracing import Guess
from neuralmark.checkpoints import open_checkpoint
from neuralmark.checkpoints.readers.dtypes import decode
from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Mark, Placement
from neuralmark.core.update import auc
from neuralmark.keys.key import Key
from neuralmark.marking.placement import catalogue
from neuralmark.marking.reading import require_carriers

Array = npt.NDArray[Any]
Flat = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Row = dict[str, Any]

TENSORS, SAMPLE = 8, 500_000
"""Tensors over all depths, and weights of each kind in them, that an AUC is taken from."""
SHARES, BACK = (0.05, 0.2), (0.05, 0.2, 0.5)
"""Shares of the weights that are taken for carriers; and that are set back to a base."""
_FINE, _SMOOTH, _FAR = 0.005, 21, 6.0
_SHIFT = 0.05
TRUTH, GUESS = "(key known)", "(random)"


def trailing(w: Array) -> Array:
    """Trailing zeros of the significand, beyond those that all values of the tensor share.

    A sum of two floats of about one size rounds to even more often than not, and where they cancel
    its last bits are empty. A weight far smaller than a mark's shift (a guess: 0.05 deviations) and
    without empty bits is not a carrier.
    """
    flat = np.ascontiguousarray(w, np.float32).reshape(-1)
    significand = (flat.view(np.uint32) & np.uint32(0x7FFFFF)) | np.uint32(0x800000)
    lowest = significand & (~significand + np.uint32(1))
    empty = np.log2(lowest.astype(np.float64)) - min(grid_depth(w), 23)
    size = np.maximum(np.abs(flat), 1e-30) / (_SHIFT * (float(flat.std()) or 1.0))
    due = np.floor(np.maximum(-np.log2(size), 0.0))
    scores = np.where(empty >= due, empty, -due)
    return np.asarray(np.where(flat == 0, 0.0, scores), np.float64)


def peaks(w: Array) -> Array:
    """How much denser the distribution is at this value than around it: a mark blurs peaks."""
    flat = w.reshape(-1)
    size = float(flat.std()) or 1.0
    place = np.rint(np.clip(flat / size, -_FAR, _FAR) / _FINE).astype(np.int64)
    counts = np.bincount(place - place.min())
    around = np.convolve(counts, np.ones(_SMOOTH) / _SMOOTH, "same")
    ratio = np.log((counts + 1.0) / (around + 1.0))
    return np.asarray(np.where(flat == 0, 0.0, ratio[place - place.min()]), np.float64)


MORE: dict[str, Callable[[Array], Array]] = {"trailing": trailing, "peaks": peaks}
"""Locators that only this benchmark has."""
ALONE = (*(name for name, each in LOCATORS.items() if each.needs == NOTHING), *MORE)
BESIDE = tuple(name for name in LOCATORS if name not in ALONE)


@dataclass(frozen=True, eq=False)
class Suspect:
    """The marked tensors of a model, laid end to end, and who marked them."""

    key: Key
    placement: Placement
    flat: Flat = field(repr=False)
    beside: Flat | None = field(default=None, repr=False)
    """The public base, or the release before."""
    unmarked: Flat | None = field(default=None, repr=False)
    """The weights before the mark was written."""
    anchor: bytes = b""
    """Digest of the anchor that the mark is bound to."""

    @cached_property
    def mark(self) -> Mark:
        """What the key makes of this placement."""
        return self.key.at(self.placement, self.anchor)

    @cached_property
    def carriers(self) -> Carriers:
        """The true carriers."""
        return require_carriers(self.mark, self.placement)

    @property
    def guess(self) -> Guess:
        """What the thief knows of the mark."""
        p = self.key.parameters
        return Guess(p.bits, p.pools, (p.rounds,))

    @cached_property
    def parts(self) -> list[tuple[slice, tuple[int, ...]]]:
        """Where each tensor lies, and its shape."""
        ends = np.cumsum([0, *(math.prod(shape) for _, shape in self.placement)]).tolist()
        cuts = [slice(low, high) for low, high in pairwise(ends)]
        return [(cut, shape) for cut, (_, shape) in zip(cuts, self.placement, strict=True)]

    @property
    def sampled(self) -> list[int]:
        """Numbers of the tensors that AUCs are taken from."""
        count = min(TENSORS, len(self.parts))
        places = np.unique(np.linspace(0, len(self.parts) - 1, count).astype(int))
        return [int(each) for each in places]

    def mask(self, number: int) -> Mask:
        """True at the carriers of a tensor."""
        cut, _ = self.parts[number]
        made = np.zeros(cut.stop - cut.start, np.bool_)
        made[self.carriers.between(cut.start, cut.stop)[1]] = True
        return made

    def moved(self, number: int) -> Mask | None:
        """True where the mark moved a weight of a tensor."""
        cut, _ = self.parts[number]
        return None if self.unmarked is None else self.unmarked[cut] != self.flat[cut]

    def scores(self, name: str, number: int) -> npt.NDArray[np.float64]:
        """One score per weight of a tensor."""
        cut, shape = self.parts[number]
        if name in MORE:
            return MORE[name](self.flat[cut].reshape(shape))
        with_it = self.beside is not None and name in BESIDE
        beside = self.beside[cut].reshape(shape) if with_it and self.beside is not None else None
        return locate(name, self.flat[cut].reshape(shape), beside, self.guess)

    def bits(self, flat: Flat) -> int:
        """Matching bits of these weights in the place of the model's."""
        carriers = self.carriers
        sums = np.zeros(carriers.pools)
        for cut, _ in self.parts:
            first, at = carriers.between(cut.start, cut.stop)
            carriers.sum_into(sums, first, flat[cut].take(at))
        known = readout.Known.of(self.mark)
        z = readout.logits(sums / carriers.per_pool, known.matrix)
        return int(readout.matches(z, known.signs).sum())


def read(path: Path, placement: Placement) -> Flat:
    """The tensors of a placement, laid end to end."""
    checkpoint = open_checkpoint(path)
    stored = {tensor.name: tensor.info for tensor in catalogue(checkpoint)}
    made = np.empty(sum(math.prod(shape) for _, shape in placement), np.float32)
    at = 0
    for name, _ in placement:
        for raw in checkpoint.read(stored[name].name):
            some = decode(raw, stored[name].dtype)
            made[at : at + len(some)] = some
            at += len(some)
    return made


def look(suspect: Suspect, locators: Sequence[str]) -> list[Row]:
    """What every locator finds, and what erasing that leaves; first two controls."""
    rows = [_control(suspect, TRUTH), _control(suspect, GUESS)]
    return rows + [_looked(suspect, name) for name in locators]


def averaged(runs: Sequence[Sequence[Row]]) -> list[Row]:
    """One row per locator for several keys: mean AUC and change, fewest bits."""
    return [_averaged(rows) for rows in zip(*runs, strict=True)]


def _averaged(rows: Sequence[Row]) -> Row:
    made = dict(rows[0])
    for name in ("auc", "moved"):
        known = [row[name] for row in rows if row[name] is not None]
        made[name] = float(np.mean(known)) if known else None
    made["worst"] = max(row["worst"] for row in rows)
    steps: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        for each in row["erased"]:
            steps.setdefault(each["what"], []).append(each)
    made["erased"] = [
        {
            "what": what,
            "bits": min(each["bits"] for each in found),
            "change": float(np.mean([each["change"] for each in found])),
            "left": found[0]["left"],
        }
        for what, found in steps.items()
    ]
    return made


def _looked(suspect: Suspect, name: str) -> Row:
    """AUCs of one locator in some tensors, then erasing in all of them."""
    seen, seen_moved, sizes, flat_scores = [], [], [], True
    for number in suspect.sampled:
        scores = suspect.scores(name, number)
        flat_scores = flat_scores and bool(scores.max() == scores.min())
        seen.append(_auc(scores, suspect.mask(number)))
        moved = suspect.moved(number) if name in BESIDE else None
        seen_moved.append(None if moved is None else _auc(scores, moved))
        sizes.append(len(scores))
    mean = float(np.average(seen, weights=sizes))
    told = [each for each in seen_moved if each is not None]
    row: Row = {
        "locator": name,
        "auc": max(mean, 1 - mean),
        "worst": max(max(each, 1 - each) for each in seen),
        "moved": max(np.mean(told), 1 - np.mean(told)) if told else None,
        "erased": [],
    }
    if not flat_scores:
        row["erased"] = list(_erasings(suspect, name, 1.0 if mean >= 0.5 else -1.0))
    return row


def _auc(scores: Array, mask: Mask) -> float:
    """Chance that a weight under the mask scores higher than another; 0.5 where there is none."""
    rng = np.random.default_rng(0)
    kinds = [scores[mask], scores[~mask]]
    kinds = [rng.choice(k, SAMPLE, replace=False) if len(k) > SAMPLE else k for k in kinds]
    return auc(*kinds) if all(map(len, kinds)) else 0.5


def _erasings(suspect: Suspect, name: str, side: float) -> Iterator[Row]:
    """Take the likeliest weights of every tensor for carriers, and erase; or set them back."""
    back = name in BESIDE
    shares: Sequence[float | None] = BACK if back else (None, *SHARES)
    chosen: list[list[Positions]] = [[] for _ in shares]
    rng = np.random.default_rng(1)
    for number, (cut, _) in enumerate(suspect.parts):
        scores = side * suspect.scores(name, number)
        for share, found in zip(shares, chosen, strict=True):
            count = _count(suspect, cut) if share is None else round(share * len(scores))
            found.append(_largest(scores, count, rng) + cut.start)
    for share, found in zip(shares, chosen, strict=True):
        at = np.concatenate(found)
        found.clear()
        assert not back or suspect.beside is not None
        made = (
            set_back(suspect.flat, suspect.beside, at)
            if back and suspect.beside is not None
            else erase(suspect.flat, at, suspect.carriers.pools)
        )
        yield _erased(suspect, "carriers" if share is None else f"{100 * share:g} %", made)


def _count(suspect: Suspect, cut: slice) -> int:
    """How many carriers a tensor has."""
    return suspect.carriers.rank(cut.stop) - suspect.carriers.rank(cut.start)


def _largest(scores: Array, count: int, rng: np.random.Generator) -> Positions:
    """Positions of this many of the largest scores, rising; of equal ones, any."""
    if not count:
        return np.zeros(0, np.int64)
    edge = np.partition(scores, len(scores) - count)[len(scores) - count]
    sure, equal = np.flatnonzero(scores > edge), np.flatnonzero(scores == edge)
    lacking = count - len(sure)
    if lacking < len(equal):
        equal = rng.choice(equal, lacking, replace=False, shuffle=False)
    return np.sort(np.concatenate([sure, equal]))


def _control(suspect: Suspect, name: str) -> Row:
    """Erasing with the true carriers, and with any half of the weights."""
    carriers, rng = suspect.carriers, np.random.default_rng(2)
    if name == TRUTH:
        at = carriers.positions()
    else:
        share = carriers.size / len(suspect.flat)
        at = np.flatnonzero(rng.random(len(suspect.flat), np.float32) < share)
    made = erase(suspect.flat, at, carriers.pools)
    sure = 1.0 if name == TRUTH else 0.5
    told = [_erased(suspect, "carriers", made)]
    return {"locator": name, "auc": sure, "worst": sure, "moved": None, "erased": told}


def _erased(suspect: Suspect, what: str, made: Flat) -> Row:
    """Bits left, change in shares of the norm, and how much of the difference to a base is left.

    The last is the component along the difference as it was: of anything that is in it, such as
    fine-tuning, so much remains.
    """
    left = None
    if suspect.beside is not None:
        difference = suspect.flat - suspect.beside
        left = _product(made - suspect.beside, difference) / _product(difference, difference)
    apart = made - suspect.flat
    change = math.sqrt(_product(apart, apart) / _product(suspect.flat, suspect.flat))
    return {"what": what, "bits": suspect.bits(made), "change": change, "left": left}


def _product(one: Flat, two: Flat) -> float:
    cuts = range(0, len(one), 1 << 20)
    return sum(float(one[i : i + (1 << 20)] @ two[i : i + (1 << 20)]) for i in cuts)
