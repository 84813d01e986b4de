"""float32 copies of the weights that optimizers keep: for files that hold nothing else.

Training in half precision keeps the weights a second time in float32, inside the optimizer (apex
and Megatron as lists for each group of parameters, DeepSpeed as flat partitions, others beside the
moments of each parameter). They are named after the parameters where the optimizer knows these.
"""

from collections.abc import Callable, Iterator
from typing import Any

from neuralmark.checkpoints.readers.inert import Call, Opaque
from neuralmark.checkpoints.readers.torch_calls import table_of, tensor_of
from neuralmark.errors import UnsafeError
from neuralmark.storage.places import Place

MASTERS = frozenset(
    (
        *("fp32_from_fp16_params", "fp32_from_fp16", "fp32_from_fp16_groups", "fp32_params"),
        *("single_partition_of_fp32_groups", "fp32_flat_groups", "fp32_groups_flat", "fp32_groups"),
        *("master_params", "master_param", "master_weights", "master_weight", "fp32_param"),
    )
)
"""Keys under which optimizers keep float32 copies."""
MOMENTS = ("exp_avg", "momentum_buffer")
INNER = ("optimizer", "optimizer_state_dict", "base_optimizer_state")
"""Where a wrapped optimizer's own state is."""
MAX_DEPTH = 32

Keys = tuple[str, ...]


class MasterFinder:
    """Looks for the copies in a loaded pickle, within the budget of who asks."""

    def __init__(self, path: Place, spend: Callable[[int, int], None]) -> None:
        """`spend` counts steps and characters, and raises where there are too many."""
        self._path, self._spend = path, spend
        self._found: dict[str, Call] = {}

    def find(self, value: Any) -> dict[str, Call]:
        """All copies, by the best names that exist."""
        self._visit(value, (), (), [])
        return self._found

    def _visit(self, value: Any, keys: Keys, above: tuple[int, ...], groups: list[Any]) -> None:
        if len(above) > MAX_DEPTH:
            raise UnsafeError(f"{self._path}: is nested deeper than {MAX_DEPTH} levels")
        table = _parts(value)
        if table is None or id(value) in above:
            return
        groups = _groups(table) or groups
        here = (*above, id(value))
        has_moments = any(moment in table for moment in MOMENTS)
        for key, part in table.items():
            self._spend(1, 0)
            if key in MASTERS or (key == "param" and has_moments):
                self._take(part, keys, str(key), groups)
            elif tensor_of(part) is None:
                self._visit(part, (*keys, _title(key)), here, groups)

    def _take(self, part: Any, keys: Keys, key: str, groups: list[Any]) -> None:
        """All tensors under a key: alone, in a list, in lists of lists."""
        for index, call in self._tensors(part, (), ()):
            name = _name(keys, index, groups)
            dotted = ".".join((*keys, key, *index))
            name = dotted if name is None or name in self._found else name
            self._spend(1, len(name))
            self._found.setdefault(name, call)

    def _tensors(
        self, part: Any, index: Keys, above: tuple[int, ...]
    ) -> Iterator[tuple[Keys, Call]]:
        call = tensor_of(part)
        if call is not None:
            yield index, call
            return
        table = _parts(part)
        if table is None or id(part) in above or len(above) > MAX_DEPTH:
            return
        for key, inner in table.items():
            self._spend(1, 0)
            yield from self._tensors(inner, (*index, _title(key)), (*above, id(part)))


def _parts(value: Any) -> dict[Any, Any] | None:
    """The parts of a dictionary, a list or an object, by key."""
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    table = table_of(value)
    if table is None and isinstance(value, Call) and isinstance(value.state, dict):
        return value.state
    return table


def _title(key: Any) -> str:
    """A key as a part of a name; what is no scalar has none."""
    return "_" if isinstance(key, Opaque) or key is None else str(key)


def _groups(table: dict[Any, Any]) -> list[Any]:
    """The groups of parameters that an optimizer, or the one inside it, knows."""
    for where in (table, *(table.get(key) for key in INNER)):
        groups = where.get("param_groups") if isinstance(where, dict) else None
        if isinstance(groups, list) and groups:
            return groups
    return []


def _name(keys: Keys, index: Keys, groups: list[Any]) -> str | None:
    """The parameter's name: from its group and place in it, or from the key of its state."""
    if len(index) == 2 and index[0].isdecimal() and index[1].isdecimal():
        return _named(groups, int(index[0]), int(index[1]))
    if not index and keys and not keys[-1].isdecimal() and keys[-1] not in ("_", "state"):
        return keys[-1]
    if not index and keys and keys[-1].isdecimal():
        for number, group in enumerate(groups):
            ids = group.get("params") if isinstance(group, dict) else None
            if isinstance(ids, list) and int(keys[-1]) in ids:
                return _named(groups, number, ids.index(int(keys[-1])))
    return None


def _named(groups: list[Any], number: int, place: int) -> str | None:
    group = groups[number] if number < len(groups) else None
    for key in ("param_names", "params"):
        names = group.get(key) if isinstance(group, dict) else None
        if isinstance(names, list) and place < len(names) and isinstance(names[place], str):
            found: str = names[place]
            return found
    return None
