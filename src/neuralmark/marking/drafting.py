"""Computing a mark for a checkpoint before anything is written: what changes, at what cost."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from neuralmark import schemes
from neuralmark.checkpoints import Checkpoint
from neuralmark.checkpoints.contract import Edits
from neuralmark.checkpoints.readers.dtypes import ITEMSIZE, Raw, decode, encode
from neuralmark.core.carriers import Carriers, Positions
from neuralmark.core.grid import Grid
from neuralmark.core.imprint import (
    LeastChange,
    Solver,
    goal_of,
    lacking,
    settle,
    strength_for,
)
from neuralmark.core.key import Float, Mark, Placement
from neuralmark.errors import (
    InfeasibleError,
    ParameterError,
    TooFewCarriersError,
    UnsuitableTensorError,
)
from neuralmark.keys.key import Key
from neuralmark.marking.coverage import require_readable
from neuralmark.marking.hiding import LEAST_STRENGTH, exposed, hidden_strength
from neuralmark.marking.options import WIDE, Spread, check_effort
from neuralmark.marking.placement import Tensor, auto, catalogue, placement_of, select
from neuralmark.marking.reading import Progress, Reading, require_carriers
from neuralmark.marking.surveying import Base, MarkedPart, Piece, Survey, Values, pieces, survey
from neuralmark.records import ClaimedAnchor

DEFAULT_STRENGTH = 2.0
DEFAULT_BUDGET = 2.0
_BUDGET_TRIES = 12
_COVER = 1
"""Tells the noise of the cover from that of the dithering."""


@dataclass(frozen=True)
class Draft:
    """A mark computed for a checkpoint but not yet written: how far each pool's weights move."""

    plan: "MarkingPlan"
    survey: Survey
    solver: Solver
    strength: float
    shifts: Float
    """How far weights of reach 1 move, pool by pool."""
    change_norm: float
    """‖Δw‖ over the marked tensors."""
    change_largest: float
    """Largest change of a single weight."""
    exposure: float | None = None
    """How well somebody with the public base finds the moved weights (AUC; 0.5: not at all)."""

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that it is for."""
        return self.plan.checkpoint

    @property
    def key(self) -> Key:
        """Whose mark it is."""
        return self.plan.key

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The marked tensors."""
        return self.plan.tensors

    @property
    def placement(self) -> Placement:
        """Their names and shapes."""
        return self.plan.placement

    @property
    def reading(self) -> Reading:
        """What was there before."""
        return self.survey.reading

    @property
    def kept(self) -> dict[str, str]:
        """Tensors that stay as they are, and why."""
        return {part.tensor.name: part.why for part in self.survey.parts if part.grid is None}

    def edits(self) -> Edits:
        """New bytes of each marked tensor, by stored name."""
        return {part.tensor.info.name: partial(self._new_bytes, part) for part in self.survey.parts}

    def marked_digests(self) -> dict[str, str]:
        """SHA-256 of the new bytes of each marked tensor, by canonical name."""
        edits, digests = self.edits(), {}
        for tensor in self.tensors:
            digest = hashlib.sha256()
            for piece in edits[tensor.info.name]():
                digest.update(piece)
            digests[tensor.name] = digest.hexdigest()
        return digests

    def at(self, strength: float) -> "Draft":
        """The same mark at another strength."""
        carriers, pooled = self.plan.carriers, self.reading.pooled
        square = largest = 0.0
        shifts = np.zeros(carriers.pools)

        def realise(change: Float) -> Float:
            nonlocal square, largest, shifts
            shifts, square, largest = self._shifts(change), 0.0, 0.0
            sums = np.zeros(carriers.pools)
            for part in self.survey.parts:
                for stretch in self._stretches(part, shifts):
                    carriers.sum_into(sums, stretch.first, stretch.carried)
                    moves = stretch.new - stretch.old
                    square += float(np.square(moves, dtype=np.float64).sum())
                    largest = max(largest, float(np.abs(moves).max(initial=0.0)))
            return sums / carriers.per_pool

        goal = goal_of(pooled, strength)
        settle(pooled, lacking(self.solver, goal), realise, steady=self.solver.steady)
        changed = replace(self, strength=strength, shifts=shifts)
        return replace(
            changed,
            change_norm=math.sqrt(square),
            change_largest=largest,
            exposure=changed._exposure(),
        )

    def _shifts(self, change: Float) -> Float:
        return self.survey.shifts(change)

    def _exposure(self) -> float | None:
        return exposed(self.survey, self.shifts, self.plan.noise)

    def _stretches(self, part: MarkedPart, shifts: Float) -> "Iterator[Stretch]":
        """The tensor's carriers, stretch by stretch, as they are and as they will be."""
        for piece in pieces(self.checkpoint, part, self.plan.carriers, self.plan.base):
            new = _moved(self.plan, part, piece, shifts)
            yield Stretch(piece.raw, piece.at, piece.values, new, piece.first, new, piece.offset)

    def _new_bytes(self, part: MarkedPart) -> Iterator[bytes]:
        dtype = part.tensor.info.dtype
        for stretch in self._stretches(part, self.shifts):
            raw = stretch.raw if stretch.raw.flags.writeable else stretch.raw.copy()
            if part.grid is not None:
                words = f"u{ITEMSIZE[dtype]}"
                raw.view(words)[stretch.places] = encode(stretch.new, dtype).view(words)
                if self.plan.covered:
                    self._cover(part, part.grid, stretch, raw)
            yield raw.tobytes()

    def _cover(self, part: MarkedPart, grid: Grid, stretch: "Stretch", raw: Raw) -> None:
        """Move the weights beside the carriers, too, by shifts of the mark drawn at random."""
        dtype, start = part.tensor.info.dtype, stretch.offset
        words = f"u{ITEMSIZE[dtype]}"
        values = decode(raw, dtype)
        beside = np.isfinite(values)
        beside[stretch.places] = False
        at = np.flatnonzero(beside)
        rng = np.random.default_rng([self.plan.noise, part.start + start, _COVER])
        shift = part.reach * rng.choice(self.shifts, len(at))
        noise = rng.random(len(at), np.float32)
        new = grid.moved(values[at], shift, noise, at + start)
        raw.view(words)[at] = encode(new, dtype).view(words)


