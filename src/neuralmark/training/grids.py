"""How the carriers of a live model may move: on their grid, zeros where they were.

In training, the grid is that of the parameters' own type. When a finished model is marked at once,
it is found from the values, as for a file: a float32 model may hold bfloat16 numbers.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from neuralmark.core.grid import Grid
from neuralmark.core.grid_finding import find_grid
from neuralmark.errors import NonFiniteError, UnsuitableTensorError
from neuralmark.training.layout import add_up, local
from neuralmark.training.sources import Direct, WeightSource

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
"""More exact zeros than this share, and than a few, are not chance: they stay."""
_LEAST_FREE = 0.05
"""Weights that may move do so for those that may not, but for no more than this many."""


@dataclass(frozen=True, eq=False)
class Field:
    """How the carriers of one source may move."""

    grid: Grid | None = None
    """None: freely, as they are computed."""
    seed: bytes = field(default=b"", repr=False)
    factor: float = 1.0
    """How far they move for a shift of 1."""
    why: str = ""
    """Why they stay as they are, if they do."""

    @property
    def exact(self) -> bool:
        """Whether what is written is what was computed."""
        return self.grid is None and not self.why

    def moved(
        self, source: WeightSource, values: torch.Tensor, change: torch.Tensor, step: int
    ) -> torch.Tensor:
        """The values and their change, on the grid; each step of a training dithers anew."""
        if self.why:
            return values
        if self.grid is None:
            return values + change
        place = repr((step, source.name, source.layout.offset)).encode()
        seed = int.from_bytes(hashlib.shake_256(self.seed + place).digest(8), "little") >> 1
        generator = torch.Generator(values.device).manual_seed(seed)
        noise = torch.rand(values.shape, generator=generator, device=values.device)
        further = self.factor / max(self.free(source, values), _LEAST_FREE)
        moved: torch.Tensor = self.grid.moved(
            values, further * change, noise.to(values), self._at(source)
        )
        return moved

    def free(self, source: WeightSource, values: torch.Tensor) -> float:
        """The share of the carriers that may move."""
        if self.why:
            return 0.0
        if self.grid is None or not len(values):
            return 1.0
        return float(self.grid.movable(values, self._at(source)).double().mean())

    def effort(self, source: WeightSource, values: torch.Tensor) -> float:
        """The squared norm of the change that a shift of 1 takes."""
        share = self.free(source, values)
        return len(values) * share * (self.factor / max(share, _LEAST_FREE)) ** 2

    def _at(self, source: WeightSource) -> torch.Tensor | None:
        """Where the carriers lie, for grids that look at it."""
        assert self.grid is not None
        return source.index() if isinstance(source, Direct) and self.grid.multiples else None


def fields_of(sources: Sequence[WeightSource], seed: int) -> list[Field]:
    """For training: the parameters' own types. On a sharded model all processes call it."""
    known = seed.to_bytes(16, "little")
    fields = []
    for source in sources:
        grid = _own(source)
        if _any(grid is not None, source) and grid is None:
            grid = Grid("float32", _SINGLE, float(torch.finfo(torch.float32).max))
        fields.append(Field(grid, known))
    return fields


def found_fields(
    sources: Sequence[WeightSource], seed: int, sizes: Sequence[float], *, named: bool = True
) -> list[Field]:
    """For a finished model: the grids of the values; `sizes` are the tensors' (RMS).

    A tensor that cannot carry a mark stays as it is, unless it was `named` or there is no other.
    On a sharded model all processes call it, and all of them fail if one does.
    """
    known = seed.to_bytes(16, "little")
    found = [_found(source) for source in sources]
    lost = [
        (source.name, why) for source, (_, why, whole) in zip(sources, found, strict=True) if whole
    ]
    if lost and (named or len(lost) == len(sources)):
        raise UnsuitableTensorError(f"{lost[0][0]!r} cannot carry a mark: {lost[0][1]}")
    moving = [0.0 if whole else size for size, (_, _, whole) in zip(sizes, found, strict=True)]
    weights = [source.layout.size for source in sources]
    mean = sum(w * s for w, s in zip(weights, moving, strict=True)) / sum(weights)
    return [
        Field(grid, known, size / mean if mean else 1.0, why)
        for (grid, why, _), size in zip(found, moving, strict=True)
    ]


def _own(source: WeightSource) -> Grid | None:
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


def _found(source: WeightSource) -> tuple[Grid | None, str, bool]:
    """The grid of this process's part; else why it stays, and whether the whole tensor does."""
    if not isinstance(source, Direct):
        return None, "", False
    part = local(source.tensor.detach())
    grid, why = None, "it is empty"
    wide = part.double() if part.dtype == torch.float64 else part.float()
    if _any(not bool(wide.isfinite().all()), source):
        raise NonFiniteError(f"{source.name!r} holds NaN or infinity; repair it before marking")
    if part.numel():
        row = part.numel() // part.shape[0] if part.dim() else 1
        mantissa = _MANTISSA.get(part.dtype, _SINGLE)
        try:
            grid = find_grid(wide.reshape(-1).cpu().numpy(), row, mantissa)
        except UnsuitableTensorError as error:
            why = str(error)
    if not _any(grid is not None, source):
        return None, why, True
    if not source.layout.sharded:
        return grid, "", False
    return _common(grid, source), "" if grid is not None else why, False


def _common(grid: Grid | None, source: WeightSource) -> Grid | None:
    """What the parts of a tensor have in common: the finest grid, the largest value."""
    never = -math.inf
    facts = [never] * 4
    if grid is not None:
        facts = [float(grid.mantissa), grid.top, -grid.least, float(grid.zeros_stay)]
    told = torch.tensor(facts, dtype=torch.float64)
    add_up(told, source.layout.reduce, "MAX")
    if grid is None:
        return None
    mantissa, top, least, zeros_stay = told.tolist()
    if grid.multiples is not None:
        return replace(grid, top=top)
    return replace(grid, mantissa=int(mantissa), top=top, least=-least, zeros_stay=bool(zeros_stay))


def _any(mine: bool, source: WeightSource) -> bool:
    """Whether it is so in any process that holds a part of the tensor."""
    if not source.layout.sharded:
        return mine
    told = torch.tensor(float(mine))
    add_up(told, source.layout.reduce, "MAX")
    return bool(told)
