"""Bytes that mean one thing only: canonical JSON out, strict JSON in, length-prefixed parts."""

import json
from typing import Any


def enc(part: bytes) -> bytes:
    r"""Length of `part` as 8 little-endian bytes, then the bytes.

    >>> enc(b"ab")
    b'\x02\x00\x00\x00\x00\x00\x00\x00ab'
    """
    return len(part).to_bytes(8, "little") + part


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8 unescaped: equal values give equal bytes.

    >>> canonical_json({"b": 1, "a": "ü"}).decode()
    '{"a":"ü","b":1}'
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


def strict_json(data: bytes | str) -> Any:
    """Parse JSON; duplicate keys, NaN, infinity and runaway nesting raise ValueError.

    >>> strict_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ...
    ValueError: the key 'a' stands twice
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key[:80]!r} stands twice")
        result[key] = value
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
