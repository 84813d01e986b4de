"""Marks written into and read from arrays, bound to an anchor."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from neuralmark import Key, Parameters
from neuralmark.anchors.anchor import Anchor
from neuralmark.core import imprint, readout
from neuralmark.core.carriers import Carriers

Table = dict[str, Any]

SHORT = Parameters(bits=160, pools=320, rounds=1)


def some_key(number: int = 1) -> Key:
    """A key that is always the same."""
    return Key(SHORT, b"", salt=bytes(32), secret=bytes([number]) * 32)


def marked_with(weights: Mapping[str, Any], anchor: Anchor, key: Key, strength: float) -> Table:
    """The weights with the key's mark, by the least change."""
    mark = key.at(anchor.placement, anchor.digest)
    flat = _flat(weights, anchor)
    carriers = Carriers.of(mark, len(flat))
    at = carriers.positions(0, carriers.size)
    pooled = readout.pool(flat[at], carriers.pools)
    goal = imprint.goal_of(pooled, strength)
    change = imprint.LeastChange(mark).change(pooled, goal)
    flat[at] += np.tile(change, carriers.per_pool)
    made, start = dict(weights), 0
    for name, shape in anchor.placement:
        stop = start + int(np.prod(shape))
        made[name] = flat[start:stop].reshape(shape).astype(np.float32)
        start = stop
    return made


def matching_bits(weights: Mapping[str, Any], anchor: Anchor, key: Key) -> int:
    """How many bits of the key's mark the weights show."""
    mark = key.at(anchor.placement, anchor.digest)
    flat = _flat(weights, anchor)
    carriers = Carriers.of(mark, len(flat))
    values = flat[carriers.positions(0, carriers.size)]
    logits = readout.logits(readout.pool(values, carriers.pools), mark.matrix.astype(np.float64))
    return int(readout.matches(logits, mark.signs).sum())


def _flat(weights: Mapping[str, Any], anchor: Anchor) -> Any:
    parts = [np.asarray(weights[name], np.float64).reshape(-1) for name, _ in anchor.placement]
    return np.concatenate(parts)
