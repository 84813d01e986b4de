"""Changes that keep a model's function, as general procedures over the groups of its map.

Each takes a table of weights (a dict that it may change; arrays are replaced, never written to)
and random numbers.
"""

from collections.abc import Iterable, MutableMapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from neuralmark.attacks.contract import Array
from neuralmark.structures.structure import (
    LINEAR,
    RELU,
    Group,
    Indices,
    Norm,
    Pair,
    Producer,
    ResidualStream,
    Side,
)

Table = MutableMapping[str, Array]
Factors = npt.NDArray[np.float64]

_STRETCH = 0.5
"""Matrices put into heads stretch by factors within e^±this: invertible, and well conditioned."""


def pick(rng: np.random.Generator, size: int, share: float) -> Indices:
    """A share of the channels, at least one, in random order."""
    count = max(1, round(share * size))
    return rng.permutation(size)[:count]


def permute(table: Table, group: Group, chosen: Indices) -> None:
    """Hand the chosen channels on in a ring, so that each of them moves."""
    move(table, group.sides(), chosen)


def move(table: Table, sides: Iterable[Side], chosen: Indices) -> None:
    """Hand these channels of some tensors on in a ring."""
    source = np.roll(chosen, 1)
    for side in sides:
        value = table[side.tensor]
        order = np.arange(value.shape[side.axis])
        order[side.places(chosen)] = side.places(source)
        table[side.tensor] = np.take(value, order, axis=side.axis)


def rescale_norms(table: Table, group: Group, rng: np.random.Generator, reach: float) -> None:
    """Scale layers in front of batch norms, whose statistics take it back exactly."""
    for producer in group.producers:
        if producer.norm is None or not producer.norm.direct:
            continue
        scale_normed(table, producer, np.exp(rng.uniform(-reach, reach, group.size)))


def scale_normed(table: Table, producer: Producer, factors: Factors) -> None:
    """Scale a layer by these factors; the batch norm right behind it takes them back."""
    assert producer.norm is not None
    for side in producer.sides:
        multiply(table, side, factors)
    _restate(table, producer.norm, factors)


def rescale(table: Table, group: Group, rng: np.random.Generator, reach: float) -> None:
    """Scale what makes each channel by e^U(-reach, reach), divide what reads it by the same."""
    factors = np.exp(rng.uniform(-reach, reach, group.size))
    scale(table, group, factors)


def scale(table: Table, group: Group, factors: Factors) -> None:
    """Scale what makes each channel by its factor, divide what reads it by the same."""
    for side in makers(group):
        multiply(table, side, factors)
    for side in group.consumers:
        multiply(table, side, 1 / factors)


def flip(table: Table, group: Group, rng: np.random.Generator, share: float) -> int:
    """Toss the signs of a share of the channels where it can be taken back; count them.

    A toss turns every other channel: with all of them turned, the mark would only be inverted.
    """
    turned = 0
    for producer in group.producers:
        norm = producer.norm
        if norm is None or not norm.direct:
            continue
        chosen = pick(rng, group.size, share)
        for side in (*producer.sides, Side(norm.mean, 0), Side(norm.gamma, 0)):
            multiply(table, side, _signs(group.size, chosen))
        turned += len(chosen)
    if group.movable and group.activation == LINEAR:
        chosen = pick(rng, group.size, share)
        for side in (*makers(group), *group.consumers):
            multiply(table, side, _signs(group.size, chosen))
        turned += len(chosen)
    return turned


def add_dummies(table: Table, group: Group, rng: np.random.Generator, count: int) -> Group:
    """Put channels at random places whose incoming weights are random and outgoing ones zero."""
    at = np.sort(rng.integers(0, group.size + 1, count))
    silent = {side.tensor for side in group.consumers}
    for side in group.sides():
        value = table[side.tensor]
        shape = list(value.shape)
        shape[side.axis] = count * side.block
        fresh = np.zeros(shape, np.float32)
        if side.tensor not in silent:
            fresh = rng.choice(value.reshape(-1), shape).astype(np.float32)
        before = np.repeat(side.offset + at * side.block, side.block)
        table[side.tensor] = np.insert(value, before, fresh, axis=side.axis)
    return replace(group, size=group.size + count)


