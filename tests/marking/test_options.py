"""Options are checked when they are made, not when the work has begun."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuralmark import AttachOptions, EmbedOptions, InspectOptions, Key, VerifyOptions
from neuralmark.core.key import Parameters
from neuralmark.errors import ParameterError
from neuralmark.marking.options import USUAL, options_of
from neuralmark.triggers.triggers import Triggers
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
        (EmbedOptions, {"strength": 1000000.1}, "at most"),
        (EmbedOptions, {"budget": 0}, "above 0"),
        (EmbedOptions, {"budget": 100.1}, "up to 100"),
        (EmbedOptions, {"budget": False}, "must be a number"),
        (EmbedOptions, {"strength": float("nan")}, "above 0"),
        (EmbedOptions, {"anchor": 5}, "anchor must be True, False or the anchor file"),
        (EmbedOptions, {"anchor": None}, "anchor must be True, False or the anchor file"),
        (EmbedOptions, {"heads": -1}, "heads must be"),
        (EmbedOptions, {"anchor_bits": 1}, "2 to 8 bits"),
        (EmbedOptions, {"anchor": "a.anchor", "anchor_bits": 8}, "keeps its own"),
        (EmbedOptions, {"anchor": False, "anchor_bits": 8}, "writes none"),
        (EmbedOptions, {"tensors": {"a.weight": 1}}, "tensors must be a list of names"),
        (EmbedOptions, {"tensors": b"a.weight"}, "tensors must be a list of names"),
        (VerifyOptions, {"effort": 0}, "effort must be"),
        (VerifyOptions, {"align_limit": 0}, "align_limit must be"),
        (InspectOptions, {"strength": 0}, "above 0"),
        (AttachOptions, {"triggers": 5}, "triggers must be Triggers or the path"),
        (AttachOptions, {"augment": "flip"}, "augment must be a function, not 'flip'"),
        (AttachOptions, {"strength": -1}, "positive number"),
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


@pytest.mark.parametrize(
    ("kind", "right"),
    [
        (EmbedOptions, {"strength": 1_000_000}),
        (EmbedOptions, {"strength": 1e-9}),
        (EmbedOptions, {"budget": 100}),
        (EmbedOptions, {"budget": 1e-9}),
        (EmbedOptions, {"strength": 1.0, "in_span": True}),
        (EmbedOptions, {"tensors": ("a.weight",), "base": Path("base"), "check": bool}),
        (EmbedOptions, {"tensors": "a.weight", "base": "base", "other_keys": [Key.new()]}),
        (EmbedOptions, {"anchor": "a.anchor", "heads": 8}),
        (EmbedOptions, {"anchor": Path("a.anchor"), "anchor_bits": 4}),
        (EmbedOptions, {"anchor": False}),
        (VerifyOptions, {"effort": 1, "align_limit": 1}),
        (InspectOptions, {"parameters": Parameters(), "spread": "all"}),
        (AttachOptions, {"mode": "loss", "target": "lora-delta", "every": 1}),
        (AttachOptions, {"strength": 1e-300, "augment": abs, "triggers": Path("t")}),
        (AttachOptions, {"triggers": "t", "tensors": ["a.weight"]}),
        (AttachOptions, {"triggers": Triggers.of(np.zeros((2, 3), np.float32))}),
        (AttachOptions, {"strength": np.int64(2)}),
    ],
)
def test_what_is_at_the_limits_is_taken(kind: Any, right: dict[str, Any]) -> None:
    made = kind(**right)
    assert {name: getattr(made, name) for name in right} == right


def test_defaults_are_those_of_the_documentation() -> None:
    made = EmbedOptions()
    assert (made.tensors, made.spread, made.strength, made.budget) == (None, "wide", None, None)
    assert (made.in_span, made.anchor, made.heads) == (False, True, 0)
    assert (VerifyOptions().effort, VerifyOptions().full_digest) == (1.0, None)
    looked = InspectOptions()
    assert (looked.parameters, looked.strength, looked.weights) == (None, 1.0, True)
    trained = AttachOptions()
    assert (trained.tensors, trained.mode, trained.every, trained.target) == (
        *("auto", None, 1),
        "weights",
    )
    assert USUAL == {"gradient": 1.0, "projection": 2.0, "loss": 1.0}


def test_options_of_another_kind_are_refused() -> None:
    given = VerifyOptions(effort=0.5)
    assert options_of(VerifyOptions, given) is given
    assert options_of(VerifyOptions, None) == VerifyOptions()
    with pytest.raises(ParameterError, match="must be VerifyOptions, not EmbedOptions"):
        options_of(VerifyOptions, EmbedOptions())
