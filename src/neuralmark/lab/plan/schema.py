"""What the fields of a preset may hold; anything else is an error that names the place."""

import difflib
import math
from typing import Any, get_args, get_origin

from neuralmark.errors import ParameterError
from neuralmark.lab.plan.spec import Settings


def typed(kind: Any, value: Any) -> Any:
    """1 and 1.0 mean the same where a number is asked for, and must give the same run."""
    if kind is float or float in get_args(kind):
        return tuple(map(float, value)) if isinstance(value, tuple) else float(value)
    return value


def require_several(where: str, values: tuple[Any, ...]) -> None:
    """Refuse an empty list, and one that holds a value twice."""
    if not values:
        raise ParameterError(f"{where} is empty")
    if len(set(values)) < len(values):
        raise ParameterError(f"{where} holds a value twice: {list(values)}")


def require_fit(where: str, kind: Any, value: Any, *, least: bool) -> None:
    """Refuse a value of another type than the field's, or one that no run could take."""
    if kind == Settings:
        if not isinstance(value, dict):
            raise ParameterError(f"{where} must be a table, not {value!r}")
    elif get_origin(kind) is tuple:
        _require_fits(where, get_args(kind), value, least=least)
    elif kind is str:
        if not isinstance(value, str) or not value:
            raise ParameterError(f"{where} must be a name, not {value!r}")
    else:  # int, float, or either of them with None, which TOML does not have
        whole = kind is not float and float not in get_args(kind)
        number = isinstance(value, int | (int if whole else float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0 or (least and not value):
            what = "a whole number" if whole else "a number"
            reach = "above 0" if least else "of 0 or more"
            raise ParameterError(f"{where} must be {what} {reach}, not {value!r}")


def _require_fits(where: str, kinds: tuple[Any, ...], value: Any, *, least: bool) -> None:
    if not isinstance(value, list):
        raise ParameterError(f"{where} must be a list, not {value!r}")
    if kinds[-1] is Ellipsis:
        for each in value:
            require_fit(where, kinds[0], each, least=least)
        return
    if len(value) != len(kinds):
        raise ParameterError(f"{where} must be lists of {len(kinds)}, not {value!r}")
    for kind, each in zip(kinds, value, strict=True):
        require_fit(where, kind, each, least=least)


def require_known(name: str, part: str, given: dict[str, Any], known: set[str]) -> None:
    """Refuse a key that a table does not have, with the nearest suggestion."""
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            where = f" in [{part}]" if part else ""
            raise ParameterError(f"the preset {name} has an unknown key {key!r}{where}{hint}")
