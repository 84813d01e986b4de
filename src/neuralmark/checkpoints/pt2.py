"""Exported programs of torch (`torch.export.save`, `.pt2`): an archive with a record per weight.

A table in JSON says which record holds which parameter, and how its elements lie. Before torch 2.9
the weights were a file of `torch.save` inside the archive, as tensors of special classes still
are: those are read, not written. Neither the graph nor a pickle is run.
"""

from dataclasses import replace
from typing import Any, BinaryIO

from neuralmark.checkpoints.contract import MAX_TENSORS, Checkpoint, StoredTensor, TensorInfo
from neuralmark.checkpoints.readers import zipped
from neuralmark.checkpoints.readers.dtypes import ITEMSIZE
from neuralmark.checkpoints.readers.shapes import shape_of
from neuralmark.checkpoints.readers.strided import extent, is_contiguous, is_distinct
from neuralmark.checkpoints.readers.torch_archive import TorchArchive
from neuralmark.checkpoints.readers.torch_calls import tensor_of
from neuralmark.checkpoints.readers.torch_tables import OVERLAPPING, tensor_calls
from neuralmark.checkpoints.readers.windows import WindowPlace
from neuralmark.core.encoding import strict_json
from neuralmark.errors import CheckpointError, MalformedError, UnsafeError
from neuralmark.storage.places import Place

MAX_CONFIG = 64 << 20
PROGRAM = "serialized_exported_program.json"
WEIGHTS, CONSTANTS = "data/weights/", "data/constants/"
OLD_WEIGHTS, OLD_CONSTANTS = "serialized_state_dict.pt", "serialized_constants.pt"
FIXED = (
    "it lies in an archive within an archive; save the exported program with torch 2.9 or later,"
    " or mark the model before it is exported"
)
COMPILED = (
    "holds a compiled program (AOTInductor), whose weights are in machine code; mark the model and"
    " compile it again, or save its weights with torch.export.save"
)
DTYPES = {
    **{1: "U8", 2: "I8", 3: "I16", 4: "I32", 5: "I64", 6: "F16", 7: "F32", 8: "F64"},
    **{10: "C64", 11: "C128", 12: "BOOL", 13: "BF16", 28: "U16", 29: "F8_E4M3", 30: "F8_E5M2"},
    **{31: "F8_E4M3FNUZ", 32: "F8_E5M2FNUZ", 33: "F8_E8M0", 34: "U32", 35: "U64"},
}
"""Element types by their numbers in the schema of exported programs."""
STRIDED = 7
_CONFIGS = ("_weights_config.json", "_constants_config.json")


def matches(path: Place, head: bytes) -> bool:
    """Look for what only exported programs have in an archive."""
    if not head.startswith(zipped.HEAD):
        return False
    try:
        return _is_program(zipped.directory(path))
    except CheckpointError:
        return "/" + WEIGHTS in zipped.first_name(head) or path.suffix == ".pt2"


def _is_program(names: Any) -> bool:
    return any(
        name.endswith(("/archive_format", PROGRAM)) or f"/{WEIGHTS}" in name for name in names
    )


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Read the tables of weights and constants, and find every tensor's bytes."""
    return _open(path, None)


def _open(path: Place, model: str | None) -> "_Program":
    """Open one of the programs in the archive: the first, or one by its name."""
    with path.open("rb") as file:
        program = _Reader(path, file)
        models = program.models()
        tensors = program.tensors(models[0] if model is None else model)
    opened = _Program(path, "pt2", tensors, program.used)
    opened.models = models if model is None else models[:1]
    return opened


class _Program(zipped.ZipCheckpoint):
    """An exported program; others in the same archive are opened when they are asked for."""

    models: list[str]

    def others(self) -> list[tuple[str, Checkpoint]]:
        """Further programs."""
        return [(name, _open(self.path, name)) for name in self.models[1:]]


