"""Marking inside the span of an adapter that was merged into a public base.

Such a model differs from its base by a matrix of low rank, and by nothing else: whatever a mark
adds beside it is seen at once. Inside the span there is room: the adapter's other factor is
changed, so that the difference keeps its rank, and everything is rounded again as merging did.
Whoever sets the difference back, in part or as a whole, loses the fine-tuning with the mark.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from neuralmark import schemes
from neuralmark.checkpoints.readers.dtypes import ITEMSIZE, decode
from neuralmark.core.exact import ExactChange
from neuralmark.core.imprint import goal_of, least_helping
from neuralmark.core.key import Float
from neuralmark.errors import InfeasibleError, ParameterError
from neuralmark.marking.drafting import DEFAULT_STRENGTH, Draft, MarkingPlan, Stretch, require_room
from neuralmark.marking.hiding import LEAST_STRENGTH, explained
from neuralmark.marking.reading import Progress
from neuralmark.marking.surveying import MarkedPart, Survey, Values, survey

ROOM = 0.25
"""How much of the adapter's own norm a mark may take by default."""
_ADAPTER = 0.9
_ABOVE_NOISE = 2.0
_HALVINGS = 7


@dataclass(frozen=True, eq=False)
class Span:
    """The adapter of one tensor: its product is left @ right, rows of `right` orthonormal."""

    left: Values
    right: Values

    @classmethod
    def of(cls, part: MarkedPart) -> "Span | None":
        """The directions that stand out of the rounding noise; None for an unchanged tensor."""
        if part.grid is None or part.update is None:
            return None
        left, right = part.update.left, part.update.right
        edge = part.update.residual * (math.sqrt(len(left)) + math.sqrt(right.shape[1]))
        rank = int((np.linalg.norm(left, axis=0) > _ABOVE_NOISE * edge).sum())
        return cls(left[:, :rank], right[:rank]) if rank else None


@dataclass(frozen=True, eq=False)
class SpanSolver:
    """The smallest change inside the spans that gives every bit its margin."""

    half_spaces: Float = field(repr=False)
    """K with its columns turned towards the watermark."""
    gram: Float = field(repr=False)
    """What the spans let of it through."""
    most: float = math.inf
    steady: bool = False

    def margins(self, pooled: Float) -> Float:
        """Signed margin of every bit."""
        return pooled @ self.half_spaces

    def change(self, pooled: Float, goal: float) -> Float:
        """How hard to push each pool; the spans take their part of it."""
        missing = goal - self.margins(pooled)
        if missing.max() <= 0:
            return np.zeros_like(pooled)
        return self.half_spaces @ self._helping(missing)

    def cost(self, pooled: Float, strength: float) -> float:
        """Norm of the change of the weights that this strength takes."""
        missing = goal_of(pooled, strength) - self.margins(pooled)
        helped = self._helping(missing) if missing.max() > 0 else np.zeros(len(missing))
        return math.sqrt(max(float(helped @ self.gram @ helped), 0.0))

    def _helping(self, missing: Float) -> Float:
        helped = least_helping(self.gram, missing)
        if helped is None:
            raise InfeasibleError("the adapter's span is too small to carry these bits")
        return helped


@dataclass(frozen=True)
class SpanDraft(Draft):
    """A mark inside the spans of the adapters: every weight of a tensor is written anew."""

    spans: tuple[Span | None, ...] = ()

    def _shifts(self, change: Float) -> Float:
        return change / self.plan.carriers.per_pool

    def _exposure(self) -> float | None:
        return None

    def _stretches(self, part: MarkedPart, shifts: Float) -> Iterator[Stretch]:
        span = self.spans[self.survey.parts.index(part)]
        new = None if span is None else self._rewritten(part, span, shifts)
        offset, carriers = 0, self.plan.carriers
        for raw in self.checkpoint.read(part.tensor.info.name):
            count = len(raw) // ITEMSIZE[part.tensor.info.dtype]
            old = decode(raw, part.tensor.info.dtype)
            some = old if new is None else new[offset : offset + count]
            first, at = carriers.between(part.start + offset, part.start + offset + count)
            yield Stretch(raw, slice(None), old, some, first, some.take(at))
            offset += count

    def _rewritten(self, part: MarkedPart, span: Span, shifts: Float) -> Values:
        """The base and the changed adapter, rounded as merging rounds."""
        assert self.plan.base is not None
        assert part.grid is not None
        public = self.plan.base.values(part.tensor)
        assert public is not None
        carriers = self.plan.carriers
        first, at = carriers.between(part.start, part.start + len(public))
        pushed = np.zeros(len(public), np.float32)
        pushed[at] = carriers.spread(shifts, first, len(at))
        moved = pushed.reshape(len(span.left), -1) @ span.right.T
        product = ((span.left + moved) @ span.right).reshape(-1).astype(np.float64)
        return part.grid.nearest(public.astype(np.float64) + product).astype(public.dtype)


