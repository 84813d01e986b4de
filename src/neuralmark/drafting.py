"""Computing a mark for a checkpoint before anything is written: what changes, at what cost."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from neuralmark import schemes
from neuralmark.checkpoints import Checkpoint
from neuralmark.checkpoints._base import Edits
from neuralmark.checkpoints._dtypes import ITEMSIZE, encode, rounded
from neuralmark.core.carriers import Carriers
from neuralmark.core.imprint import LeastChange, cost, goal_of, strength_for, write_bits
from neuralmark.core.key import Float, Mark, Placement
from neuralmark.errors import (
    InfeasibleError,
    NonFiniteError,
    ParameterError,
    TooFewCarriersError,
    UnsuitableTensorError,
)
from neuralmark.keyfile import Key
from neuralmark.placement import Tensor, auto, catalogue, placement_of, select
from neuralmark.reading import Progress, Reading, read_marked, require_carriers

DEFAULT_STRENGTH = 1.0
DEFAULT_BUDGET = 2.0
MAX_STRENGTH = 1e6
_BUDGET_TRIES = 12


@dataclass(frozen=True)
class Draft:
    """A mark computed for a checkpoint but not yet written."""

    checkpoint: Checkpoint
    key: Key
    tensors: tuple[Tensor, ...]
    placement: Placement
    mark: Mark
    solver: LeastChange
    reading: Reading
    strength: float
    new: Float

    @property
    def change_norm(self) -> float:
        """‖Δw‖ over the marked tensors."""
        return float(np.linalg.norm(self.new - self._old))

    @property
    def change_largest(self) -> float:
        """Largest change of a single weight."""
        return float(np.abs(self.new - self._old).max(initial=0.0))

    @property
    def _old(self) -> Float:
        assert self.reading.values is not None
        return self.reading.values

    def edits(self) -> Edits:
        """New bytes of each marked tensor, by stored name."""
        starts = np.cumsum([0] + [tensor.info.size for tensor in self.tensors]).tolist()
        return {
            tensor.info.name: partial(self._new_bytes, tensor, start)
            for tensor, start in zip(self.tensors, starts, strict=False)
        }

    def marked_digests(self) -> dict[str, str]:
        """SHA-256 of the new bytes of each marked tensor, by canonical name."""
        edits, digests = self.edits(), {}
        for tensor in self.tensors:
            digest = hashlib.sha256()
            for piece in edits[tensor.info.name]():
                digest.update(piece)
            digests[tensor.name] = digest.hexdigest()
        return digests

    def _new_bytes(self, tensor: Tensor, start: int) -> Iterator[bytes]:
        carriers, dtype = self.reading.carriers, tensor.info.dtype
        itemsize = ITEMSIZE[dtype]
        for raw in self.checkpoint.read(tensor.info.name):
            raw = raw if raw.flags.writeable else raw.copy()
            elements = raw.reshape(-1, itemsize)
            first, last = carriers.rank(start), carriers.rank(start + len(elements))
            at = carriers.positions(first, last) - start
            elements[at] = encode(self.new[first:last], dtype).reshape(-1, itemsize)
            start += len(elements)
            yield raw.tobytes()


@dataclass(frozen=True)
class Plan:
    """What will be marked, before any weight is read."""

    checkpoint: Checkpoint
    key: Key
    tensors: tuple[Tensor, ...]
    placement: Placement
    mark: Mark
    carriers: Carriers
    solver: LeastChange
    quantised: int = 0
    """Tensors that were passed over because they are quantised."""


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


def plan(checkpoint: Checkpoint, key: Key, tensors: Sequence[str] | None = None) -> Plan:
    """Choose the tensors and derive the mark; refuses whatever cannot work without reading."""
    if key.kind == "raw":
        raise ParameterError(
            "a raw key can only be checked, never written: make a key with 'neuralmark key new'"
        )
    require_writable(key)
    known = catalogue(checkpoint)
    chosen = select(known, tensors) if tensors else auto(known, key.parameters).tensors
    if not chosen:
        raise TooFewCarriersError(
            f"{checkpoint.path}: no tensor is suitable for a mark; 'neuralmark inspect' says why"
        )
    tied = checkpoint.overlap(tensor.info.name for tensor in chosen)
    if tied is not None:
        raise UnsuitableTensorError(
            f"{tied[0]!r} and {tied[1]!r} share their bytes (tied weights): name one with --tensor"
        )
    placement = placement_of(chosen)
    mark = key.at(placement)
    carriers = require_carriers(mark, placement)
    quantised = sum("dequantise" in (tensor.obstacle or "") for tensor in known)
    return Plan(checkpoint, key, chosen, placement, mark, carriers, LeastChange(mark), quantised)


def draft(
    planned: Plan,
    *,
    strength: float | None = None,
    budget: float | None = None,
    progress: Progress | None = None,
) -> Draft:
    """Read the carriers and compute the mark: which weights change, and to what."""
    check_effort(strength, budget)
    checkpoint, solver = planned.checkpoint, planned.solver
    reading = read_marked(
        checkpoint, planned.tensors, planned.carriers, keep=True, progress=progress
    )
    if not np.isfinite(reading.norm):
        raise NonFiniteError(f"{checkpoint.path}: the tensors to mark hold NaN or infinity")
    if reading.norm == 0 or reading.sigma_z == 0:
        raise InfeasibleError(
            "the weights that would carry the mark are all equal; nothing to scale by"
        )
    gamma = choose_strength(solver, reading, strength, budget)
    empty = Draft(
        checkpoint,
        planned.key,
        planned.tensors,
        planned.placement,
        planned.mark,
        solver,
        reading,
        gamma,
        np.empty(0),
    )
    drafted = at_strength(empty, gamma)
    return drafted if strength is not None else _within_budget(drafted, budget)


def _within_budget(drafted: Draft, budget: float | None) -> Draft:
    """Weaken a mark that rounding to a coarse dtype made dearer than its budget."""
    limit = (DEFAULT_BUDGET if budget is None else budget) / 100 * drafted.reading.norm
    least = DEFAULT_STRENGTH if budget is None else 0.0
    for _ in range(_BUDGET_TRIES):
        if drafted.change_norm <= 1.002 * limit or drafted.strength <= least:
            return drafted
        weaker = drafted.strength * 0.99 * limit / drafted.change_norm
        drafted = at_strength(drafted, max(weaker, least))
    raise InfeasibleError(
        f"a budget of {budget} % cannot write these bits into so coarse a dtype; raise --budget"
    )


def at_strength(drafted: Draft, strength: float) -> Draft:
    """The same mark at another strength."""
    reading = drafted.reading
    assert reading.values is not None
    goal = goal_of(reading.pooled, strength)
    rounding = _rounding(drafted.tensors, drafted)
    new = write_bits(reading.values, reading.carriers, drafted.solver, goal, rounding)
    return replace(drafted, strength=strength, new=new)


def check_effort(strength: float | None, budget: float | None) -> None:
    """Refuse both at once, and what is out of range."""
    if strength is not None and budget is not None:
        raise ParameterError("give either a strength or a budget, not both")
    if strength is not None and not 0 < strength <= MAX_STRENGTH:
        raise ParameterError(
            f"strength must be above 0 and at most {MAX_STRENGTH:g}, not {strength}"
        )
    if budget is not None and not 0 < budget <= 100:
        raise ParameterError(f"budget must be a percentage above 0 and up to 100, not {budget}")


def choose_strength(
    solver: LeastChange, reading: Reading, strength: float | None, budget: float | None
) -> float:
    """What the owner asked for, or the larger of strength 1 and what 2 % buys."""
    if strength is not None:
        return strength
    pooled, per_pool = reading.pooled, reading.carriers.per_pool
    share = DEFAULT_BUDGET if budget is None else budget
    afforded = strength_for(solver, pooled, per_pool, reading.norm * share / 100)
    if budget is None:
        return max(DEFAULT_STRENGTH, afforded)
    if afforded == 0:
        least = cost(solver, pooled, per_pool, 0.0) / reading.norm
        raise InfeasibleError(
            f"a budget of {budget} % cannot write these bits: even the weakest mark changes the"
            f" weights by {100 * least:.2f} %; raise --budget or mark larger tensors"
        )
    return afforded


def _rounding(tensors: Sequence[Tensor], drafted: Draft) -> Callable[[Float], Float]:
    """Rounds every carrier to the dtype of the tensor it lies in."""
    carriers, cuts, start = drafted.reading.carriers, [0], 0
    for tensor in tensors:
        start += tensor.info.size
        cuts.append(carriers.rank(start))

    def rounding(values: Float) -> Float:
        result = np.empty_like(values)
        for tensor, low, high in zip(tensors, cuts, cuts[1:], strict=False):
            result[low:high] = rounded(values[low:high], tensor.info.dtype)
        return result

    return rounding
