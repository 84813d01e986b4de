"""Watermarking schemes behind one interface. One file a scheme; the file's name is its name.

Third parties register a class that derives from `Scheme` under the entry point group
`neuralmark.schemes`.

    from neuralmark import Key, schemes
    key = Key.new(schemes.parameters("votemark", filter="tiled", rounds=4))
"""

import difflib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from neuralmark.core.key import Mark, Parameters
from neuralmark.errors import UnknownSchemeError
from neuralmark.registry import files_of
from neuralmark.schemes.contract import Arrays, Scheme

__all__ = ["Arrays", "Scheme", "get", "names", "of", "parameters"]


def names() -> list[str]:
    """The schemes that are there: built in, and registered by others."""
    return sorted({*_built_in(), *_registered()})


@cache
def get(name: str) -> Scheme:
    """The scheme of this name; an unknown one is an error with the nearest suggestion."""
    if name in _built_in():
        module = import_module(f"{__name__}.{name}")
        return _scheme_in(vars(module), module.__name__)
    if name in _registered():
        scheme: Scheme = _registered()[name].load()()
        return scheme
    near = difflib.get_close_matches(name[:80], names(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UnknownSchemeError(
        f"there is no scheme {name[:80]!r}{hint} (known: {', '.join(names())})"
    )


def of(mark: Mark) -> Scheme:
    """The scheme of a mark."""
    return get(mark.parameters.scheme)


def parameters(
    scheme: str = "neuralmark",
    *,
    bits: int | None = None,
    pools: int | None = None,
    rounds: int | None = None,
    filter: str | None = None,  # noqa: A002 - the name it has everywhere
    own: Mapping[str, Any] | None = None,
) -> Parameters:
    """Parameters for a key of a scheme; `own` are settings that only this scheme has.

    >>> parameters("votemark", rounds=4, filter="tiled").pools
    512
    """
    return get(scheme).parameters(bits, pools, rounds, filter, own)


def _scheme_in(members: Mapping[str, Any], module: str) -> Scheme:
    return next(
        thing()
        for thing in members.values()
        if isinstance(thing, type)
        and issubclass(thing, Scheme)
        and thing.__module__ == module
        and not thing.__name__.startswith("_")
    )


@cache
def _built_in() -> frozenset[str]:
    return frozenset(files_of(__path__))


@cache
def _registered() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group="neuralmark.schemes")}
