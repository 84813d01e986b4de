"""Shapes as pickles and JSON hold them: tuples, lists, torch.Size."""

from typing import Any

from neuralmark.checkpoints.readers.inert import Call
from neuralmark.checkpoints.readers.torch_calls import is_count
from neuralmark.checkpoints.readers.torch_tables import MAX_DIMENSIONS


def shape_of(value: Any) -> tuple[int, ...] | None:
    """A shape that makes sense, or None."""
    if isinstance(value, Call):  # torch.Size((…))
        value = value.args[0] if value.args else ()
    if not isinstance(value, tuple | list) or len(value) > MAX_DIMENSIONS:
        return None
    size = 1
    for length in value:
        if not is_count(length):
            return None
        size *= length
        if size >= 1 << 62:
            return None
    return tuple(value)
