"""Real marks of the published filter, written as the first release wrote them: plain shifts."""

import math
from collections.abc import Callable
from itertools import count

import numpy as np
import numpy.typing as npt

from neuralmark import Key, Parameters
from neuralmark.core.carriers import Carriers
from neuralmark.core.imprint import LeastChange, goal_of, strength_for
from neuralmark.core.key import Mark, Terms, derive
from neuralmark.core.readout import logits, matches, pool

Weights = npt.NDArray[np.float32]
NAME = "layer.weight"


def tiled(secret: int = 1, *, bits: int = 256, pools: int = 512, rounds: int = 4) -> Key:
    """A key whose filter is the published one. The one place that says so."""
    parameters = Parameters(bits, pools, rounds, filter="tiled")
    return Key(parameters, b"", salt=bytes(32), secret=secret.to_bytes(32, "little"))


def stream(secret: int = 1, *, rounds: int = 1) -> Key:
    """A key as they are made today: a filter without a period."""
    parameters = Parameters(rounds=rounds)
    return Key(parameters, b"", salt=bytes(32), secret=secret.to_bytes(32, "little"))


def mark_of(key: Key, shape: tuple[int, ...]) -> Mark:
    """The key's mark in one tensor of this shape, called NAME."""
    assert key.secret is not None
    return derive(key.secret, Terms(key.parameters, ((NAME, shape),)))


def key_where(
    wanted: Callable[[Mark], bool], shape: tuple[int, ...], make: Callable[[int], Key] = tiled
) -> Key:
    """The first key whose mark is as wanted."""
    return next(key for key in map(make, count()) if wanted(mark_of(key, shape)))


def carriers_of(key: Key, shape: tuple[int, ...]) -> Carriers:
    """Where the mark lies in a tensor of this shape."""
    return Carriers.of(mark_of(key, shape), int(np.prod(shape)))


def marked(w: Weights, key: Key, *, strength: float | None = None, budget: float = 0.0) -> Weights:
    """The least change at this strength, or at this share of the weights' norm."""
    mark, carriers = mark_of(key, w.shape), carriers_of(key, w.shape)
    at = carriers.positions()
    made = w.copy()
    flat = made.reshape(-1)
    values = flat[at].astype(np.float64)
    solver = LeastChange(mark, math.sqrt(carriers.per_pool))
    pooled = pool(values, carriers.pools)
    if strength is None:
        norm = budget * float(np.linalg.norm(w.astype(np.float64)))
        strength = strength_for(solver, pooled, norm)
    shift = solver.change(pooled, goal_of(pooled, strength))
    flat[at] = (values + shift[carriers.pool_of(0, carriers.size)]).astype(np.float32)
    return made


def bits_of(w: Weights, key: Key) -> int:
    """Bits that match."""
    mark, carriers = mark_of(key, w.shape), carriers_of(key, w.shape)
    pooled = pool(w.reshape(-1)[carriers.positions()].astype(np.float64), carriers.pools)
    return int(matches(logits(pooled, mark.matrix.astype(np.float64)), mark.signs).sum())


def change(old: Weights, new: Weights) -> float:
    """Relative norm of the difference."""
    return float(np.linalg.norm((new - old).ravel()) / np.linalg.norm(old.ravel()))


def truncated(w: Weights, empty: int = 16) -> Weights:
    """The values cut to a grid that leaves so many low bits empty: 16 is bfloat16's."""
    mask = np.uint32((1 << 32) - (1 << empty))
    return (np.ascontiguousarray(w).view(np.uint32) & mask).view(np.float32)
