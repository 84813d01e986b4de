"""Channels that become more or fewer: splits, near-duplicates, and the least important removed.

The first two keep the function exactly; like `changes`, they are procedures over groups that work
on a table of weights. Each gives the group as it is afterwards.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from neuralmark.attacks.contract import Array
from neuralmark.attacks.tools.changes import Factors, Table, makers, multiply, scale_normed
from neuralmark.structures.structure import (
    HIDDEN,
    LINEAR,
    OTHER,
    RELU,
    STREAM,
    Group,
    Indices,
    Norm,
    Producer,
    Side,
)

REACH = 1.0
"""Copies of a channel are scaled by factors within e^±this, where factors pass."""
NEAR = 0.1
"""How far a near-duplicate lies from its channel, in sizes of the channel."""
_SPREAD = 0.5
"""How much the shares of the copies of a channel differ."""


def resizable(group: Group) -> bool:
    """Whether channels may be added and removed: not where a layer norm counts them."""
    loose = group.kind == HIDDEN or (group.kind == STREAM and not group.riders)
    return group.movable and bool(group.consumers) and loose and not group.rigid


def gather(table: Table, group: Group, order: Indices) -> Group:
    """Let channel i be a copy of what was channel order[i], in all tensors."""
    for side in group.sides():
        value = table[side.tensor]
        end = side.offset + group.size * side.block
        rest = np.arange(end, value.shape[side.axis])
        places = np.concatenate([np.arange(side.offset), side.places(order), rest])
        table[side.tensor] = np.take(value, places, axis=side.axis)
    return replace(group, size=len(order))


def split(table: Table, group: Group, rng: np.random.Generator, count: int) -> Group:
    """Let channels become several that add up to what they were: `count` channels more.

    What makes the copies of a channel is proportional (equal where no factor passes); what reads
    them is arbitrary, but for its sum.
    """
    order = _with_copies(rng, group.size, rng.integers(0, group.size, count))
    grown = gather(table, group, order)
    copied = _copied(order)
    factors = _factors(rng, group.activation, copied)
    for side in makers(grown):
        multiply(table, side, factors)
    for side in grown.consumers:
        _share_out(table, side, order, rng)
        multiply(table, side, 1 / factors)
    for producer in grown.producers:
        if producer.norm is not None and producer.norm.direct:
            scale_normed(table, producer, _factors(rng, RELU, copied))
    return grown


def split_makers(table: Table, group: Group, rng: np.random.Generator, count: int) -> Group:
    """Let what makes a channel become several rows that add up: only where all is linear.

    What reads the copies is equal. (Between the gate and the output of a gated MLP.)
    """
    if group.activation != LINEAR or any(producer.norm for producer in group.producers):
        return group
    order = _with_copies(rng, group.size, rng.integers(0, group.size, count))
    grown = gather(table, group, order)
    for side in makers(grown):
        _share_out(table, side, order, rng)
    return grown


def add_decoys(table: Table, group: Group, rng: np.random.Generator, count: int) -> Group:
    """Put near-duplicates of channels beside them, in pairs whose outputs cancel exactly."""
    sources = rng.integers(0, group.size, count)
    kept = group.size
    order = np.concatenate([np.arange(kept), np.repeat(sources, 2)])
    grown = gather(table, group, order)
    pairs = kept + np.arange(2 * count).reshape(count, 2)
    silent = {side.tensor for side in grown.consumers}
    norms = {side.tensor for p in grown.producers if p.norm for side in p.norm.sides()}
    for side in grown.sides():
        if side.tensor not in norms:
            _draw_near(table, side, pairs, rng, opposed=side.tensor in silent)
    mixed = rng.permutation(grown.size)
    return gather(table, grown, mixed)


def least_important(table: Table, group: Group, share: float) -> Indices:
    """The channels that contribute least: a share of them, but never all."""
    count = min(round(share * group.size), group.size - 1)
    made = sum((_energy(table, group, producer) for producer in group.producers), np.zeros(1))
    read = sum((norms_of(table, side, group.size) ** 2 for side in group.consumers), np.zeros(1))
    gates = [side for side in group.riders if table[side.tensor].ndim > 1]
    for side in gates:
        made = made * norms_of(table, side, group.size) ** 2
    return np.sort(np.argsort(made * read, kind="stable")[:count])


def remove(table: Table, group: Group, gone: Indices) -> Group:
    """Take channels out of all tensors."""
    return gather(table, group, np.setdiff1d(np.arange(group.size), gone))


def make_up(table: Table, groups: Sequence[Group], group: Group, gone: Indices) -> int:
    """Give what channels contribute on average to the layers that read them; count these.

    The average follows from the batch norm before a ReLU; elsewhere nothing is known.
    """
    norm = group.producers[0].norm
    if not len(gone) or group.activation != RELU or len(group.producers) > 1 or norm is None:
        return 0
    mean, _ = _moments(table, norm)
    done = 0
    for side in group.consumers:
        into = _bias_of(groups, side.tensor)
        if into is None or side.axis != 1:
            continue
        value = np.moveaxis(table[side.tensor], side.axis, 0)[side.places(gone)]
        value = value.reshape(len(gone) * side.block, table[side.tensor].shape[0], -1).sum(axis=2)
        shift = np.repeat(mean[gone], side.block) @ value
        name, sign = into
        table[name] = (table[name] + sign * shift).astype(np.float32)
        done += 1
    return done


def norms_of(table: Table, side: Side, size: int) -> Factors:
    """The norm of each channel in a tensor."""
    value = table[side.tensor]
    run = np.moveaxis(value, side.axis, 0)[side.offset : side.offset + size * side.block]
    squares = np.square(run.reshape(size, -1), dtype=np.float64).sum(axis=1)
    return np.asarray(np.sqrt(squares), np.float64)


def _with_copies(rng: np.random.Generator, size: int, extra: Indices) -> Indices:
    """All channels, and the extra ones at random places between them."""
    at = rng.integers(0, size + 1, len(extra))
    return np.insert(np.arange(size), at, extra)


def _copied(order: Indices) -> npt.NDArray[np.bool_]:
    """Which channels have a twin."""
    return np.asarray(np.bincount(order)[order] > 1)


def _factors(rng: np.random.Generator, activation: str, copied: npt.NDArray[np.bool_]) -> Factors:
    """Random factors for the copied channels, of the kind that passes the activation."""
    factors: Factors = np.exp(rng.uniform(-REACH, REACH, len(copied)))
    if activation == LINEAR:
        factors *= rng.choice([-1.0, 1.0], len(copied))
    return np.where(copied & (activation != OTHER), factors, 1.0)


def _share_out(table: Table, side: Side, order: Indices, rng: np.random.Generator) -> None:
    """Let the copies of each channel in a tensor be arbitrary, but add up to the channel."""
    value = np.moveaxis(table[side.tensor].copy(), side.axis, 0)
    run = slice(side.offset, side.offset + len(order) * side.block)
    blocks = value[run].reshape(len(order), -1).astype(np.float64)
    copied = np.flatnonzero(_copied(order))
    family = order[copied]
    part, counts = blocks[copied], np.bincount(order)[family][:, None]
    size = np.sqrt(np.square(part).mean(axis=1, keepdims=True))
    drawn = part * rng.normal(0.0, _SPREAD, (len(part), 1))
    drawn += size * rng.standard_normal(part.shape)
    for channel in np.unique(family):
        mine = family == channel
        drawn[mine] -= drawn[mine].mean(axis=0)
    blocks[copied] = part / counts + drawn
    value[run] = blocks.reshape(value[run].shape)
    table[side.tensor] = np.ascontiguousarray(np.moveaxis(value, 0, side.axis))


def _draw_near(
    table: Table, side: Side, pairs: Indices, rng: np.random.Generator, *, opposed: bool
) -> None:
    """Move both channels of each pair by the same noise; turn the second where they are read."""
    value = np.moveaxis(table[side.tensor].copy(), side.axis, 0)
    first, second = side.places(pairs[:, 0]), side.places(pairs[:, 1])
    near: Array = value[first]
    if near.ndim > 1:
        along = tuple(range(1, near.ndim))
        size = np.sqrt(np.square(near, dtype=np.float64).mean(axis=along, keepdims=True))
        near = near + (NEAR * size * rng.standard_normal(near.shape)).astype(np.float32)
    value[first], value[second] = near, -near if opposed else near
    table[side.tensor] = np.ascontiguousarray(np.moveaxis(value, 0, side.axis))


def _energy(table: Table, group: Group, producer: Producer) -> Factors:
    """Mean squares of what a producer gives, in its own units."""
    if producer.norm is not None:
        return _moments(table, producer.norm)[1]
    weight = next(side for side in producer.sides if table[side.tensor].ndim > 1)
    return norms_of(table, weight, group.size) ** 2


def _moments(table: Table, norm: Norm) -> tuple[Factors, Factors]:
    """Mean and mean square behind a batch norm and a ReLU, the input being normal."""
    from scipy.special import ndtr

    beta = table[norm.beta].astype(np.float64)
    gamma = np.maximum(np.abs(table[norm.gamma].astype(np.float64)), 1e-12)
    at = beta / gamma
    below, density = ndtr(at), np.exp(-(at**2) / 2) / np.sqrt(2 * np.pi)
    mean: Factors = beta * below + gamma * density
    square: Factors = (beta**2 + gamma**2) * below + beta * gamma * density
    return mean, square


def _bias_of(groups: Sequence[Group], tensor: str) -> tuple[str, int] | None:
    """What a constant may be added to behind this layer: a norm's mean (subtract), or a bias."""
    for producer in (each for group in groups for each in group.producers):
        names = [side.tensor for side in producer.sides]
        if tensor not in names or producer.sides[names.index(tensor)].axis != 0:
            continue
        if producer.norm is not None and producer.norm.direct:
            return producer.norm.mean, -1
        bias = [name for name in names if name != tensor and name.endswith("bias")]
        if producer.norm is None and bias:
            return bias[0], 1
    return None