def rotate_pair(table: Table, pair: Pair, rng: np.random.Generator) -> None:
    """Put a random invertible matrix between the two halves of a head."""
    stretch = np.exp(rng.uniform(-_STRETCH, _STRETCH, pair.size))
    matrix: Factors = rotation(rng, pair.size) * stretch @ rotation(rng, pair.size)
    undo: Factors = np.linalg.inv(matrix).T.astype(np.float64)
    for side in pair.forward:
        turn(table, side, matrix)
    for side in pair.inverse:
        turn(table, side, undo)


def rotate_stream(
    table: Table, stream: ResidualStream, rng: np.random.Generator, share: float
) -> int:
    """Fold the norms' gains into what reads them, then rotate a share of the residual stream."""
    for gain, readers in stream.folds:
        for side in readers:
            multiply(table, side, table[gain].astype(np.float64) + stream.plus)
        table[gain] = np.full_like(table[gain], 1 - stream.plus)
    chosen = np.sort(pick(rng, stream.size, share))
    whole = np.eye(stream.size)
    whole[np.ix_(chosen, chosen)] = rotation(rng, len(chosen))
    for side in stream.sides:
        turn(table, side, whole)
    return len(chosen)


def rotation(rng: np.random.Generator, size: int) -> Factors:
    """A random orthogonal matrix (uniform over all of them)."""
    q, r = np.linalg.qr(rng.standard_normal((size, size)))
    turned: Factors = q * np.sign(np.diag(r))
    return turned


def multiply(table: Table, side: Side, factors: Factors) -> None:
    """Multiply each channel of a tensor by its factor."""
    value = table[side.tensor]
    along = np.ones(value.shape[side.axis])
    along[side.places(np.arange(len(factors)))] = np.repeat(factors, side.block)
    shape = [1] * value.ndim
    shape[side.axis] = -1
    table[side.tensor] = (value * along.reshape(shape)).astype(np.float32)


def scalable(group: Group) -> bool:
    """Whether positive factors pass from what makes the channels to what reads them."""
    return group.movable and group.activation in (RELU, LINEAR) and bool(group.consumers)


def _restate(table: Table, norm: Norm, factors: Factors) -> None:
    """Statistics of channels that were scaled; what eps then lacks goes into gamma."""
    var = table[norm.var].astype(np.float64) + norm.eps
    wanted = np.maximum(factors**2 * var - norm.eps, 0).astype(np.float32)
    left = np.sqrt(wanted.astype(np.float64) + norm.eps) / (factors * np.sqrt(var))
    multiply(table, Side(norm.mean, 0), factors)
    multiply(table, Side(norm.gamma, 0), left)
    table[norm.var] = wanted


def makers(group: Group) -> list[Side]:
    """What a factor of a channel is put into: the norm if there is one, else the layer."""
    found: list[Side] = []
    for producer in group.producers:
        norm = producer.norm
        found += producer.sides if norm is None else (Side(norm.gamma, 0), Side(norm.beta, 0))
    return found


def _signs(size: int, chosen: Indices) -> Factors:
    """Minus one for the first half of the chosen, which are in random order."""
    signs = np.ones(size)
    signs[chosen[: (len(chosen) + 1) // 2]] = -1
    return signs


def turn(table: Table, side: Side, matrix: Factors) -> None:
    """Multiply one run of a tensor's axis by a matrix."""
    value = np.moveaxis(table[side.tensor].copy(), side.axis, 0)
    run = slice(side.offset, side.offset + len(matrix))
    value[run] = np.tensordot(matrix, value[run].astype(np.float64), axes=1)
    table[side.tensor] = np.ascontiguousarray(np.moveaxis(value, 0, side.axis))
