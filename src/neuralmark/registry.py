"""What is found by the name of its file: schemes, attacks, formats, experiments, models, data sets.

Third parties register theirs under entry point groups.
"""

import difflib
import pkgutil
from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

from neuralmark.errors import NeuralMarkError, ParameterError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Thing = TypeVar("Thing")
CONTRACT = "contract"
"""The module of a package of plug-ins that says what they must be."""


class Registry(Generic[Thing]):
    """The classes of one kind: a file each in a package, and entry points of third parties.

    Nothing is imported before it is asked for by its name.
    """

    def __init__(
        self,
        package: str,
        base: type[Thing],
        noun: str,
        group: str,
        error: type[NeuralMarkError] = ParameterError,
    ) -> None:
        """Look in a package for classes that derive from `base`; raise `error` for other names."""
        self._package = package
        self._base = base
        self._noun = noun
        self._group = group
        self._error = error

    def names(self) -> list[str]:
        """All names, sorted; an underscore in the name of a file reads as a hyphen."""
        return sorted({*(name.replace("_", "-") for name in self._files), *foreign(self._group)})

    def get(self, name: str) -> type[Thing]:
        """The class of this name; a hyphen and an underscore are the same."""
        file = name.replace("-", "_")
        if file in self._files:
            return self._only_class(f"{self._package}.{file}")
        others = foreign(self._group)
        for known, entry in others.items():
            if known.replace("-", "_") == file:
                found: type[Thing] = entry.load()
                return found
        raise self._error(f"there is no {self._noun} {unknown(name, self.names())}")

    def name_of(self, cls: type[Thing]) -> str:
        """The name under which a class is found."""
        for name, entry in foreign(self._group).items():
            if entry.value.rpartition(":")[2] == cls.__qualname__ and entry.load() is cls:
                return name
        return cls.__module__.rpartition(".")[2].replace("_", "-")

    @cached_property
    def _files(self) -> list[str]:
        return files_of(import_module(self._package).__path__)

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


def foreign(group: str) -> dict[str, "EntryPoint"]:
    """What third parties registered under an entry point group, by name; not loaded yet."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=group)}


def unknown(name: str, known: Iterable[str]) -> str:
    """The end of a message on a name that is not known.

    >>> unknown("resnet81", ["resnet18", "vgg16"])
    "'resnet81'; did you mean 'resnet18'? (known: resnet18, vgg16)"
    """
    known = list(known)
    near = difflib.get_close_matches(name[:80], known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{name[:80]!r}{hint} (known: {', '.join(known) or 'none'})"
