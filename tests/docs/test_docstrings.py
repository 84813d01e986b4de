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
from neuralmark import attacks, disputes, lab, schemes, zoo


def public() -> Iterator[tuple[str, Any]]:
    """Names and values of what is public and can be called; classes with their methods."""
    for room in (neuralmark, attacks, disputes, lab, schemes, zoo):
        short = room.__name__.partition(".")[2]
        for name in room.__all__:
            value = getattr(room, name)
            if isinstance(value, type) or inspect.isroutine(inspect.unwrap(value)):
                yield f"{short}.{name}".lstrip("."), value


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods of a class; those that it inherits from one of ours too."""
    for name in dir(kind):
        value = getattr(kind, name)
        ours = getattr(value, "__module__", None) or ""
        if name.startswith("_") or not ours.startswith("neuralmark"):
            continue  # torch explains what a module inherits from it
        if inspect.isfunction(value) or inspect.ismethod(value):
            yield f"{kind.__name__}.{name}", value


PUBLIC = dict(public())
PUBLIC |= {
    name: method
    for kind in tuple(PUBLIC.values())
    if isinstance(kind, type)
    for name, method in methods(kind)
}
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


def attributes(kind: type) -> list[str]:
    """What an instance is asked for: the fields, or what a base class wants of those derived."""
    if is_dataclass(kind) and fields(kind):
        return [field.name for field in fields(kind)]
    return list(inspect.get_annotations(kind))


@cache
def found_in(module: str) -> frozenset[str]:
    """The docstrings of a module in which doctest finds examples."""
    tests = doctest.DocTestFinder().find(importlib.import_module(module))
    return frozenset(test.docstring for test in tests if test.examples and test.docstring)


def test_nothing_is_left_out() -> None:
    assert {"Key.new", "LiveMark.claim", "attacks.launch", "schemes.get", "zoo.data"} < set(PUBLIC)
    assert {"embed", "verify", "attach", "arbitrate", "lab.run"} < set(FUNCTIONS)
    assert {"Attack.run", "Card.load", "Ruling.save", "Scheme.derive"} < set(FUNCTIONS)
    assert {"attacks.Scene", "disputes.Party", "lab.Means", "zoo.DataSet"} < set(CLASSES)


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
def test_what_is_raised_is_named(name: str) -> None:
    raised = sections(FUNCTIONS[name]).get(griffe.DocstringSectionKind.raises, ())
    for each in raised:
        kind = str(each.annotation)
        assert hasattr(neuralmark.errors, kind) or kind in ("TypeError", "ValueError"), kind
        assert each.description.strip()
    if name in ("embed", "verify", "attach", "arbitrate", "attacks.launch", "Key.load"):
        assert raised


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_is_told(name: str) -> None:
    kind = CLASSES[name]
    told = described(kind, griffe.DocstringSectionKind.attributes)
    assert told
    assert told == (attributes(kind) or told)


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
