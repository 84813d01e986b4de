"""Experiments: one file each, named after what it shows. See `neuralmark.lab.contract`."""

import difflib
from importlib import import_module
from types import ModuleType
from typing import Any

from neuralmark.errors import ParameterError
from neuralmark.lab.contract import Experiment
from neuralmark.registry import files_of

__all__ = ["Experiment", "get", "names"]


GROUP = "neuralmark.experiments"
"""Entry points of third parties: a name, and the class."""


def names() -> list[str]:
    """The experiments that are there, in the order of their places."""
    return sorted({*_own(), *_foreign()}, key=lambda name: (get(name).place, name))


def get(name: str) -> Experiment:
    """The experiment of this name; an unknown one is an error with the nearest suggestion."""
    if name in _own():
        return _only(import_module(f"{__name__}.{name.replace('-', '_')}"))
    foreign = _foreign()
    if name in foreign:
        made: Experiment = foreign[name].load()()
        return made
    near = difflib.get_close_matches(name, {*_own(), *foreign}, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "'neuralmark lab list' names them"
    raise ParameterError(f"there is no experiment {name!r}; {hint}")


def _own() -> list[str]:
    return [name.replace("_", "-") for name in files_of(__path__)]


def _foreign() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _only(module: ModuleType) -> Experiment:
    for thing in vars(module).values():
        if (
            isinstance(thing, type)
            and issubclass(thing, Experiment)
            and thing.__module__ == module.__name__
        ):
            made: Experiment = thing()
            return made
    raise ParameterError(f"{module.__name__} has no class that derives from Experiment")
