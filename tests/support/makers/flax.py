"""What flax.serialization writes."""

from pathlib import Path
from typing import Any

from flax.serialization import msgpack_serialize

from tests.support.makers import Arrays

WRITES = False


def make(arrays: Arrays, where: Path) -> Path:
    path = where / "flax_model.msgpack"
    path.write_bytes(msgpack_serialize(nested(arrays)))
    return path


def victim(path: Path) -> Path:
    return path


def nested(arrays: dict[str, Any]) -> dict[str, Any]:
    """Tables within tables, cut at the dots."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *above, last = name.split(".")
        branch = tree
        for part in above:
            branch = branch.setdefault(part, {})
        branch[last] = array
    return tree