@dataclass(frozen=True, eq=False)
class Stretch:
    """A run of a tensor's bytes, and which of its weights change to what."""

    raw: Raw
    places: Positions | slice
    old: Values
    new: Values
    first: int
    """Index of its first carrier."""
    carried: Values
    """New values of its carriers."""
    offset: int = 0
    """Where in the tensor it begins."""


@dataclass(frozen=True)
class MarkingPlan:
    """What will be marked, before any weight is read."""

    checkpoint: Checkpoint
    key: Key
    tensors: tuple[Tensor, ...]
    placement: Placement
    mark: Mark
    carriers: Carriers
    noise: int = field(repr=False)
    """Seed of the dithering; it follows from the key, so that nobody can tell who was to move."""
    named: bool = False
    """Whether the owner named the tensors: then each of them has to take the mark."""
    base: Base | None = None
    """The public checkpoint that the model was made from: the mark hides behind fine-tuning."""
    quantised: int = 0
    """Tensors that were passed over because they are quantised."""
    anchor: ClaimedAnchor | None = None
    """The coarse copy of the model that the mark is bound to."""
    alone: bool = False
    """Whether the change alone is to show the mark: then it is read from the difference, too."""
    covered: bool = False
    """Whether the weights beside the carriers move as well, so that no two copies agree in any."""

    def bound_to(self, anchor: ClaimedAnchor | None) -> "MarkingPlan":
        """The same plan with the mark that the key makes with this anchor."""
        if anchor is None:
            return self
        mark = self.key.at(self.placement, anchor.bytes)
        return replace(
            self,
            mark=mark,
            carriers=require_carriers(mark, self.placement),
            noise=self.key.noise(self.placement, anchor.bytes),
            anchor=anchor,
        )


def require_writable(key: Key) -> None:
    """Refuse a key whose scheme cannot be written without training, or writes nothing."""
    scheme = schemes.get(key.parameters.scheme)
    if not scheme.marks:
        raise ParameterError(f"{scheme.name} writes no mark: it is the control of comparisons")
    if not scheme.writes:
        raise ParameterError(
            f"{scheme.name} cannot be written into a finished model: train it in with"
            " neuralmark.attach"
        )


def plan(
    checkpoint: Checkpoint,
    key: Key,
    tensors: Sequence[str] | None = None,
    spread: Spread = WIDE,
    base: Checkpoint | None = None,
) -> MarkingPlan:
    """Choose the tensors and derive the mark; refuses whatever cannot work without reading."""
    if key.kind == "raw":
        raise ParameterError(
            "a raw key can only be checked, never written: make a key with 'neuralmark key new'"
        )
    require_writable(key)
    known = catalogue(checkpoint)
    if not tensors:
        require_readable(known, str(checkpoint.path))
    choice = None if tensors else auto(known, key.parameters, spread)
    chosen = choice.tensors if choice else select(known, tensors or ())
    if choice and not chosen:
        raise TooFewCarriersError(
            f"{checkpoint.path}: no tensor is suitable for a mark ({choice.why}); 'neuralmark"
            " inspect' lists them"
        )
    fixed = next((tensor for tensor in chosen if tensor.info.fixed), None)
    if fixed is not None:
        raise UnsuitableTensorError(
            f"{fixed.name!r} can be read, but not marked: {fixed.info.fixed}"
        )
    tied = checkpoint.overlap(tensor.info.name for tensor in chosen)
    if tied is not None:
        raise UnsuitableTensorError(
            f"{tied[0]!r} and {tied[1]!r} share their bytes (tied weights): name one"
            " (tensors=[...])"
        )
    placement = placement_of(chosen)
    mark = key.at(placement)
    carriers = require_carriers(mark, placement)
    quantised = sum("dequantise" in (tensor.obstacle or "") for tensor in known)
    schemes.of(mark).solver(mark)  # refuses lengths that cannot be written
    noise = key.noise(placement)
    return MarkingPlan(
        checkpoint,
        key,
        chosen,
        placement,
        mark,
        carriers,
        noise,
        named=bool(tensors),
        base=None if base is None else Base.of(base),
        quantised=quantised,
    )


