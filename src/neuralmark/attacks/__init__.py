"""Everything that an attacker can do to a marked model. One file an attack.

The file's name is the attack's name (an underscore in it reads as a hyphen); it holds one
dataclass that derives from `Attack` (see `contract`). Third parties register such a class under the
entry point group `neuralmark.attacks`.

    from neuralmark import attacks
    result = attacks.launch(attacks.get("prune")(share=0.5), "marked.safetensors", key)
"""

import difflib
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from neuralmark.attacks.contract import Attack, Data, Outcome, Scene, Weights, option
from neuralmark.errors import ParameterError, UnknownAttackError
from neuralmark.registry import files_of

if TYPE_CHECKING:
    from neuralmark.attacks.engine.card import Card
    from neuralmark.attacks.engine.launch import Result, launch
    from neuralmark.attacks.engine.suite import suite

__all__ = [
    "Attack",
    "Card",
    "Data",
    "Outcome",
    "Result",
    "Scene",
    "Weights",
    "get",
    "launch",
    "names",
    "option",
    "suite",
]

_LAZY = {
    "Card": "engine.card",
    "Result": "engine.launch",
    "launch": "engine.launch",
    "suite": "engine.suite",
}
"""Public names whose modules import the whole of verification: loaded on first use."""


def names() -> list[str]:
    """The attacks that are there: built in, and registered by others."""
    return sorted(_built_in() | set(_registered()))


def get(name: str) -> type[Attack]:
    """The attack of this name; an unknown one is an error with the nearest suggestion."""
    if not isinstance(name, str):
        raise ParameterError(f'give the name of an attack, as in get("noise"), not {name!r}')
    plain = name.replace("_", "-")
    if plain in _built_in():
        module = import_module(f"{__name__}.{plain.replace('-', '_')}")
        return next(
            thing
            for thing in vars(module).values()
            if isinstance(thing, type)
            and issubclass(thing, Attack)
            and thing.__module__ == module.__name__
            and not thing.__name__.startswith("_")
        )
    if plain in _registered():
        return _registered()[plain]
    near = difflib.get_close_matches(plain, names(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "'neuralmark attack list' names them"
    raise UnknownAttackError(f"there is no attack {name!r}; {hint}")


def name_of(attack: Attack | type[Attack]) -> str:
    """The name under which an attack is found."""
    cls = attack if isinstance(attack, type) else type(attack)
    for name, registered in _registered().items():
        if registered is cls:
            return name
    return cls.__module__.rpartition(".")[2].replace("_", "-")


def _built_in() -> set[str]:
    return {name.replace("_", "-") for name in files_of(__path__)}


@cache
def _registered() -> dict[str, type[Attack]]:
    from importlib.metadata import entry_points

    return {entry.name: entry.load() for entry in entry_points(group="neuralmark.attacks")}


def __getattr__(name: str) -> object:
    """Load the judge on first use."""
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
