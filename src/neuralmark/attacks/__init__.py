"""Everything that an attacker can do to a marked model. One file per attack.

The file's name is the attack's name (an underscore in it reads as a hyphen); it holds one
dataclass that derives from `Attack` (see `contract`). Third parties register such a class under the
entry point group `neuralmark.attacks`.

    from neuralmark import attacks
    result = attacks.launch(attacks.get("prune")(share=0.5), "marked.safetensors", key)
"""

from importlib import import_module
from typing import TYPE_CHECKING

from neuralmark.attacks.contract import Attack, Data, Outcome, Scene, Weights, option
from neuralmark.errors import ParameterError, UnknownAttackError
from neuralmark.registry import Registry

if TYPE_CHECKING:
    from neuralmark.attacks.engine.card import Card
    from neuralmark.attacks.engine.launch import launch
    from neuralmark.attacks.engine.options import LaunchOptions, StandardOptions, SuiteOptions
    from neuralmark.attacks.engine.result import Result
    from neuralmark.attacks.engine.standard import standard
    from neuralmark.attacks.engine.standard_report import StandardReport
    from neuralmark.attacks.engine.suite import suite

__all__ = [
    "Attack",
    "Card",
    "Data",
    "LaunchOptions",
    "Outcome",
    "Result",
    "Scene",
    "StandardOptions",
    "StandardReport",
    "SuiteOptions",
    "Weights",
    "get",
    "launch",
    "names",
    "option",
    "standard",
    "suite",
]

_LAZY = {
    "Card": "engine.card",
    "LaunchOptions": "engine.options",
    "StandardOptions": "engine.options",
    "StandardReport": "engine.standard_report",
    "SuiteOptions": "engine.options",
    "Result": "engine.result",
    "launch": "engine.launch",
    "standard": "engine.standard",
    "suite": "engine.suite",
}
"""Public names whose modules import the whole of verification: loaded on first use."""


_attacks: Registry[Attack] = Registry(
    __name__,
    Attack,  # type: ignore[type-abstract]
    "attack",
    "neuralmark.attacks",
    UnknownAttackError,
)


def names() -> list[str]:
    """The attacks that are there: built in, and registered by others.

    Returns:
        Their names, sorted.

    Examples:
        >>> [name for name in neuralmark.attacks.names() if name.startswith("n")]
        ['narrow', 'noise', 'nullspace']
    """
    return _attacks.names()


def get(name: str) -> type[Attack]:
    """The attack of this name.

    Args:
        name: As `names` lists it; an underscore reads as a hyphen.

    Returns:
        Its class; an instance of it, with its settings, is what `launch` takes.

    Raises:
        UnknownAttackError: There is none of this name; the nearest is suggested.
        ParameterError: It is not a name.

    Examples:
        >>> neuralmark.attacks.get("prune")(share=0.5).strength
        0.5
    """
    if not isinstance(name, str):
        raise ParameterError(f'give the name of an attack, as in get("noise"), not {name!r}')
    return _attacks.get(name)


def name_of(attack: Attack | type[Attack]) -> str:
    """The name under which an attack is found."""
    return _attacks.name_of(attack if isinstance(attack, type) else type(attack))


def __getattr__(name: str) -> object:
    """Load the judge on first use."""
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
