"""Experiments: one file each, named after what it shows. See `_base` for the contract."""

import difflib
import pkgutil
from importlib import import_module

from neuralmark.errors import ParameterError
from neuralmark.lab.experiments._base import Experiment

__all__ = ["Experiment", "get", "names"]


def names() -> list[str]:
    """The experiments that are there."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name.replace("_", "-") for name in modules if not name.startswith("_"))


def get(name: str) -> Experiment:
    """The experiment of this name; an unknown one is an error with the nearest suggestion."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "'neuralmark lab list' names them"
        raise ParameterError(f"there is no experiment {name!r}; {hint}")
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    for thing in vars(module).values():
        if (
            isinstance(thing, type)
            and issubclass(thing, Experiment)
            and thing.__module__ == module.__name__
        ):
            made: Experiment = thing()
            return made
    raise ParameterError(f"the experiment {name!r} has no class that derives from Experiment")
