"""Every public name explains itself: each parameter, what comes back, and an example that runs.

The sections are read as the site reads them (griffe). That the examples are right is tested by
running them (`--doctest-modules`); here it is tested that doctest finds them.
"""

import doctest
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import griffe
import pytest

import neuralmark
from neuralmark import attacks, schemes, zoo
from neuralmark.attacks.engine.card import Card


def public() -> Iterator[tuple[str, Any]]:
    """Names and values of what is public and can be called; and methods of handles."""
    for name in neuralmark.__all__:
        value = getattr(neuralmark, name)
        if callable(value):
            yield name, value
    for room in (attacks, schemes, zoo):
        short = room.__name__.rpartition(".")[2]
        for name in room.__all__:
            value = getattr(room, name)
            if inspect.isroutine(inspect.unwrap(value)):
                yield f"{short}.{name}", value
    yield "attacks.Card", Card
    for kind in (neuralmark.Key, neuralmark.LiveMark):
        for name in vars(kind):
            value = getattr(kind, name)
            if not name.startswith("_") and callable(value):
                yield f"{kind.__name__}.{name}", value


PUBLIC = dict(public())
FUNCTIONS = {name: value for name, value in PUBLIC.items() if not isinstance(value, type)}
CLASSES = {name: value for name, value in PUBLIC.items() if isinstance(value, type)}


def sections(thing: Any) -> dict[griffe.DocstringSectionKind, Any]:
    """The sections of a docstring, by kind."""
    parsed = griffe.parse_google(griffe.Docstring(inspect.getdoc(thing) or ""), warnings=False)
    return {section.kind: section.value for section in parsed}


def described(thing: Any, kind: griffe.DocstringSectionKind) -> list[str]:
    """What a section names, where a description follows."""
    return [each.name for each in sections(thing).get(kind, ()) if each.description.strip()]


def parameters(function: Callable[..., Any]) -> list[str]:
    """The parameters that a caller gives."""
    return [name for name in inspect.signature(function).parameters if name != "self"]


@cache
def found_in(module: str) -> frozenset[str]:
    """The docstrings of a module in which doctest finds examples."""
    tests = doctest.DocTestFinder().find(importlib.import_module(module))
    return frozenset(test.docstring for test in tests if test.examples and test.docstring)


def test_nothing_is_left_out() -> None:
    assert {"Key.new", "LiveMark.claim", "attacks.launch", "schemes.get", "zoo.data"} < set(PUBLIC)
    assert {"embed", "verify", "attach", "arbitrate"} < set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_args_name_every_parameter_in_order(name: str) -> None:
    function = FUNCTIONS[name]
    told = described(function, griffe.DocstringSectionKind.parameters)
    assert told == parameters(function)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_comes_back_is_told(name: str) -> None:
    gives = inspect.signature(FUNCTIONS[name]).return_annotation
    told = griffe.DocstringSectionKind.returns in sections(FUNCTIONS[name])
    assert told == (gives not in (None, "None"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_raised_is_one_of_ours(name: str) -> None:
    raised = sections(FUNCTIONS[name]).get(griffe.DocstringSectionKind.raises, ())
    for each in raised:
        assert hasattr(neuralmark.errors, str(each.annotation)), each.annotation
        assert each.description.strip()
    if name in ("embed", "verify", "attach", "arbitrate", "attacks.launch", "Key.load"):
        assert raised


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_is_told(name: str) -> None:
    kind = CLASSES[name]
    told = described(kind, griffe.DocstringSectionKind.attributes)
    if is_dataclass(kind):
        assert told == [field.name for field in fields(kind)]
    else:
        assert told


@pytest.mark.parametrize("name", PUBLIC)
def test_an_example_is_there_and_runs_with_the_doctests(name: str) -> None:
    thing = PUBLIC[name]
    assert griffe.DocstringSectionKind.examples in sections(thing)
    assert thing.__doc__ in found_in(inspect.unwrap(thing).__module__)


def test_an_undocumented_parameter_is_noticed() -> None:
    def half(model: str, strength: float) -> None:
        """Mark.

        Args:
            model: The path.
        """

    assert described(half, griffe.DocstringSectionKind.parameters) != parameters(half)
