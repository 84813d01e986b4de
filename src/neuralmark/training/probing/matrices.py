"""The matrix of a linear map along one axis, by the basis of its inputs."""

import math

import torch
from torch import Tensor

from neuralmark.training.probing.affine import TOLERANCE
from neuralmark.training.probing.calling import ProbedFunction, Shape, apart

MOST_INPUTS = 16_384
"""Inputs of the widest map that is probed."""
MOST_WEIGHTS = 1 << 28
"""Weights of the largest map that is probed."""
_ROWS = 256
"""Inputs that are tried at once, where the module takes so many."""
_ROOM = 1 << 26
"""Numbers that go in or come out at once."""


def matrix_along(probe: ProbedFunction, axis: int) -> Tensor | None:
    """The matrix [out, in], if there is one for all places along the other axes; else None."""
    taken, made = probe.seen.shape, probe.seen.out
    if len(taken) != len(made) or _without(taken, axis) != _without(made, axis):
        return None
    width, size = taken[axis], made[axis]
    if width > MOST_INPUTS or width * size > MOST_WEIGHTS or min(taken) < 1:
        return None
    probe = probe if axis == 0 else probe.widened(_rows(probe, axis))
    shape = probe.seen.shape
    places = math.prod(_without(shape, axis))
    inside = (*_without(shape, axis), width)
    nothing = _flat(probe(probe.zeros(shape)), axis)
    if not _alike(probe, axis, nothing):
        return None
    columns = []
    for start in range(0, width, places):
        count = min(places, width - start)
        basis = torch.zeros(places, width, dtype=torch.float64)
        basis[torch.arange(count), start + torch.arange(count)] = probe.seen.scale
        answer = _flat(probe(basis.reshape(inside).movedim(-1, axis)), axis)
        columns.append((answer - nothing)[:count] / probe.seen.scale)
    matrix = torch.cat(columns).T.contiguous()
    given = probe.random(shape, 7)
    answer = _flat(probe(given), axis) - nothing
    return matrix if apart(answer, _flat(given, axis) @ matrix.T) <= TOLERANCE else None


def _alike(probe: ProbedFunction, axis: int, nothing: Tensor) -> bool:
    """Whether the first and the last place answer alike, each for itself: a cheap first look."""
    shape = probe.seen.shape
    inside = (*_without(shape, axis), shape[axis])
    given = torch.zeros(math.prod(inside[:-1]), shape[axis], dtype=torch.float64)
    given[0] = given[-1] = probe.random((shape[axis],), 5)
    answer = _flat(probe(given.reshape(inside).movedim(-1, axis)), axis) - nothing
    wanted = torch.zeros_like(answer)
    wanted[0] = wanted[-1] = answer[0]
    return apart(answer, wanted) <= TOLERANCE


def _rows(probe: ProbedFunction, axis: int) -> int:
    """How long the first axis should be for many inputs at once."""
    taken, made = probe.seen.shape, probe.seen.out
    each = math.prod(_without(taken, axis)[1:])
    wanted = -(-min(taken[axis], _ROWS) // max(each, 1))
    room = _ROOM // max(math.prod(taken[1:]), math.prod(made[1:]), 1)
    return min(wanted, room)


def _without(shape: Shape, axis: int) -> Shape:
    return tuple(length for number, length in enumerate(shape) if number != axis % len(shape))


def _flat(values: Tensor, axis: int) -> Tensor:
    moved = values.movedim(axis, -1)
    return moved.reshape(-1, moved.shape[-1])