def draft_in_span(
    planned: MarkingPlan, *, strength: float | None = None, progress: Progress | None = None
) -> Draft:
    """Compute a mark inside the adapters' spans: strength 2, or what a quarter of them buys."""
    if planned.base is None:
        raise ParameterError("marking inside an adapter's span needs the base (base=...)")
    scheme, carriers = schemes.of(planned.mark), planned.carriers
    if isinstance(scheme.solver(planned.mark), ExactChange):
        raise ParameterError(
            f"{scheme.name} is not written inside an adapter's span: leave in_span out"
        )
    found = survey(
        planned.checkpoint, planned.tensors, carriers, base=planned.base, progress=progress
    )
    require_room(planned, found)
    if explained(found) < _ADAPTER:
        raise InfeasibleError(
            f"only {100 * explained(found):.0f} % of the difference to the base are of low rank:"
            " this is not a merged adapter; mark it without in_span=True"
        )
    spans = tuple(Span.of(part) for part in found.parts)
    half_spaces = planned.mark.matrix.astype(np.float64) * planned.mark.signs
    solver = SpanSolver(half_spaces, _gram(planned, found, spans))
    gamma = _affordable(solver, found, spans) if strength is None else strength
    empty = np.zeros(carriers.pools)
    return SpanDraft(planned, found, solver, gamma, empty, 0.0, 0.0, spans=spans).at(gamma)


def _affordable(solver: SpanSolver, found: Survey, spans: tuple[Span | None, ...]) -> float:
    """The largest strength up to 2 that takes at most a quarter of the adapters' norm."""
    whole = math.sqrt(sum(float(np.square(s.left).sum()) for s in spans if s is not None))
    pooled = found.reading.pooled

    def share(strength: float) -> float:
        return solver.cost(pooled, strength) / max(whole, 1e-300)

    if share(DEFAULT_STRENGTH) <= ROOM:
        return DEFAULT_STRENGTH
    if share(LEAST_STRENGTH) > ROOM:
        raise InfeasibleError(
            f"a mark inside the adapter's span would change the adapter by"
            f" {100 * share(LEAST_STRENGTH):.0f} % at strength {LEAST_STRENGTH:g}, more than"
            f" {100 * ROOM:.0f} %: mark more tensors (spread='all'), or insist with strength=..."
        )
    low, high = LEAST_STRENGTH, DEFAULT_STRENGTH
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) <= ROOM else (low, middle)
    return low


def _gram(planned: MarkingPlan, found: Survey, spans: tuple[Span | None, ...]) -> Float:
    """How much of each bit's half-space, and of two together, lies in the spans."""
    bits = planned.mark.matrix.shape[1]
    gram = np.zeros((bits, bits))
    for part, span in zip(found.parts, spans, strict=True):
        if span is not None:
            through = _through(planned, part, span)
            gram += through.T.astype(np.float64) @ through
    return gram / planned.carriers.per_pool**2


def _through(planned: MarkingPlan, part: MarkedPart, span: Span) -> Values:
    """The half-spaces of all bits, row by row of the tensor, inside the span."""
    carriers, rank, width = planned.carriers, len(span.right), span.right.shape[1]
    first, at = carriers.between(part.start, part.start + len(span.left) * width)
    cuts = np.searchsorted(at, np.arange(len(span.left) + 1) * width).tolist()
    columns, most = at % width, int(np.diff(cuts).max(initial=0))
    half_spaces = (planned.mark.matrix * planned.mark.signs).astype(np.float32)
    again = np.tile(half_spaces, (most // carriers.pools + 2, 1))  # pools come round in order
    rows = np.empty((len(span.left), rank, half_spaces.shape[1]), np.float32)
    for row, (low, high) in enumerate(pairwise(cuts)):
        pool = (first + low) % carriers.pools
        rows[row] = span.right[:, columns[low:high]] @ again[pool : pool + high - low]
    return rows.reshape(-1, half_spaces.shape[1])
