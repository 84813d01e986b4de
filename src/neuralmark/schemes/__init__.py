"""Watermarking schemes behind one interface. One file per scheme; the file's name is its name.

Third parties register a class that derives from `Scheme` under the entry point group
`neuralmark.schemes`.

    from neuralmark import Key, schemes
    key = Key.new(schemes.parameters("votemark", filter="tiled", rounds=4))
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from neuralmark.core.key import Filter, Mark, Parameters
from neuralmark.errors import LiveModelError, UnknownSchemeError
from neuralmark.registry import Registry
from neuralmark.schemes._passports import PassportScheme
from neuralmark.schemes._triggered import TriggerScheme, live_needed
from neuralmark.schemes.contract import Arrays, Facts, Scheme

__all__ = [
    "Arrays",
    "Facts",
    "PassportScheme",
    "Scheme",
    "TriggerScheme",
    "get",
    "names",
    "of",
    "parameters",
    "require_weights",
]


_schemes: Registry[Scheme] = Registry(
    __name__,
    Scheme,  # type: ignore[type-abstract]
    "scheme",
    "neuralmark.schemes",
    UnknownSchemeError,
)


def names() -> list[str]:
    """The schemes that are there: built in, and registered by others.

    Returns:
        Their names, sorted.

    Examples:
        >>> "vanillamark" in neuralmark.schemes.names()
        True
    """
    return _schemes.names()


@cache
def get(name: str) -> Scheme:
    """The scheme of this name.

    Args:
        name: As `names` lists it.

    Returns:
        The scheme; it is stateless, so one instance serves everybody.

    Raises:
        UnknownSchemeError: There is none of this name; the nearest is suggested.

    Examples:
        >>> neuralmark.schemes.get("votemark").filters
        ('none', 'stream', 'tiled', 'private')
    """
    return _schemes.get(name)()


def of(mark: Mark) -> Scheme:
    """The scheme of a mark.

    Args:
        mark: A key at one placement, as `Key.at` gives it.

    Returns:
        The scheme that its parameters name.

    Raises:
        UnknownSchemeError: It is of a scheme that is not installed.

    Examples:
        >>> neuralmark.schemes.of(key.at((("layer1.weight", (128, 128)),))).name
        'neuralmark'
    """
    return get(mark.parameters.scheme)


def parameters(
    scheme: str = "neuralmark",
    *,
    bits: int | None = None,
    pools: int | None = None,
    rounds: int | None = None,
    filter: Filter | None = None,  # noqa: A002 - the name it has everywhere
    own: Mapping[str, Any] | None = None,
) -> Parameters:
    """Parameters for a key of a scheme, what is not given filled in and all of it checked.

    Args:
        scheme: Name of the scheme.
        bits: Length of the watermark.
        pools: How many groups the carriers are averaged in.
        rounds: How many times the filter is applied.
        filter: How carriers are chosen; by default as is usual for the scheme.
        own: Settings that only this scheme has, by name.

    Returns:
        What `Key.new` takes.

    Raises:
        UnknownSchemeError: There is no scheme of this name.
        ParameterError: The scheme cannot work with these values.

    Examples:
        >>> parameters("votemark", rounds=4, filter="tiled").pools
        512
    """
    return get(scheme).parameters(bits, pools, rounds, filter, own)


def require_weights(parameters: Parameters) -> None:
    """Refuse a scheme that weights alone do not tell of.

    Args:
        parameters: What a key has.

    Raises:
        LiveModelError: The scheme reads the activations of a live model at its triggers.

    Examples:
        >>> neuralmark.schemes.require_weights(key.parameters)
    """
    scheme = get(parameters.scheme)
    if isinstance(scheme, TriggerScheme):
        raise LiveModelError(live_needed(scheme.name))
