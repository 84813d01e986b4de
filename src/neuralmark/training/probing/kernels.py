"""The kernel of a map that is the same at all places of one, two or three axes, by impulses."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from neuralmark.training.probing.affine import TOLERANCE
from neuralmark.training.probing.calling import ProbedFunction, ProbeError, Shape, apart
from neuralmark.training.probing.matrices import MOST_INPUTS, MOST_WEIGHTS

SIDES = {1: (15, 31), 2: (7, 15), 3: (5, 9)}
"""How long the places are that impulses are sent through, by the number of axes: short ones where
the kernel fits in; where a module takes neither, as long as those of the example."""
_NONE = 1e-6
"""Weights that are smaller, in parts of the largest, are none."""
_ROOM = 1 << 24
"""Numbers that go in or come out at once."""
_CONVOLVE = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


@dataclass(frozen=True)
class _Grid:
    """Places that go in and come out, and steps from one that comes out to the next."""

    probe: ProbedFunction
    inside: Shape
    outside: Shape
    steps: Shape

    @property
    def first(self) -> Shape:
        """Where the first impulse is sent: amid the places."""
        return tuple((i - s) // 2 for i, s in zip(self.inside, self.steps, strict=True))

    def phases(self) -> list[Shape]:
        """From where on impulses must be sent so that every weight shows itself."""
        return list(itertools.product(*map(range, self.steps)))


def kernel_of(probe: ProbedFunction) -> Tensor | None:
    """The kernel [out, in, …], without zeros around it; None where there is none."""
    taken, made = probe.seen.shape, probe.seen.out
    axes = len(taken) - 2
    if axes not in SIDES or len(made) != len(taken) or taken[0] != made[0] or min(taken) < 1:
        return None
    if taken[1] > MOST_INPUTS or taken[1] * made[1] > MOST_WEIGHTS:
        return None
    return next((found for grid in _grids(probe) if (found := _read(grid)) is not None), None)


def _grids(probe: ProbedFunction) -> Iterator[_Grid]:
    """The ways to send impulses through it, cheap ones first."""
    taken = probe.seen.shape
    axes = len(taken) - 2
    short, long = SIDES[axes]
    for inside in dict.fromkeys(((short,) * axes, (long,) * axes, taken[2:])):
        try:
            made = probe(probe.zeros((*taken[:2], *inside))).shape
        except ProbeError:
            continue
        outside = tuple(made[2:])
        if len(made) != len(taken) or min(made) < 1:
            continue
        ratios = [i / o for i, o in zip(inside, outside, strict=True)]
        nearest = tuple(round(ratio) for ratio in ratios)
        below = tuple(math.floor(ratio) for ratio in ratios)
        above = tuple(math.ceil(ratio) for ratio in ratios)
        for steps in dict.fromkeys((nearest, below, above)):
            if min(steps) > 0:
                yield _Grid(probe, inside, outside, steps)


def _read(grid: _Grid) -> Tensor | None:
    probe, taken = grid.probe, grid.probe.seen.shape
    channels = taken[1]
    nothing = probe(probe.zeros((taken[0], channels, *grid.inside)))[:1]
    mixed = _impulses(grid, nothing, probe.random((1, channels), 11))
    box = _support(mixed)
    if box is None or not _follows(grid, nothing):
        return None
    if any(side.start == 0 or side.stop == n for side, n in zip(box, mixed.shape[2:], strict=True)):
        return None  # the border may hide some of it
    if mixed.shape[1] * channels * _volume(box) > MOST_WEIGHTS:
        return None
    each = max(math.prod(grid.inside) * channels, math.prod(nothing.shape[1:]), 1)
    rows = max(1, min(channels, _ROOM // each))
    parts = []
    for start in range(0, channels, rows):
        basis = probe.seen.scale * torch.eye(channels, dtype=torch.float64)[start : start + rows]
        parts.append(_impulses(grid, nothing, basis)[_at(box)] / probe.seen.scale)
    kernel = torch.cat(parts).transpose(0, 1).contiguous()
    return kernel if _holds(grid, kernel, [side.start for side in box]) else None


def _follows(grid: _Grid, nothing: Tensor) -> bool:
    """Whether the answer to an impulse one step further lies one place further."""
    probe, channels = grid.probe, grid.probe.seen.shape[1]
    given = torch.zeros(2, channels, *grid.inside, dtype=torch.float64)
    further = tuple(map(sum, zip(grid.first, grid.steps, strict=True)))
    if any(place >= length for place, length in zip(further, grid.inside, strict=True)):
        return False
    given[0][_at(grid.first)] = given[1][_at(further)] = probe.random((channels,), 12)
    one, two = _answers(probe, given) - nothing
    before, behind = ([side] * len(grid.inside) for side in (slice(-1), slice(1, None)))
    return apart(two[_at(behind)], one[_at(before)]) <= TOLERANCE


def _impulses(grid: _Grid, nothing: Tensor, channels: Tensor) -> Tensor:
    """What comes of impulses with these channels: [row, out, one for each distance …].

    Of place p, an output q shows the weight for the distance p - step · q; all distances that can
    show themselves lie side by side, from the least on.
    """
    lengths = [o * s for o, s in zip(grid.outside, grid.steps, strict=True)]
    made = torch.zeros(len(channels), nothing.shape[1], *lengths, dtype=torch.float64)
    axes = range(2, 2 + len(lengths))
    for phase in grid.phases():
        given = torch.zeros(*channels.shape, *grid.inside, dtype=torch.float64)
        place = tuple(f + p for f, p in zip(grid.first, phase, strict=True))
        given[_at(place)] = channels
        answer = _answers(grid.probe, given) - nothing
        spots = tuple(slice(p, None, s) for p, s in zip(phase, grid.steps, strict=True))
        made[_at(spots)] = answer.flip(tuple(axes))
    return made


def _answers(probe: ProbedFunction, given: Tensor) -> Tensor:
    """All rows at once, or as many as the example had where the module takes no others."""
    try:
        answer = probe(given)
        if len(answer) == len(given):
            return answer
    except ProbeError:
        pass
    rows = probe.seen.shape[0]
    full = torch.zeros(-(-len(given) // rows) * rows, *given.shape[1:], dtype=torch.float64)
    full[: len(given)] = given
    return torch.cat([probe(part) for part in full.split(rows)])[: len(given)]


def _support(answers: Tensor) -> tuple[slice, ...] | None:
    """Where weights are: the smallest box around them."""
    sizes = answers.abs().amax((0, 1))
    there = sizes > _NONE * sizes.max()
    if not bool(there.any()):
        return None
    spots = there.nonzero()
    return tuple(
        slice(int(low), int(high) + 1)
        for low, high in zip(spots.amin(0), spots.amax(0), strict=True)
    )


def _at(places: Iterable[int | slice]) -> Any:
    """An index of the last axes."""
    return (..., *places)


def _volume(box: Sequence[slice]) -> int:
    return math.prod(side.stop - side.start for side in box)


def _holds(grid: _Grid, kernel: Tensor, starts: Sequence[int]) -> bool:
    """Whether it answers to random numbers, away from the border, as this kernel does."""
    probe, inner, outer, several = grid.probe, [], [], False
    for axis, length in enumerate(grid.inside):
        step, count = grid.steps[axis], grid.outside[axis]
        low = grid.first[axis] - step * (count - 1) + starts[axis]
        high = low + kernel.shape[2 + axis] - 1
        first, last = max(0, -(low // step)), min((length - 1 - high) // step, count - 1)
        if last < first:
            return False
        several |= last > first
        inner.append(slice(step * first + low, step * last + high + 1))
        outer.append(slice(first, last + 1))
    shape = (*probe.seen.shape[:2], *grid.inside)
    given = probe.random(shape, 13)
    answer = (probe(given) - probe(probe.zeros(shape)))[_at(outer)]
    wanted = _CONVOLVE[len(outer)](given[_at(inner)], kernel, stride=grid.steps)
    return several and answer.shape == wanted.shape and apart(answer, wanted) <= TOLERANCE


def in_groups(kernel: Tensor) -> Tensor:
    """Without the zeros between groups of channels, as a grouped convolution stores it."""
    sizes = kernel.abs().flatten(2).amax(2) if kernel.ndim > 2 else kernel.abs()
    there = sizes > _NONE * sizes.max()
    outs, ins = there.shape
    for groups in range(math.gcd(outs, ins), 1, -1):
        if math.gcd(outs, ins) % groups:
            continue
        within = torch.block_diag(*[torch.ones(outs // groups, ins // groups)] * groups).bool()
        if not bool((there & ~within).any()):
            parts = kernel.reshape(groups, outs // groups, groups, ins // groups, *kernel.shape[2:])
            chosen = torch.stack([parts[number, :, number] for number in range(groups)])
            return chosen.reshape(outs, ins // groups, *kernel.shape[2:])
    return kernel