def draft(
    planned: MarkingPlan,
    *,
    strength: float | None = None,
    budget: float | None = None,
    progress: Progress | None = None,
) -> Draft:
    """Look at the tensors and compute the mark: how far which weights move."""
    check_effort(strength, budget)
    checkpoint, carriers = planned.checkpoint, planned.carriers
    found = survey(checkpoint, planned.tensors, carriers, base=planned.base, progress=progress)
    require_room(planned, found)
    reading = found.reading
    solver = schemes.of(planned.mark).solver(planned.mark, found.effort)
    if planned.alone:
        solver = solver.beyond(reading.pooled)
    gamma = choose_strength(solver, reading, strength, budget)
    if planned.base is not None and strength is None:
        gamma = hidden_strength(found, solver, gamma, planned.noise)
    empty = Draft(planned, found, solver, gamma, np.zeros(carriers.pools), 0.0, 0.0)
    drafted = empty.at(gamma)
    return drafted if strength is not None else _within_budget(drafted, budget)


def require_room(planned: MarkingPlan, found: Survey) -> None:
    """Refuse tensors of which none can carry a mark, and named ones of which one cannot."""
    obstacles = {part.tensor.name: part.why for part in found.parts if part.grid is None}
    if obstacles and (planned.named or len(obstacles) == len(found.parts)):
        name, why = next(iter(obstacles.items()))
        raise UnsuitableTensorError(f"{name!r} cannot carry a mark: {why}")
    if found.reading.sigma_z == 0:
        raise InfeasibleError(
            "the weights that would carry the mark are all equal; nothing to scale by"
        )


def _within_budget(drafted: Draft, budget: float | None) -> Draft:
    """Weaken a mark that rounding to a coarse dtype made dearer than its budget."""
    limit = (DEFAULT_BUDGET if budget is None else budget) / 100 * drafted.reading.norm
    least = LEAST_STRENGTH if budget is None else 0.0
    for _ in range(_BUDGET_TRIES):
        if drafted.change_norm <= 1.002 * limit or drafted.strength <= least:
            return drafted
        weaker = drafted.strength * 0.99 * limit / drafted.change_norm
        drafted = drafted.at(max(weaker, least))
    raise InfeasibleError(
        f"a budget of {budget} % cannot write these bits into so coarse a dtype; raise budget=..."
    )


def _moved(planned: MarkingPlan, part: MarkedPart, piece: Piece, shifts: Float) -> Values:
    """The new values of a piece's carriers, on the tensor's grid."""
    if part.grid is None:
        return piece.values
    count, offset = len(piece.at), piece.offset
    shift = part.reach * planned.carriers.spread(shifts, piece.first, count)
    rng = np.random.default_rng([planned.noise, part.start + offset])
    noise = rng.random(count, np.float32)
    if piece.base is not None:
        shift = np.where(piece.values == piece.base, 0.0, shift)
    moved: Values = part.grid.moved(piece.values, shift, noise, piece.at + offset)
    return moved


def choose_strength(
    solver: LeastChange, reading: Reading, strength: float | None, budget: float | None
) -> float:
    """What the owner asked for; else strength 2, or what a change of 2 % buys, but at least 1."""
    if strength is not None:
        return strength
    pooled = reading.pooled
    share = DEFAULT_BUDGET if budget is None else budget
    afforded = strength_for(solver, pooled, reading.norm * share / 100)
    if budget is None:
        return min(max(LEAST_STRENGTH, afforded), DEFAULT_STRENGTH)
    if afforded == 0:
        least = solver.cost(pooled, 0.0) / reading.norm
        raise InfeasibleError(
            f"a budget of {budget} % cannot write these bits: even the weakest mark changes the"
            f" weights by {100 * least:.2f} %; raise budget=... or mark larger tensors"
        )
    return afforded
