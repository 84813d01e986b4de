"""What torch writes into a pickle: finding the tensors in it, and where their bytes are.

Works on the records of `inert`. A tensor is the note of a call of one of torch's
`_rebuild_…` functions; its first argument refers to a storage, which lies outside the pickle.
Quantised, sparse and other tensors that are not a plain run of numbers are listed with an obstacle.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from neuralmark.checkpoints.contract import MAX_TENSORS, StoredTensor, TensorInfo
from neuralmark.checkpoints.readers.dtypes import ITEMSIZE
from neuralmark.checkpoints.readers.inert import Call, Global, Persistent
from neuralmark.checkpoints.readers.masters import MasterFinder
from neuralmark.checkpoints.readers.strided import extent, is_contiguous, is_distinct
from neuralmark.checkpoints.readers.torch_calls import is_count, table_of, tensor_of
from neuralmark.errors import MalformedError, UnsafeError
from neuralmark.storage.places import Place

USUAL_KEYS = (
    *("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params"),
)
SKIPPED_KEYS = (
    *("optimizer", "optimizers", "optimizer_state", "optimizer_states", "optimizer_state_dict"),
    *("scheduler", "lr_scheduler", "lr_schedulers", "scheduler_state_dict"),
)
OVERLAPPING = "elements of it share their bytes; save it with .contiguous()"
SHARDED = (
    "it is one process's part of a tensor, or wrapped in a class of its own (torchao): give the"
    " folder with the files of all processes, or save the plain weights"
)
MAX_DEPTH = 32
MAX_STEPS = 4_000_000
MAX_NAME_CHARACTERS = 32 << 20
MAX_DIMENSIONS = 64

STORAGES = {
    **{"DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16"},
    **{"BFloat16Storage": "BF16", "LongStorage": "I64", "IntStorage": "I32"},
    **{"ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8", "BoolStorage": "BOOL"},
    **{"ComplexFloatStorage": "C64", "ComplexDoubleStorage": "C128", "UntypedStorage": "U8"},
}
"""Storage classes and their dtypes; an untyped storage counts bytes."""

QUANTISED = {
    **dict.fromkeys(("QInt8Storage", "QUInt8Storage", "QUInt4x2Storage", "QUInt2x4Storage"), 1),
    "QInt32Storage": 4,
}

DTYPES = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"},
    **{"float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "bool": "BOOL"},
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8"},
    **{"uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8"},
    **{"complex64": "C64", "complex128": "C128"},
}

_PLAIN = {"_rebuild_tensor": 4, "_rebuild_tensor_v2": 6, "_rebuild_tensor_v3": 7}
"""The functions that rebuild plain tensors, and how many arguments they have at least."""


@dataclass(frozen=True)
class Storage:
    """What a pickle says of a storage."""

    kind: str
    key: str
    count: int
    view: tuple[int, int] | None
    """Offset and length in elements, where a view of the storage is meant."""

    @property
    def itemsize(self) -> int | None:
        """Bytes per element as counted by the storage; None for an unknown kind."""
        return ITEMSIZE.get(STORAGES.get(self.kind, ""), QUANTISED.get(self.kind))


Locate = Callable[[Storage], tuple[int, int]]
"""Gives the offset in the file and the length in bytes of a storage of known kind."""


def stored_tensors(
    path: Place, value: Any, locate: Locate, table: str | None = None
) -> dict[str, StoredTensor]:
    """Give every tensor of the model in a loaded pickle, or of another table, by dotted name."""
    calls = tensor_calls(path, value, table)
    return {name: rebuilt(path, name, call, locate) for name, call in calls.items()}


def tensor_calls(
    path: Place, value: Any, table: str | None = None, *, empty: bool = False
) -> dict[str, Call]:
    """Give the calls that rebuild the tensors of the model, or of another table.

    Raises where there are none, unless it may be `empty`.
    """
    finder = _Finder(path)
    return finder.find(value, empty=empty) if table is None else finder.others(value)[table]


def rebuilt(path: Place, name: str, call: Call, locate: Locate) -> StoredTensor:
    """Say where the tensor lies that a call (see `tensor_of`) rebuilds."""
    return _Rebuild(path, name, call).stored(locate)


def other_tables(path: Place, value: Any) -> list[str]:
    """Name the tables of tensors beside the model's: averages, copies."""
    return list(_Finder(path).others(value))


