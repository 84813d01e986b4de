"""Options are checked when they are made, not when the work has begun."""

from typing import Any

import numpy as np
import pytest

from neuralmark import AttachOptions, EmbedOptions, InspectOptions, Key
from neuralmark.errors import ParameterError
from tests.support.checks import one_line


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        (EmbedOptions, {"strength": 1.0, "budget": 1.0}, "not both"),
        (EmbedOptions, {"strength": True}, "must be a number"),
        (EmbedOptions, {"budget": "2"}, "must be a number"),
        (EmbedOptions, {"strength": 0}, "above 0"),
        (EmbedOptions, {"strength": 1e7}, "at most"),
        (EmbedOptions, {"budget": 101}, "up to 100"),
        (EmbedOptions, {"in_span": True, "budget": 1.0}, "a strength, not a budget"),
        (AttachOptions, {"mode": "magic"}, "mode must be one of"),
        (AttachOptions, {"target": "biases"}, "target must be one of"),
        (AttachOptions, {"strength": 0.0}, "positive number"),
        (AttachOptions, {"strength": float("inf")}, "positive number"),
        (AttachOptions, {"every": 0}, "whole number of steps"),
        (AttachOptions, {"every": 1.5}, "whole number of steps"),
        (AttachOptions, {"every": True}, "whole number of steps"),
        (EmbedOptions, {"tensors": 5}, "tensors must be a list of names, not 5"),
        (EmbedOptions, {"tensors": [5]}, "tensors must be a list of names"),
        (EmbedOptions, {"spread": ["wide"]}, "spread must be one of wide, quick, all"),
        (EmbedOptions, {"base": 5}, "base must be a path, not 5"),
        (EmbedOptions, {"check": "accuracy"}, "check must be a function, not 'accuracy'"),
        (EmbedOptions, {"other_keys": 5}, "other_keys must be a list of keys, not 5"),
        (EmbedOptions, {"other_keys": None}, "other_keys must be a list of keys"),
        (EmbedOptions, {"other_keys": ["acme.nmkey"]}, "other_keys must be a list of keys"),
        (EmbedOptions, {"other_keys": Key.new()}, "other_keys must be a list of keys"),
        (InspectOptions, {"strength": None}, "strength must be a number, not None"),
        (InspectOptions, {"parameters": 256}, "parameters must be Parameters, not 256"),
        (InspectOptions, {"spread": 5}, "spread must be one of wide, quick, all"),
        (InspectOptions, {"base": 5}, "base must be a path, not 5"),
        (AttachOptions, {"tensors": 5}, "tensors must be a list of names, not 5"),
        (AttachOptions, {"tensors": [5]}, "tensors must be a list of names"),
        (AttachOptions, {"tensors": iter(["fc.weight"])}, "tensors must be a list of names"),
        (AttachOptions, {"strength": "2"}, "strength must be a positive number, not '2'"),
        (AttachOptions, {"strength": [1]}, "positive number"),
        (AttachOptions, {"strength": True}, "positive number"),
        (AttachOptions, {"strength": 10**400}, "positive number"),
    ],
)
def test_what_no_model_can_be_marked_with(kind: Any, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        kind(**wrong)
    one_line(caught.value)


def test_what_is_shown_of_a_wrong_value_is_one_short_line() -> None:
    with pytest.raises(ParameterError) as caught:
        EmbedOptions(other_keys=["two\nlines" * 500])  # type: ignore[list-item]
    assert len(one_line(caught.value)) < 150


def test_numbers_of_numpy_are_numbers_for_a_training() -> None:
    assert AttachOptions(strength=np.float32(1.5)).strength == 1.5  # type: ignore[arg-type]
