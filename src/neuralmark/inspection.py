"""What a model offers: its tensors, what each could carry, what a strength would cost."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neuralmark import schemes
from neuralmark.checkpoints import open_checkpoint
from neuralmark.core.imprint import LeastChange, cost
from neuralmark.core.key import Parameters
from neuralmark.errors import InfeasibleError
from neuralmark.keyfile import Key
from neuralmark.placement import Tensor, auto, catalogue, placement_of


@dataclass(frozen=True)
class Row:
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


@dataclass(frozen=True)
class Inspection:
    """All tensors of a model, and the list that `auto` chooses."""

    model: str
    format: str
    parameters: Parameters
    strength: float
    exact: bool
    rows: tuple[Row, ...]
    auto: tuple[str, ...]
    why: str
    auto_carriers: int
    auto_weights_per_pool: float
    auto_cost_percent: float | None

    def to_dict(self) -> dict[str, Any]:
        """As `neuralmark inspect --json` prints it."""
        return asdict(self) | {"parameters": self.parameters.to_dict()}


def inspect(
    model: str | Path,
    key: Key | None = None,
    *,
    parameters: Parameters | None = None,
    strength: float = 1.0,
) -> Inspection:
    """Look at a checkpoint's headers; reads no weights.

    The cost of a strength is an estimate for weights that are spread like noise:
    f(strength, n, k)·√(k/m) of the tensor's norm, f solved once for a random case.
    """
    checkpoint = open_checkpoint(model)
    tensors = catalogue(checkpoint)
    parameters = key.parameters if key else parameters or Parameters()
    choice = auto(tensors, parameters)
    unit = unit_cost(parameters, strength)
    rows = tuple(
        _row(tensor, tensor in choice.tensors, parameters, key, unit) for tensor in tensors
    )
    carriers, per_pool, percent = _room(choice.tensors, parameters, key, unit)
    return Inspection(
        model=str(model),
        format=checkpoint.format,
        parameters=parameters,
        strength=strength,
        exact=key is not None,
        rows=rows,
        auto=tuple(tensor.name for tensor in choice.tensors),
        why=choice.why,
        auto_carriers=carriers,
        auto_weights_per_pool=per_pool,
        auto_cost_percent=percent,
    )


def unit_cost(parameters: Parameters, strength: float) -> float | None:
    """What a strength costs for random pools of deviation 1; None where it is infeasible."""
    if parameters.pooling != "strided" or parameters.scheme != "neuralmark":
        return None
    key = Key.new(parameters)
    try:
        solver = LeastChange(key.at((("a random case", (1,)),)))
        pooled = np.random.default_rng(0).standard_normal(parameters.pools)
        return cost(solver, pooled, 1, strength)
    except InfeasibleError:
        return None


def _row(
    tensor: Tensor, chosen: bool, parameters: Parameters, key: Key | None, unit: float | None
) -> Row:
    info = tensor.info
    row = Row(tensor.name, info.dtype, info.shape, info.size, tensor.obstacle, chosen)
    if tensor.obstacle is not None:
        return row
    carriers, per_pool, percent = _room((tensor,), parameters, key, unit)
    return Row(row.name, row.dtype, row.shape, row.size, None, chosen, carriers, per_pool, percent)


def _room(
    tensors: Sequence[Tensor], parameters: Parameters, key: Key | None, unit: float | None
) -> tuple[int, float, float | None]:
    """Carriers, carriers a pool, and the change in percent that the strength would take."""
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
