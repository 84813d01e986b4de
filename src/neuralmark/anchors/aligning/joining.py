"""Channels that were split into parts, and the parts joined again (pure).

A channel may be made twice and its reading divided among the copies in any way: the copies have
proportional producers (batch norm folded in), so they are found in the suspect alone. One of them
is kept, and what reads them is summed. Whoever copies a channel nearly gets the same treatment, up
to what the anchor has itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuralmark.anchors.aligning.contents import unit_rows
from neuralmark.anchors.moves import MISSING
from neuralmark.structures.structure import LINEAR, Array, Group, Indices, Norm, Producer, Weights

Floats = npt.NDArray[np.floating]

LEAST, MOST = 0.9, 0.995
"""Copies are at least as alike as the first; more alike than the second is always a copy."""
_APART = 0.03
"""How much more alike copies must be than any two channels of the anchor."""
_LARGEST = 8192
"""Beyond so many channels no copies are looked for."""


@dataclass(frozen=True, eq=False)
class Joints:
    """How the channels of one group are joined: each is part of one, by a factor."""

    chief: Indices
    """For each joined channel the one that stands for it."""
    whole: Indices
    """For each channel of the suspect which joined channel it is a part of."""
    share: Floats
    """For each channel of the suspect its size, in that of its chief."""

    @property
    def parts(self) -> int:
        """How many channels vanish."""
        return len(self.whole) - len(self.chief)

    def kept(self, values: Array, axis: int, block: int = 1) -> Array:
        """What makes the channels: that of the chiefs."""
        runs = self.chief[:, None] * block + np.arange(block)
        return np.take(values, runs.reshape(-1), axis=axis)

    def summed(self, values: Array, axis: int, block: int = 1) -> Array:
        """What reads the channels: all parts together."""
        turned = np.moveaxis(values, axis, 0)
        runs = turned.reshape(len(self.whole), block, *turned.shape[1:])
        total = np.zeros((len(self.chief), *runs.shape[1:]), np.float32)
        shape = (-1, *[1] * (runs.ndim - 1))
        np.add.at(total, self.whole, runs * self.share.astype(np.float32).reshape(shape))
        flat = total.reshape(len(self.chief) * block, *turned.shape[1:])
        return np.ascontiguousarray(np.moveaxis(flat, 0, axis))

    def places(self, index: Indices) -> Indices:
        """Places of joined channels as places in the suspect."""
        return np.where(index == MISSING, MISSING, self.chief[np.maximum(index, 0)])

    def others(self, index: Indices) -> list[tuple[Indices, Floats]]:
        """Besides the chiefs: places of the other parts and their shares, one of each at a time."""
        place = np.full(len(self.chief), MISSING, np.intp)
        there = np.flatnonzero(index != MISSING)
        place[index[there]] = there
        rounds: list[tuple[Indices, Floats]] = []
        filled = np.zeros(len(self.chief), np.intp)
        for channel in np.flatnonzero(self.chief[self.whole] != np.arange(len(self.whole))):
            joined = self.whole[channel]
            if place[joined] == MISSING:
                continue
            if filled[joined] == len(rounds):
                size = len(index)
                rounds.append((np.full(size, MISSING, np.intp), np.ones(size)))
            places, shares = rounds[filled[joined]]
            places[place[joined]] = channel
            shares[place[joined]] = self.share[channel]
            filled[joined] += 1
        return rounds


def find_copies(group: Group, suspects: Weights, anchor: Weights) -> Joints | None:
    """The copies among a group's channels; None where there are none."""
    own, made = _made(group, anchor), _made(group, suspects)
    if own is None or made is None or len(made) > _LARGEST:
        return None
    either = group.activation == LINEAR
    natural = _likeness(own, either)
    np.fill_diagonal(natural, 0)
    least = float(np.clip(natural.max(initial=0) + _APART, LEAST, MOST))
    return joints_of(made, _likeness(made, either), least)


def _likeness(rows: Floats, either: bool) -> Floats:
    units = unit_rows(rows)
    alike = units @ units.T
    return np.asarray(np.abs(alike) if either else alike)


def joints_of(made: Floats, alike: Floats, least: float) -> Joints | None:
    """Every channel with those like it, the largest first."""
    sizes = np.einsum("ij,ij->i", made, made)
    whole = np.full(len(made), MISSING, np.intp)
    chiefs: list[int] = []
    for channel in np.argsort(-sizes, kind="stable"):
        if whole[channel] != MISSING:
            continue
        copies = (whole == MISSING) & (alike[channel] > least)
        copies[channel] = True
        whole[copies] = len(chiefs)
        chiefs.append(int(channel))
    chief = np.array(chiefs, np.intp)
    if len(chief) == len(made):
        return None
    mine = np.einsum("ij,ij->i", made, made[chief[whole]])
    share = np.divide(mine, sizes[chief[whole]], out=np.ones(len(made)), where=sizes > 0)
    return Joints(chief, whole, share)


def _made(group: Group, weights: Mapping[str, Array]) -> Floats | None:
    """What makes each channel, in one row: weights and shift, with the batch norm folded in."""
    rows = [_folded(producer, weights) for producer in group.producers]
    there = [row for row in rows if row is not None]
    if len(there) < len(rows) or not there or len({len(row) for row in there}) > 1:
        return None
    return np.concatenate(there, axis=1)


def _folded(producer: Producer, weights: Mapping[str, Array]) -> Floats | None:
    """None where a part is missing or does not fit."""
    if any(side.axis or side.block > 1 or side.offset for side in producer.sides):
        return None
    held = [weights[side.tensor] for side in producer.sides if side.tensor in weights]
    if len(held) < len(producer.sides) or len({len(value) for value in held}) > 1:
        return None
    rows = [np.asarray(value, np.float64).reshape(len(value), -1) for value in held]
    if not all(np.isfinite(row).all() for row in rows):
        return None
    made = np.concatenate(rows, axis=1)
    gain, shift = _norm(producer.norm, weights, len(made))
    return np.concatenate([made * gain[:, None], shift[:, None]], axis=1)


def _norm(norm: Norm | None, weights: Mapping[str, Array], size: int) -> tuple[Floats, Floats]:
    """Gain and shift of a batch norm; 1 and 0 where it is not there (folded already)."""
    names = () if norm is None else (norm.gamma, norm.beta, norm.mean, norm.var)
    held = [np.asarray(weights[n], np.float64) for n in names if n in weights]
    if norm is None or len(held) < 4 or any(v.shape != (size,) for v in held):
        return np.ones(size), np.zeros(size)
    gamma, beta, mean, var = (np.where(np.isfinite(v), v, 0) for v in held)
    gain = gamma / np.sqrt(np.maximum(var, 0) + norm.eps)
    return gain, beta - mean * gain