class _Reader:
    """The records of the archive, and the tensors in them."""

    def __init__(self, path: Place, file: BinaryIO) -> None:
        self._path, self._file = path, file
        records = zipped.directory(path)
        roots = {name.partition("/")[0] for name in records}
        old = PROGRAM in records
        if not old and len(roots) != 1:
            raise MalformedError(f"{path}: its records are in several folders")
        self._prefix = "" if old else f"{roots.pop()}/"
        self._records = {n.removeprefix(self._prefix): record for n, record in records.items()}
        self.used: list[zipped.ZipPlace] = []
        self._places: dict[str, zipped.ZipPlace] = {}

    def models(self) -> list[str]:
        """The names of the programs that have weights here."""
        found = []
        for name in self._records:
            stem = name.removeprefix(WEIGHTS)
            if stem != name and stem.endswith((_CONFIGS[0], ".pt")):
                found.append(stem.removesuffix(_CONFIGS[0]).removesuffix(".pt"))
        if not found and OLD_WEIGHTS in self._records:
            return [""]
        if not found:
            compiled = any(name.startswith("data/aotinductor/") for name in self._records)
            raise CheckpointError(f"{self._path}: {COMPILED if compiled else 'has no weights'}")
        return list(dict.fromkeys(found))

    def tensors(self, model: str) -> dict[str, StoredTensor]:
        """Weights and constants of a program."""
        found: dict[str, StoredTensor] = {}
        sides = ((WEIGHTS, _CONFIGS[0], OLD_WEIGHTS), (CONSTANTS, _CONFIGS[1], OLD_CONSTANTS))
        for folder, config, old in sides:
            nested = f"{folder}{model}.pt" if model else old
            if folder + model + config in self._records:
                part = self._listed(folder, self._config(folder + model + config))
            elif nested in self._records and self._records[nested].size:
                part = self._nested(nested)
            else:
                continue
            found = part | found
        return found

    def _config(self, name: str) -> dict[str, Any]:
        where = self._place(name)
        if where.record.size > MAX_CONFIG:
            raise UnsafeError(f"{self._path}: the record {name} is over {MAX_CONFIG:,} bytes")
        try:
            table = strict_json(b"".join(zipped.content(self._path, where)))
        except ValueError as error:
            raise MalformedError(f"{self._path}: {name} is not valid JSON ({error})") from None
        config = table.get("config") if isinstance(table, dict) else None
        if not isinstance(config, dict) or len(config) > MAX_TENSORS:
            raise MalformedError(f"{self._path}: {name} does not list the weights")
        return config

    def _listed(self, folder: str, config: dict[str, Any]) -> dict[str, StoredTensor]:
        found = {}
        for name, entry in config.items():
            record = entry.get("path_name") if isinstance(entry, dict) else None
            meta = entry.get("tensor_meta") if isinstance(entry, dict) else None
            if not isinstance(record, str):
                raise self._bad(name, "has no record")
            if not isinstance(meta, dict):
                continue  # an object of another kind than a tensor
            if entry.get("use_pickle"):
                found[name] = self._pickled(name, folder + record)
            else:
                found[name] = self._plain(name, meta, folder + record)
        return found

    def _plain(self, name: str, meta: dict[str, Any], record: str) -> StoredTensor:
        """A tensor that is a part of a record's bytes."""
        shape, strides = (shape_of(_numbers(meta.get(x))) for x in ("sizes", "strides"))
        start = shape_of(_numbers([meta.get("storage_offset")]))
        if shape is None or strides is None or start is None or len(shape) != len(strides):
            raise self._bad(name, "has a shape, stride or offset that makes no sense")
        code = meta.get("dtype")
        dtype = DTYPES.get(code) if isinstance(code, int) else None
        where = self._place(record)
        if dtype is None or meta.get("layout") != STRIDED:
            info = TensorInfo(name, f"type {code!r}"[:40], shape, "it is not a plain dense tensor")
            return StoredTensor(info, self._path, where.offset)
        itemsize = ITEMSIZE[dtype]
        if (start[0] + extent(shape, strides)) * itemsize > where.record.size:
            raise self._bad(name, "reaches past the end of its record")
        if not is_contiguous(shape, strides) and not is_distinct(shape, strides):
            return StoredTensor(TensorInfo(name, dtype, shape, OVERLAPPING), self._path, 0)
        self.used.append(where)
        lies = None if is_contiguous(shape, strides) else strides
        offset = where.offset + start[0] * itemsize
        return StoredTensor(TensorInfo(name, dtype, shape), self._path, offset, lies)

    def _pickled(self, name: str, record: str) -> StoredTensor:
        """A tensor in a file of torch.save of its own."""
        archive, where = self._inner(record)
        call = tensor_of(archive.pickle())
        if call is None:
            why = "it is not a plain dense tensor"
            return StoredTensor(TensorInfo(name, "pickled", (), why), self._path, where.offset)
        return self._moved(archive.stored(name, call), where)

    def _nested(self, record: str) -> dict[str, StoredTensor]:
        """All tensors of a file of torch.save within the archive."""
        archive, where = self._inner(record)
        calls = tensor_calls(self._path, archive.pickle(), empty=True)
        return {n: self._moved(archive.stored(n, call), where) for n, call in calls.items()}

    def _inner(self, record: str) -> tuple[TorchArchive, zipped.ZipPlace]:
        where = self._place(record)
        return TorchArchive(WindowPlace(self._path, where.offset, where.record.size)), where

    def _moved(self, stored: StoredTensor, where: zipped.ZipPlace) -> StoredTensor:
        """The same tensor as seen from the whole file."""
        info = replace(stored.info, fixed=FIXED)
        return replace(stored, info=info, file=self._path, offset=where.offset + stored.offset)

    def _place(self, name: str) -> zipped.ZipPlace:
        if name not in self._places:
            record = self._records.get(name)
            if record is None:
                raise MalformedError(f"{self._path}: the record {name[:80]!r} is missing")
            if record.method != zipped.STORED:
                raise UnsafeError(f"{self._path}: the record {name[:80]!r} is compressed")
            self._places[name] = zipped.place(self._path, self._file, record)
        return self._places[name]

    def _bad(self, name: str, why: str) -> MalformedError:
        return MalformedError(f"{self._path}: the weight {name[:80]!r} {why}")


def _numbers(values: Any) -> Any:
    """Plain numbers of a list in the schema's form ({"as_int": 3})."""
    if not isinstance(values, list):
        return None
    return [each.get("as_int") if isinstance(each, dict) else each for each in values]
