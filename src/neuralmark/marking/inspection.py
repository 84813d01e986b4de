"""What a model offers: its tensors, what each could carry, what a strength would cost."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from neuralmark import schemes
from neuralmark.checkpoints import Checkpoint, open_checkpoint, place_of
from neuralmark.checkpoints.adapter import is_adapter
from neuralmark.core.imprint import LeastChange
from neuralmark.core.key import Parameters
from neuralmark.errors import InfeasibleError, NonFiniteError, UnknownTensorError
from neuralmark.keys.key import Key
from neuralmark.marking.drafting import plan
from neuralmark.marking.hiding import HIDDEN, LEAST_STRENGTH, MERGED, explained, exposure_at
from neuralmark.marking.options import WIDE, InspectOptions, Spread, options_of
from neuralmark.marking.placement import Tensor, auto, catalogue, placement_of
from neuralmark.marking.reading import Progress
from neuralmark.marking.surveying import MarkedPart, Survey, look, survey
from neuralmark.storage.places import Place

STRENGTHS = (0.5, 1.0, 2.0, 4.0)
"""Strengths at which a mark is held against a public base."""


@dataclass(frozen=True)
class InspectedTensor:
    """One tensor; carriers are exact with a key and expected without."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    obstacle: str | None
    chosen: bool
    carriers: int | None = None
    weights_per_pool: float | None = None
    cost_percent: float | None = None
    grid: str | None = None
    """On what its values lie; None where its weights were not read."""
    fixed: str | None = None
    """Why it can be read but not marked, and what to do instead; None where it can be."""


@dataclass(frozen=True)
class BaseComparison:
    """What somebody with the public base of a fine-tuned model would find of a mark."""

    base: str
    moved: float
    """How far fine-tuning moved the tensors, against their own size (root mean squares)."""
    unmoved: float
    """Share of their weights that are the base's."""
    low_rank: float
    """Share of the difference that is of low rank: near 1 for a merged adapter."""
    exposures: tuple[tuple[float, float], ...]
    """Strengths, and how well moved weights are then found (AUC; 0.5: not at all)."""
    advice: str


@dataclass(frozen=True)
class Inspection:
    """All tensors of a model, and the list that `auto` chooses.

    Attributes:
        model: The path that was given.
        format: The format of the checkpoint.
        parameters: Those that carriers and costs are computed for.
        strength: The strength that costs are told for.
        exact: Whether carriers were counted with a key, not expected.
        rows: Every tensor, with what it could carry.
        auto: Canonical names of the tensors that `auto` chooses.
        why: Why these.
        auto_carriers: How many carriers they have together.
        auto_weights_per_pool: How many carriers share a pool.
        auto_cost_percent: The change that the strength costs, in percent; None if not known.
        base: What somebody with the public base would find; None if no base was given.

    Examples:
        >>> neuralmark.inspect("model.safetensors", key).auto
        ('layer1.weight', 'layer2.weight')
    """

    model: str
    format: str
    parameters: Parameters
    strength: float
    exact: bool
    rows: tuple[InspectedTensor, ...]
    auto: tuple[str, ...]
    why: str
    auto_carriers: int
    auto_weights_per_pool: float
    auto_cost_percent: float | None
    base: "BaseComparison | None" = None

    def to_dict(self) -> dict[str, Any]:
        """As `neuralmark inspect --json` prints it.

        Returns:
            Plain values, by name.

        Examples:
            >>> neuralmark.inspect("model.safetensors", key).to_dict()["format"]
            'safetensors'
        """
        return asdict(self) | {"parameters": self.parameters.to_dict()}


