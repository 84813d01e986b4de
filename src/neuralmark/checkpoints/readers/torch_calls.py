"""Tensors among the calls that a pickle of torch asks for."""

from typing import Any, TypeGuard

from neuralmark.checkpoints.readers.inert import Call, Global


def tensor_of(value: Any) -> Call | None:
    """Unwrap parameters and subclasses down to the call that rebuilds a tensor, if it is one."""
    for _ in range(8):
        if not isinstance(value, Call) or not isinstance(value.function, Global):
            return None
        module, name, args = value.function.module, value.function.name, value.args
        if module == "torch._tensor" and name.startswith("_rebuild_from_type"):
            if len(args) < 3 or not isinstance(args[2], tuple):
                return None
            value = Call(args[0], args[2], args[3] if len(args) > 3 else None)
        elif module != "torch._utils" or not name.startswith("_rebuild_"):
            return None
        elif name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
            value = args[0] if args else None
        else:
            return value
    return None


def table_of(value: Any) -> dict[Any, Any] | None:
    """Give a dictionary, or the entries of an object that was filled like one."""
    if isinstance(value, dict):
        return value
    return value.items or None if isinstance(value, Call) else None


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value is a number of things."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
