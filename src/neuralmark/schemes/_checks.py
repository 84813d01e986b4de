"""What every scheme asks of the parameters of its keys."""

from collections.abc import Mapping
from typing import Any

from neuralmark.core.key import NONE, Parameters
from neuralmark.errors import ParameterError


def check_settings(name: str, settings: Mapping[str, Any], parameters: Parameters) -> None:
    """Refuse settings that the scheme does not have, lacks, or that are of another kind."""
    known = set(settings)
    unknown = sorted(set(dict(parameters.own)) - known)
    if unknown:
        has = f"it has {', '.join(sorted(known))}" if known else "it has none of its own"
        raise ParameterError(f"{name} has no setting {unknown[0]!r}; {has}")
    if missing := sorted(known - set(dict(parameters.own))):
        raise ParameterError(f"{name} needs its setting {missing[0]!r}")
    for setting, default in settings.items():
        value = parameters.setting(setting)
        number = isinstance(default, int | float)
        if number != isinstance(value, int | float):
            raise ParameterError(f"{setting} must be like {default!r}, not {value!r}")
        if type(default) is int and type(value) is not int:
            raise ParameterError(f"{setting} must be a whole number, not {value!r}")


def check_sizes(name: str, parameters: Parameters) -> None:
    """Refuse pools and rounds without a filter, and a filter without them."""
    if parameters.filter == NONE and (parameters.rounds or parameters.pools):
        raise ParameterError(
            f"{name} without a filter takes neither pools nor rounds: leave them out"
        )
    if parameters.filter != NONE and not (parameters.rounds and parameters.pools):
        raise ParameterError("a filter needs rounds and pools: give both, or leave both out")
