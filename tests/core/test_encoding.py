"""Strict JSON."""

import pytest

from neuralmark.core.encoding import canonical_json, strict_json


@pytest.mark.parametrize(
    "text",
    ['{"a":1,"a":2}', "[NaN]", "[Infinity]", "[" * 100_000, b"\xff", "1" * 5000, "{", "", "[1,]"],
)
def test_what_is_not_strict_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        strict_json(text)


def test_round_trip() -> None:
    value = {"b": [1, "ü", None, True], "a": {"x": 0.5}}
    assert strict_json(canonical_json(value)) == value
    with pytest.raises(ValueError):
        canonical_json(float("nan"))