def inspect(
    model: str | Place,
    key: Key | None = None,
    options: InspectOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Inspection:
    """Look at a checkpoint: what it offers, what `auto` would choose and cost.

    The cost of a strength is an estimate for weights that are spread like noise:
    f(strength, n, k)·√(k/m) of the tensor's norm, f solved once for a random case.

    Args:
        model: Path or URL of the checkpoint.
        key: The key to count carriers for; without, they are those to expect.
        options: At which strength, how many tensors, against which base; see `InspectOptions`.
        progress: Called with what is being done, weights done, and weights in all.

    Returns:
        All tensors, and what `auto` chooses.

    Raises:
        InputError: The model or the base cannot be read.
        UsageError: The spread is unknown, or the base has none of the tensors.

    Examples:
        >>> found = neuralmark.inspect("model.safetensors", key)
        >>> [(row.name, row.grid) for row in found.rows]
        [('layer1.weight', 'float32'), ('layer2.weight', 'float32')]
    """
    options = options_of(InspectOptions, options)
    adapter = options.base is not None and is_adapter(place_of(model))
    checkpoint = open_checkpoint(model, options.base if adapter else None)
    tensors = catalogue(checkpoint)
    parameters = key.parameters if key else options.parameters or Parameters()
    choice = auto(tensors, parameters, options.spread)
    unit = unit_cost(parameters, options.strength)
    chosen = {tensor.name for tensor in choice.tensors}
    rows = [_row(tensor, tensor.name in chosen, parameters, key, unit) for tensor in tensors]
    if options.weights:
        rows = _looked_at(checkpoint, tensors, rows, progress)
    carriers, per_pool, percent = _room(choice.tensors, parameters, key, unit)
    return Inspection(
        model=str(checkpoint.path),
        format=checkpoint.format,
        parameters=parameters,
        strength=options.strength,
        exact=key is not None,
        rows=tuple(rows),
        auto=tuple(tensor.name for tensor in choice.tensors),
        why=choice.why,
        auto_carriers=carriers,
        auto_weights_per_pool=per_pool,
        auto_cost_percent=percent,
        base=None
        if options.base is None or adapter
        else compare(checkpoint, options.base, key or Key.new(parameters), options.spread),
    )


def compare(
    checkpoint: Checkpoint, base: str | Place, key: Key, spread: Spread = WIDE
) -> BaseComparison:
    """Measure what a mark of this key would show to somebody who has the base."""
    other = open_checkpoint(base)
    planned = plan(checkpoint, key, None, spread, other)
    found = survey(checkpoint, planned.tensors, planned.carriers, base=planned.base)
    updates = [part.update for part in found.parts if part.update is not None]
    if not updates:
        raise UnknownTensorError(f"{base}: has none of the tensors that would be marked")
    ratio, seen, advice = _moved(found), [], "the marked tensors are the base's own: train them"
    if ratio and not found.samples:
        advice = f"the marked tensors cannot hide a mark: {found.parts[0].why}"
    if found.samples:
        solver = schemes.of(planned.mark).solver(planned.mark, found.effort)
        seen = [(s, exposure_at(found, solver, s, planned.noise)) for s in STRENGTHS]
        advice = _advice(dict(seen), explained(found))
    unmoved = float(np.mean([update.unmoved for update in updates]))
    return BaseComparison(str(other.path), ratio, unmoved, explained(found), tuple(seen), advice)


def _moved(found: Survey) -> float:
    sizes = [(p.update.size, p.tensor.info.size) for p in found.parts if p.update is not None]
    squares = sum(size * size * count for size, count in sizes)
    return math.sqrt(squares) / found.reading.norm if found.reading.norm else 0.0


def _advice(seen: dict[float, float], low_rank: float) -> str:
    if seen[LEAST_STRENGTH] > HIDDEN:
        if low_rank > MERGED:
            return "a merged adapter: mark it with base=... and in_span=True"
        return "fine-tuning moved the weights too little to hide a mark: spread it wider"
    hidden = max(strength for strength, found in seen.items() if found <= HIDDEN)
    return f"a mark hides up to about strength {hidden:g}: embed with base=..."


def _looked_at(
    checkpoint: Checkpoint,
    tensors: Sequence[Tensor],
    rows: list[InspectedTensor],
    progress: Progress | None,
) -> list[InspectedTensor]:
    """The rows, with what the weights of the chosen tensors show."""
    size, done, found = sum(row.size for row in rows if row.chosen), 0, []
    for tensor, row in zip(tensors, rows, strict=True):
        if row.chosen:
            try:
                part = look(checkpoint, tensor)
            except NonFiniteError as error:
                part = MarkedPart(tensor, 0, None, 0.0, str(error))
            if part.grid is None:
                row = replace(row, obstacle=part.why)
            else:
                row = replace(row, grid=part.grid.name)
            done += row.size
            if progress:
                progress("reading", done, size)
        found.append(row)
    return found


def unit_cost(parameters: Parameters, strength: float) -> float | None:
    """What a strength costs for random pools of deviation 1; None where it is infeasible."""
    if parameters.pooling != "strided" or parameters.scheme != "neuralmark":
        return None
    key = Key.new(parameters)
    try:
        solver = LeastChange(key.at((("a random case", (1,)),)))
        pooled = np.random.default_rng(0).standard_normal(parameters.pools)
        return solver.cost(pooled, strength)
    except InfeasibleError:
        return None


def _row(
    tensor: Tensor, chosen: bool, parameters: Parameters, key: Key | None, unit: float | None
) -> InspectedTensor:
    info = tensor.info
    dtype = info.stored or info.dtype
    row = InspectedTensor(tensor.name, dtype, info.shape, info.size, tensor.obstacle, chosen)
    if tensor.obstacle is not None:
        return row
    carriers, per_pool, percent = _room((tensor,), parameters, key, unit)
    return replace(
        row, carriers=carriers, weights_per_pool=per_pool, cost_percent=percent, fixed=info.fixed
    )


def _room(
    tensors: Sequence[Tensor], parameters: Parameters, key: Key | None, unit: float | None
) -> tuple[int, float, float | None]:
    """Carriers, carriers per pool, and the change in percent that the strength would take."""
    total = sum(tensor.info.size for tensor in tensors)
    if not total:
        return 0, 0.0, None
    placement = placement_of(tensors)
    scheme = schemes.get(parameters.scheme)
    if key is None or scheme.room(parameters, placement) < 1:
        per_pool = scheme.room(parameters, placement)
        number = int(per_pool) * parameters.pools
    else:
        carriers = scheme.carriers(key.at(placement), placement)
        number, per_pool = carriers.size, float(carriers.per_pool)
    percent = None
    if unit is not None and per_pool >= 1:
        percent = 100 * unit / math.sqrt(total)
    return number, per_pool, percent