def storage_of(path: Place, reference: Any) -> Storage | None:
    """Read a persistent reference; None when it is to something other than a storage."""
    value = reference.value if isinstance(reference, Persistent) else None
    if not isinstance(value, tuple) or len(value) < 5 or value[0] != "storage":
        return None
    kind, key, count = value[1], value[2], value[4]
    view = value[5] if len(value) > 5 else None
    if not isinstance(kind, Global) or not isinstance(key, str) or not is_count(count):
        raise MalformedError(f"{path}: a reference to a storage is damaged")
    if view is None:
        return Storage(kind.name, key, count, None)
    if not isinstance(view, tuple) or len(view) != 3 or not all(map(is_count, view[1:])):
        raise MalformedError(f"{path}: a view of a storage is damaged")
    return Storage(kind.name, key, count, (view[1], view[2]))


class _Finder:
    """Looks for tensors in nested dictionaries and modules, within a budget of steps and names."""

    def __init__(self, path: Place) -> None:
        self._path = path
        self._steps = 0
        self._characters = 0

    def find(self, value: Any, *, empty: bool = False) -> dict[str, Call]:
        """Choose the dictionary that holds the model, and flatten it."""
        root = self._parts(value)
        if root is None:
            raise UnsafeError(
                f"{self._path}: is a pickled {_title(value)}, not a table of tensors;"
                " save model.state_dict() instead"
            )
        kept = {key: part for key, part in root.items() if key not in SKIPPED_KEYS}
        if root is table_of(value) and not any(map(tensor_of, root.values())):
            for key in USUAL_KEYS:
                part = root.get(key)
                found = self._flat(self._parts(part) or {}, part)
                if found:
                    return found
        found = {} if "param_groups" in root else self._flat(kept, value)
        found = found or MasterFinder(self._path, self._spend).find(value)
        found = found or self._flat(kept, value)
        if not found and not empty:
            raise MalformedError(
                f"{self._path}: holds no tensors of a model, nor an optimizer's copies of them;"
                " save model.state_dict()"
            )
        return found

    def others(self, value: Any) -> dict[str, dict[str, Call]]:
        """Tables beside the one that `find` chooses, by key."""
        root = self._parts(value) or {}
        if root is not table_of(value) or any(map(tensor_of, root.values())):
            return {}
        tables = {
            key: self._flat(self._parts(part) or {}, part)
            for key, part in root.items()
            if isinstance(key, str) and key not in SKIPPED_KEYS
        }
        tables = {key: found for key, found in tables.items() if found}
        chosen = next((key for key in USUAL_KEYS if key in tables), None)
        return {} if chosen is None else {k: t for k, t in tables.items() if k != chosen}

    def _flat(self, table: dict[Any, Any], owner: Any) -> dict[str, Call]:
        """Give the tensors under a table by dotted name; `owner` is the record it is read from."""
        found: dict[str, Call] = {}
        for name, call in self._walk(table, "", (id(owner),)):
            if name in found:
                raise MalformedError(f"{self._path}: two tensors are named {name[:80]!r}")
            found[name] = call
        if len(found) > MAX_TENSORS:
            raise UnsafeError(f"{self._path}: has over {MAX_TENSORS:,} tensors")
        return found

    def _walk(
        self, table: dict[Any, Any], prefix: str, above: tuple[int, ...]
    ) -> Iterator[tuple[str, Call]]:
        for key, value in table.items():
            self._spend(1)
            if not isinstance(key, str | int) or isinstance(key, bool) or id(value) in above:
                continue
            call = tensor_of(value)
            inner = self._parts(value) if call is None else {}
            if inner is None:
                continue
            name = f"{prefix}{key}"
            self._spend(0, len(name))
            if call is not None:
                yield name, call
            else:
                if len(above) > MAX_DEPTH:
                    raise UnsafeError(f"{self._path}: is nested deeper than {MAX_DEPTH} levels")
                yield from self._walk(inner, name + ".", (*above, id(value)))

    def _parts(self, value: Any) -> dict[Any, Any] | None:
        """Give the named parts of a dictionary or of a pickled module; None of anything else."""
        table = table_of(value)
        if table is not None or not isinstance(value, Call):
            return table
        state = value.state[0] if isinstance(value.state, tuple) and value.state else value.state
        if not isinstance(state, dict):
            return None
        if isinstance(value.function, Global) and value.function.module.startswith("__torch__"):
            return state  # a class of TorchScript: parameters and modules are plain attributes
        if not isinstance(state.get("_modules"), dict):
            return None
        parts: dict[Any, Any] = {}
        for key in ("_parameters", "_buffers", "_modules"):
            table = table_of(state.get(key)) or {}
            self._spend(len(table))
            parts.update(table)
        for name in self._unsaved(state.get("_non_persistent_buffers_set")):
            parts.pop(name, None)
        return parts

    def _unsaved(self, value: Any) -> list[str]:
        """Read the set of names that a module leaves out of its state_dict."""
        names = value.args[0] if isinstance(value, Call) and value.args else value
        if not isinstance(names, list):
            return []
        self._spend(len(names))
        return [name for name in names if isinstance(name, str)]

    def _spend(self, steps: int, characters: int = 0) -> None:
        """Count what is done: shared parts can make a small file unfold without end."""
        self._steps += steps
        self._characters += characters
        if self._steps > MAX_STEPS or self._characters > MAX_NAME_CHARACTERS:
            raise UnsafeError(f"{self._path}: unfolds into more parts than a model can have")


