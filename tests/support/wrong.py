"""Records with something wrong in any place."""

import copy
from collections.abc import Iterator
from typing import Any

WRONG: list[Any] = [
    None,
    True,
    7,
    -1,
    1.5,
    "text",
    [],
    {},
    [1],
    {"a": 1},
    10**30,
    "\ud800",
    "x" * 9999,
]


def numbered(value: Any) -> list[tuple[int, Any]]:
    return list(enumerate(value)) if isinstance(value, list) else []


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a JSON value."""
    names = list(value) if isinstance(value, dict) else []
    for name, part in [(name, value[name]) for name in names] + numbered(value):
        yield (*at, name)
        yield from places(part, (*at, name))


def changed(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    value = copy.deepcopy(value)
    part = value
    for name in at[:-1]:
        part = part[name]
    part[at[-1]] = new
    return value
