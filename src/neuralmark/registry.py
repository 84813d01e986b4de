"""What is found by the name of its file: architectures and data sets."""

import difflib
import pkgutil
from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from typing import Any, Generic, TypeVar

from neuralmark.errors import ParameterError

Thing = TypeVar("Thing")
CONTRACT = "contract"
"""The module of a package of plug-ins that says what they must be."""


class Registry(Generic[Thing]):
    """The classes of one kind: a file each in a package, and entry points of third parties."""

    def __init__(self, package: str, base: type[Thing], noun: str, group: str) -> None:
        self._package = package
        self._base = base
        self._noun = noun
        self._group = group

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._classes)

    def get(self, name: str) -> type[Thing]:
        """The class of this name; a hyphen and an underscore are the same."""
        for known, found in self._classes.items():
            if known.replace("-", "_") == name.replace("-", "_"):
                return found
        raise ParameterError(f"there is no {self._noun} {unknown(name, self.names())}")

    @cached_property
    def _classes(self) -> dict[str, type[Thing]]:
        from importlib.metadata import entry_points

        package = import_module(self._package)
        found = {}
        for module in files_of(package.__path__):
            cls = self._only_class(f"{self._package}.{module}")
            found[_name(cls)] = cls
        return found | {entry.name: entry.load() for entry in entry_points(group=self._group)}

    def _only_class(self, path: str) -> type[Thing]:
        return next(
            thing
            for thing in vars(import_module(path)).values()
            if isinstance(thing, type)
            and issubclass(thing, self._base)
            and thing.__module__ == path
            and not thing.__name__.startswith("_")
        )


def files_of(path: Iterable[str]) -> list[str]:
    """The plug-ins in a package: its modules but the contract and what is private."""
    modules = (each.name for each in pkgutil.iter_modules(path) if not each.ispkg)
    return [name for name in modules if name != CONTRACT and not name.startswith("_")]


def _name(cls: Any) -> str:
    return str(cls.name)


def unknown(name: str, known: Iterable[str]) -> str:
    """The end of a message on a name that is not known.

    >>> unknown("resnet81", ["resnet18", "vgg16"])
    "'resnet81'; did you mean 'resnet18'? (known: resnet18, vgg16)"
    """
    known = list(known)
    near = difflib.get_close_matches(name[:80], known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{name[:80]!r}{hint} (known: {', '.join(known) or 'none'})"
