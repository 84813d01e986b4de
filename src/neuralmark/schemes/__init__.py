"""Watermarking schemes behind one interface. One file a scheme; the file's name is its name.

Third parties register a class that derives from `Scheme` under the entry point group
`neuralmark.schemes`.

    from neuralmark import Key, schemes
    key = Key.new(schemes.parameters("votemark", filter="tiled", rounds=4))
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from neuralmark.core.key import Mark, Parameters
from neuralmark.errors import UnknownSchemeError
from neuralmark.registry import Registry
from neuralmark.schemes.contract import Arrays, Scheme

__all__ = ["Arrays", "Scheme", "get", "names", "of", "parameters"]


_schemes: Registry[Scheme] = Registry(
    __name__,
    Scheme,  # type: ignore[type-abstract]
    "scheme",
    "neuralmark.schemes",
    UnknownSchemeError,
)


def names() -> list[str]:
    """The schemes that are there: built in, and registered by others."""
    return _schemes.names()


@cache
def get(name: str) -> Scheme:
    """The scheme of this name; an unknown one is an error with the nearest suggestion."""
    return _schemes.get(name)()


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
