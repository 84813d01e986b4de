"""Triggers as numbers: their digest, which are drawn, which share a mean."""

import hashlib
from typing import Any

import numpy as np
import pytest

from neuralmark.core.triggers import by_class, chosen_triggers, drawn_order, trigger_digest
from neuralmark.errors import ParameterError, TriggerMismatchError

LABELS = np.array([2, 0, 2, -1, 0, 2, 0, -1, 5], np.int64)


def test_the_digest_is_of_the_head_the_inputs_and_the_labels() -> None:
    inputs = np.arange(6, dtype=np.float32).reshape(2, 3)
    labels = np.array([1, -1], np.int64)
    head = b'{"dtype":"f","shape":[2,3]}'
    told = b"neuralmark/triggers/1" + len(head).to_bytes(8, "little") + head
    numbers = np.array([0, 1, 2, 3, 4, 5], "<f4").tobytes() + np.array([1, -1], "<i8").tobytes()
    assert trigger_digest(inputs, labels) == hashlib.shake_256(told + numbers).digest(64)
    big = inputs.astype(">f4")
    assert trigger_digest(big, labels.astype(">i8")) == trigger_digest(inputs, labels)
    assert trigger_digest(inputs[:, ::-1], labels) != trigger_digest(inputs, labels)


def test_the_order_is_that_of_numbers_drawn_from_the_seed() -> None:
    stream = hashlib.shake_256(b"neuralmark/triggers/draw/1" + b"seed").digest(8 * 50)
    drawn = [int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(50)]
    order = drawn_order(b"seed", 50)
    assert order.dtype == np.int64
    assert order.tolist() == sorted(range(50), key=lambda i: drawn[i])
    assert drawn_order(b"", 0).tolist() == []


def test_the_first_of_the_order_are_taken_in_all_or_of_each_class() -> None:
    order = drawn_order(b"seed", len(LABELS)).tolist()
    some = chosen_triggers(LABELS, b"seed", 4, None, each=False)
    assert some.tolist() == order[:4]
    of_two = chosen_triggers(LABELS, b"seed", 5, [0, 2], each=False)
    assert of_two.tolist() == [i for i in order if LABELS[i] in (0, 2)][:5]
    each = chosen_triggers(LABELS, b"seed", 2, [2, 0], each=True)
    of = {label: [i for i in order if LABELS[i] == label] for label in (0, 2, 5)}
    assert each.tolist() == of[0][:2] + of[2][:2]
    one = chosen_triggers(LABELS, b"seed", 1, None, each=True)
    assert one.tolist() == of[0][:1] + of[2][:1] + of[5][:1]


def test_all_of_a_class_may_be_taken_and_no_more() -> None:
    assert len(chosen_triggers(LABELS, b"", 3, [0, 2], each=True)) == 6
    assert len(chosen_triggers(LABELS, b"", 9, None, each=False)) == 9
    with pytest.raises(TriggerMismatchError, match="there are 3 inputs of class 0, too few for 4"):
        chosen_triggers(LABELS, b"", 4, [0, 2], each=True)
    with pytest.raises(TriggerMismatchError, match="there are 9 inputs, too few for 10"):
        chosen_triggers(LABELS, b"", 10, None, each=False)
    for each in (False, True):
        for classes in ([], "0,2", 2, [0.0], [True], ["0"]):
            with pytest.raises(ParameterError, match="classes are a list of whole numbers"):
                chosen_triggers(LABELS, b"", 1, classes, each=each)  # type: ignore[arg-type]
        with pytest.raises(TriggerMismatchError, match="there are no inputs"):
            chosen_triggers(LABELS[:0], b"", 1, None, each=each)
        with pytest.raises(TriggerMismatchError, match="no labels"):
            chosen_triggers(LABELS[3:4], b"", 1, [0], each=each)
        for count in ("8", 8.0, True, None):
            with pytest.raises(ParameterError, match="count must be a whole number"):
                chosen_triggers(LABELS, b"", count, None, each=each)  # type: ignore[arg-type]
    listed: list[Any] = [2, 2, np.int64(0)]
    twice = chosen_triggers(LABELS, b"", 1, listed, each=True)
    assert LABELS[twice].tolist() == [0, 2]


def test_what_cannot_be_drawn_is_refused() -> None:
    assert len(chosen_triggers(LABELS, b"", 1, None, each=False)) == 1
    with pytest.raises(ParameterError, match="1 or more, not 0"):
        chosen_triggers(LABELS, b"", 0, None, each=False)
    with pytest.raises(TriggerMismatchError, match="have no labels"):
        chosen_triggers(np.full(4, -1), b"", 1, None, each=True)
    assert len(chosen_triggers(np.full(4, -1), b"", 2, None, each=False)) == 2
    with pytest.raises(TriggerMismatchError, match="no input is of class 7"):
        chosen_triggers(LABELS, b"", 1, [0, 7], each=False)
    with pytest.raises(TriggerMismatchError, match="no input is of class -1"):
        chosen_triggers(LABELS, b"", 1, [-1], each=False)


def test_every_class_has_a_column() -> None:
    table = by_class(np.array([5, 1, 5, 1, 1, 5]))
    assert table.tolist() == [[1, 0], [3, 2], [4, 5]]
    assert table.dtype == np.int64
    with pytest.raises(TriggerMismatchError, match="have no labels"):
        by_class(np.array([1, -1]))
    with pytest.raises(TriggerMismatchError, match="the same number"):
        by_class(np.array([1, 2, 2]))
