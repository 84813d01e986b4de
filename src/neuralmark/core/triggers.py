"""Triggers as numbers: their digest, which of many inputs a key takes, which share a mean.

Pure: arrays in, arrays out. The digest goes into everything that a mark is derived from, so nobody
can choose triggers after the bits are known.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from neuralmark.core.encoding import canonical_json, enc
from neuralmark.core.key import DIGEST_BYTES
from neuralmark.errors import ParameterError, TriggerMismatchError

Labels = npt.NDArray[np.int64]
Inputs = npt.NDArray[np.float32] | npt.NDArray[np.int64]
UNLABELLED = -1
"""The label of an input of no known class."""


def trigger_digest(inputs: Inputs, labels: Labels) -> bytes:
    """64 bytes that stand for these triggers: type, shape, every number and every label.

    >>> one = trigger_digest(np.zeros((2, 3), np.float32), np.array([0, 1]))
    >>> len(one), one == trigger_digest(np.zeros((2, 3), np.float32), np.array([1, 0]))
    (64, False)
    """
    head = {"dtype": inputs.dtype.kind, "shape": list(inputs.shape)}
    hashed = hashlib.shake_256(b"neuralmark/triggers/1" + enc(canonical_json(head)))
    hashed.update(np.ascontiguousarray(inputs, inputs.dtype.newbyteorder("<")).tobytes())
    hashed.update(np.ascontiguousarray(labels, "<i8").tobytes())
    return hashed.digest(DIGEST_BYTES)


def chosen_triggers(
    labels: Labels, seed: bytes, count: int, classes: Sequence[int] | None, *, each: bool
) -> npt.NDArray[np.int64]:
    """Which inputs become triggers: a keyed draw of `count`, in all or of each class.

    >>> chosen_triggers(np.array([0, 1, 0, 1]), b"", 1, None, each=True).shape
    (2,)
    """
    if not _whole(count) or count < 1:
        raise ParameterError(f"count must be a whole number of 1 or more, not {count!r}")
    if not len(labels):
        raise TriggerMismatchError("there are no inputs to draw triggers from: give some")
    order = drawn_order(seed, len(labels))
    known = sorted({int(label) for label in labels} - {UNLABELLED})
    if each and not known:
        raise TriggerMismatchError(
            "these inputs have no labels, and this scheme marks classes: give labels too"
        )
    wanted = None if classes is None else _wanted(classes, known)
    if wanted is not None:
        order = order[np.isin(labels[order], wanted)]
    groups = [order[labels[order] == label] for label in wanted or known]
    for group in groups if each else [order]:
        if len(group) < count:
            of = f" of class {int(labels[group[0]])}" if each and len(group) else ""
            raise TriggerMismatchError(
                f"there are {len(group)} inputs{of}, too few for {count}: give more data, or a"
                " smaller count"
            )
    if not each:
        return order[:count]
    return np.concatenate([group[:count] for group in groups])


def _wanted(classes: Sequence[int], known: list[int]) -> list[int]:
    """The classes to draw from, each once, all of them there."""
    try:
        listed = [] if isinstance(classes, str | bytes) else list(classes)
    except TypeError:
        listed = []
    if not listed or not all(_whole(label) for label in listed):
        raise ParameterError(
            f"classes are a list of whole numbers, as in [0, 3, 7], not {str(classes)[:80]!r}"
        )
    if not known:
        raise TriggerMismatchError(
            "these inputs have no labels, so there are no classes to choose from: leave classes"
            " out, or give labels too"
        )
    if missing := [label for label in listed if label not in known]:
        raise TriggerMismatchError(f"no input is of class {missing[0]}; there are {known}"[:200])
    return sorted({int(label) for label in listed})


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def drawn_order(seed: bytes, count: int) -> npt.NDArray[np.int64]:
    """The numbers below `count` in an order that follows from the seed."""
    stream = hashlib.shake_256(b"neuralmark/triggers/draw/1" + seed).digest(8 * count)
    return np.argsort(np.frombuffer(stream, "<u8"), kind="stable").astype(np.int64)


def by_class(labels: Labels) -> npt.NDArray[np.int64]:
    """Places of the triggers, a column for each class (sorted), as many rows as each class has.

    >>> by_class(np.array([7, 3, 3, 7])).tolist()
    [[1, 0], [2, 3]]
    """
    if (labels == UNLABELLED).any():
        raise TriggerMismatchError(
            "these triggers have no labels, and this scheme marks classes: make them with labels"
        )
    columns = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    if len({len(column) for column in columns}) != 1:
        raise TriggerMismatchError("every class needs the same number of triggers")
    return np.stack(columns, axis=1).astype(np.int64)
