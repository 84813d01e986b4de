"""How the carriers of a live model may move: on their grid, zeros where they were.

In training, the grid is that of the parameters' own type. When a finished model is marked at once,
it is found from the values, as for a file: a float32 model may hold bfloat16 numbers.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from neuralmark.core.grid import Grid
from neuralmark.core.grid_finding import find_grid
from neuralmark.errors import NonFiniteError, UnsuitableTensorError
from neuralmark.training.layout import add_up, local
from neuralmark.training.sources import Direct, Source

_MANTISSA = {
    torch.float64: 52,
    torch.float32: 23,
    torch.float16: 10,
    torch.bfloat16: 7,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 2,
    torch.float8_e4m3fnuz: 3,
    torch.float8_e5m2fnuz: 2,
}
_SINGLE = 23
_CHANCE_FEW = 8
_PRUNED = 1e-3
"""More exact zeros than this share, and than a few, are no chance: they stay."""


@dataclass(frozen=True, eq=False)
class Field:
    """How the carriers of one source may move."""

    grid: Grid | None = None
    """None: freely, as they are computed."""
    seed: bytes = field(default=b"", repr=False)
    factor: float = 1.0
    """How far they move for a shift of 1."""

    def moved(
        self, source: Source, values: torch.Tensor, change: torch.Tensor, step: int
    ) -> torch.Tensor:
        """The values and their change, on the grid; each step of a training dithers anew."""
        if self.grid is None:
            return values + change
        place = repr((step, source.name, source.layout.offset)).encode()
        seed = int.from_bytes(hashlib.shake_256(self.seed + place).digest(8), "little") >> 1
        generator = torch.Generator(values.device).manual_seed(seed)
        noise = torch.rand(values.shape, generator=generator, device=values.device)
        at = source.index() if isinstance(source, Direct) and self.grid.multiples else None
        free = self.grid.movable(values, at)
        share = free.double().mean().clamp(min=0.05).to(values)
        moved: torch.Tensor = self.grid.moved(
            values, self.factor * change / share, noise.to(values), at
        )
        return moved


def fields_of(sources: Sequence[Source], seed: int) -> list[Field]:
    """For training: the parameters' own types. On a sharded model all processes call it."""
    known = seed.to_bytes(16, "little")
    grids = [_own(source) for source in sources]
    return [Field(grid, known) for grid in _agreed(sources, grids)]


def found_fields(sources: Sequence[Source], seed: int, sizes: Sequence[float]) -> list[Field]:
    """For a finished model: the grids of the values; `sizes` are the tensors' (RMS)."""
    known = seed.to_bytes(16, "little")
    grids = [_found(source) for source in sources]
    weights = [float(source.layout.size) for source in sources]
    mean = sum(w * s for w, s in zip(weights, sizes, strict=True)) / sum(weights)
    return [
        Field(grid, known, size / mean if mean else 1.0)
        for grid, size in zip(_agreed(sources, grids), sizes, strict=True)
    ]


def _own(source: Source) -> Grid | None:
    """The grid of the parameter's type; None where it is fine and no zero has to stay."""
    if not isinstance(source, Direct):
        return None
    dtype = source.tensor.dtype
    facts, mantissa = torch.finfo(dtype), _MANTISSA.get(dtype, _SINGLE)
    values = source.values()
    zeros = int((values == 0).sum())
    pruned = zeros > max(_CHANCE_FEW, _PRUNED * len(values))
    if mantissa >= _SINGLE and not pruned:
        return None
    least = facts.tiny * facts.eps if mantissa < _SINGLE and mantissa != 7 else 0.0
    return Grid(str(dtype).removeprefix("torch."), mantissa, float(facts.max), least, pruned)


def _found(source: Source) -> Grid | None:
    if not isinstance(source, Direct):
        return None
    part = local(source.tensor.detach())
    if not part.numel():
        return None
    wide = part.double() if part.dtype == torch.float64 else part.float()
    row = part.numel() // part.shape[0]
    mantissa = _MANTISSA.get(part.dtype, _SINGLE)
    try:
        return find_grid(wide.reshape(-1).cpu().numpy(), row, mantissa)
    except (UnsuitableTensorError, NonFiniteError) as error:
        raise type(error)(f"{source.name!r} cannot carry a mark: {error}") from None


def _agreed(sources: Sequence[Source], grids: list[Grid | None]) -> list[Grid | None]:
    """Processes that hold parts of one tensor agree whether it has a grid."""
    for i, source in enumerate(sources):
        if not source.layout.sharded:
            continue
        some = torch.tensor(float(grids[i] is not None), device=source.parameters()[0].device)
        add_up(some, source.layout.reduce, "MAX")
        if some and grids[i] is None:
            grids[i] = Grid("float32", _SINGLE, float(torch.finfo(torch.float32).max))
    return grids