def _title(value: Any) -> str:
    function = value.function if isinstance(value, Call) else None
    if isinstance(function, Global):
        return f"{function.module}.{function.name}"[:120]
    return type(value).__name__


class _Rebuild:
    """The call that rebuilds one tensor, with its arguments checked."""

    def __init__(self, path: Place, name: str, call: Call) -> None:
        self._path = path
        self._name = name
        self._function: str = call.function.name
        self._args = call.args

    def stored(self, locate: Locate) -> StoredTensor:
        """Say where the bytes of the tensor are; nothing of them is read."""
        if self._function not in _PLAIN:
            kind = self._function.removeprefix("_rebuild_")
            why = SHARDED if kind == "wrapper_subclass" else "it is not a plain dense tensor"
            return self._obstructed(kind, self._size(), why)
        if len(self._args) < _PLAIN[self._function]:
            raise self._bad("misses arguments")
        storage = storage_of(self._path, self._args[0])
        if storage is None:
            raise self._bad("has no storage")
        shape, stride = self._counts(2), self._counts(3)
        offset = self._args[1]
        if len(shape) != len(stride) or not is_count(offset):
            raise self._bad("has a shape, stride or offset that makes no sense")
        dtype = self._dtype(storage)
        if dtype not in ITEMSIZE:
            return self._obstructed(dtype, shape, f"its dtype {dtype!r} is not known")
        start, length = locate(storage)
        if (offset + extent(shape, stride)) * ITEMSIZE[dtype] > length:
            raise self._bad("reaches past the end of its storage")
        if self._lazy():
            return self._obstructed(dtype, shape, "it is negated or conjugated only when read")
        if not is_contiguous(shape, stride) and not is_distinct(shape, stride):
            return self._obstructed(dtype, shape, OVERLAPPING)
        info = TensorInfo(self._name, dtype, shape)
        strides = None if is_contiguous(shape, stride) else stride
        return StoredTensor(info, self._path, start + offset * ITEMSIZE[dtype], strides)

    def _size(self) -> tuple[int, ...]:
        """The shape of a tensor that is not a plain one, if it is where such tensors keep it."""
        more = self._args[1] if len(self._args) == 2 else self._args
        shape = more[2] if isinstance(more, tuple) and len(more) > 2 else ()
        if isinstance(shape, Call) and shape.args:  # torch.Size((…))
            shape = shape.args[0]
        sound = isinstance(shape, tuple | list) and len(shape) <= MAX_DIMENSIONS
        if not sound or not all(map(is_count, shape)) or _product(tuple(shape)) >= 1 << 62:
            return ()
        return tuple(shape)

    def _dtype(self, storage: Storage) -> str:
        if self._function != "_rebuild_tensor_v3":
            return STORAGES.get(storage.kind, storage.kind)
        dtype = self._args[6]
        if not isinstance(dtype, Global) or dtype.module != "torch":
            raise self._bad("has no dtype")
        return DTYPES.get(dtype.name, dtype.name)

    def _lazy(self) -> bool:
        extra = self._args[_PLAIN[self._function] :]
        return self._function != "_rebuild_tensor" and bool(extra) and bool(extra[0])

    def _counts(self, index: int) -> tuple[int, ...]:
        value = self._args[index]
        if not isinstance(value, tuple | list) or len(value) > MAX_DIMENSIONS:
            raise self._bad("has a bad shape or stride")
        if not all(map(is_count, value)) or _product(tuple(value)) >= 1 << 62:
            raise self._bad("has a shape or stride out of range")
        return tuple(value)

    def _obstructed(self, dtype: str, shape: tuple[int, ...], why: str) -> StoredTensor:
        return StoredTensor(TensorInfo(self._name, dtype, shape, why), self._path, 0)

    def _bad(self, why: str) -> MalformedError:
        return MalformedError(f"{self._path}: the tensor {self._name[:80]!r} {why}")


def _product(lengths: tuple[int, ...]) -> int:
    product = 1
    for length in lengths:
        product *= length
    return product
