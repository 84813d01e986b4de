"""Making channels alike, so that nobody can tell them apart: equal norms, equal profiles.

`equalise` and `whiten` keep the function; `flatten` and `blend` change the weights a little, in
the ways that hurt an alignment by likeness most.
"""

from collections.abc import Sequence

import numpy as np

from neuralmark.attacks.contract import Array
from neuralmark.attacks.tools.changes import Factors, Table, scalable, scale, scale_normed, turn
from neuralmark.attacks.tools.growing import norms_of
from neuralmark.structures.structure import Group, Pair, Side

_FLOOR = 1e-4
"""Directions of a head with less than this share of the largest energy are not blown up more."""


def equalise(table: Table, group: Group, extent: float) -> bool:
    """Draw the norms of a group's channels together by factors that the network takes back."""
    done = False
    for producer in group.producers:
        weight = _weight(table, producer.sides)
        if producer.norm is not None and producer.norm.direct and weight is not None:
            scale_normed(table, producer, _towards(norms_of(table, weight, group.size), extent))
            done = True
    if scalable(group):
        scale(table, group, _between(table, group, extent))
        done = True
    return done


def whiten(table: Table, pair: Pair, extent: float) -> None:
    """Give a head's space axes of equal size, at right angles to each other."""
    gram = np.zeros((pair.size, pair.size))
    for side in pair.forward:
        value = np.moveaxis(table[side.tensor], side.axis, 0)
        run = value[side.offset : side.offset + pair.size].reshape(pair.size, -1)
        gram += run.astype(np.float64) @ run.astype(np.float64).T
    energy, axes = np.linalg.eigh(gram)
    energy = np.maximum(energy, _FLOOR * energy[-1])
    if not energy[-1] > 0:
        return
    stretch = (energy / energy.mean()) ** (-extent / 2)
    for side in pair.forward:
        turn(table, side, (axes * stretch) @ axes.T)
    for side in pair.inverse:
        turn(table, side, (axes / stretch) @ axes.T)


def flatten(w: Array, extent: float) -> Array:
    """Draw the profiles of rows, then those of columns, towards their mean.

    A profile is what a row's weights are by size, whatever their order and signs; kernels have one
    for each of their positions.
    """
    cube = w.reshape(*w.shape[:2], -1).astype(np.float64)
    for axis in (0, 1):
        cube = _levelled(cube, axis, extent)
    return cube.reshape(w.shape).astype(np.float32)


def blend(w: Array, rng: np.random.Generator, share: float) -> Array:
    """Draw rows together in random pairs: each gets a share of the other, in its own size."""
    rows = w.reshape(len(w), -1).astype(np.float64)
    order = rng.permutation(len(rows) // 2 * 2)
    one, two = order[::2], order[1::2]
    size = np.sqrt(np.square(rows).mean(axis=1, keepdims=True))
    unit = rows / np.where(size > 0, size, 1.0)
    mixed = unit.copy()
    mixed[one] += share * (unit[two] - unit[one]) / 2
    mixed[two] += share * (unit[one] - unit[two]) / 2
    return np.asarray((mixed * size).reshape(w.shape), np.float32)


def _levelled(cube: Factors, axis: int, extent: float) -> Factors:
    """The sizes along the other axis, sorted, drawn towards their mean over this one."""
    along = 1 - axis
    size = np.sqrt(np.square(cube).mean(axis=(along, 2), keepdims=True))
    unit = cube / np.where(size > 0, size, 1.0)
    order = np.argsort(np.abs(unit), axis=along, kind="stable")
    ranked = np.take_along_axis(np.abs(unit), order, axis=along)
    mean = np.broadcast_to(ranked.mean(axis=axis, keepdims=True), ranked.shape)
    drawn = np.empty_like(unit)
    np.put_along_axis(drawn, order, (1 - extent) * ranked + extent * mean, axis=along)
    levelled: Factors = np.copysign(drawn, unit) * size
    return levelled


def _between(table: Table, group: Group, extent: float) -> Factors:
    """Factors that equalise what reads the channels; without a norm, what makes them."""
    normed = all(producer.norm is not None for producer in group.producers)
    if normed:
        read = sum((norms_of(table, s, group.size) ** 2 for s in group.consumers), np.zeros(1))
        return 1 / _towards(np.sqrt(read), extent)
    made = [norms_of(table, s, group.size) for p in group.producers for s in p.sides]
    return _towards(np.sqrt(sum((each**2 for each in made), np.zeros(1))), extent)


def _towards(norms: Factors, extent: float) -> Factors:
    """What takes each norm this far towards their mean; dead channels stay."""
    alive = norms > 0
    if not alive.any():
        return np.ones_like(norms)
    level = float(np.exp(np.log(norms[alive]).mean()))
    factors: Factors = np.where(alive, level / np.where(alive, norms, 1.0), 1.0) ** extent
    return factors


def _weight(table: Table, sides: Sequence[Side]) -> Side | None:
    return next((side for side in sides if table[side.tensor].ndim > 1), None)
