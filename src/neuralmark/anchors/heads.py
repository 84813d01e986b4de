"""How many attention heads a model has: names and shapes do not tell."""

import json
from typing import Any

from neuralmark.anchors.header import MAX_HEADS
from neuralmark.checkpoints import Checkpoint, root_of
from neuralmark.errors import ParameterError
from neuralmark.storage import places

_MAX_CONFIG = 1 << 20
_COUNTS = ("num_attention_heads", "n_head", "n_heads", "num_heads")


def check_heads(heads: int) -> int:
    """The number of attention heads, if it can be one; 0: not known."""
    if isinstance(heads, bool) or not isinstance(heads, int) or not 0 <= heads <= MAX_HEADS:
        raise ParameterError(f"heads must be a number from 0 to {MAX_HEADS}, not {heads!r:.40}")
    return heads


def heads_of(checkpoint: Checkpoint) -> int:
    """The attention heads that the file tells of, its folder's config.json, or one beside it.

    0 where nothing does.
    """
    if 0 < checkpoint.heads <= MAX_HEADS:
        return checkpoint.heads
    model = root_of(checkpoint.path)
    folder = model if model.is_dir() else model.parent
    try:
        data = places.read_small(folder / "config.json", _MAX_CONFIG)
        config = json.loads(data) if len(data) <= _MAX_CONFIG else {}
    except (OSError, ValueError, RecursionError):
        return 0
    return _heads_in(config) or _heads_in(_member(config, "text_config"))


def _member(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, dict) else None


def _heads_in(config: Any) -> int:
    for name in _COUNTS:
        count = _member(config, name)
        if type(count) is int and 0 < count <= MAX_HEADS:
            return count
    return 0
