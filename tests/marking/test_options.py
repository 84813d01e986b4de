"""Options are checked when they are made, not when the work has begun."""

from typing import Any

import pytest

from neuralmark import AttachOptions, EmbedOptions
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
    ],
)
def test_what_no_model_can_be_marked_with(kind: Any, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        kind(**wrong)
    one_line(caught.value)
