"""Distributed checkpoints of torch: a folder with `.metadata` and the files of all processes.

`.metadata` is a pickle that says which parts each tensor has and where in which file they lie; it
is read without being run. Each part is a small archive of `torch.save` inside a `.distcp` file,
opened when its values are asked for. The writer for Hugging Face saves safetensors files instead,
whose headers say where their parts begin.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import add
from typing import Any

from neuralmark.checkpoints import safetensors
from neuralmark.checkpoints.contract import MAX_TENSORS, Checkpoint, StoredTensor
from neuralmark.checkpoints.readers.dtypes import ITEMSIZE
from neuralmark.checkpoints.readers.folders import bare_name, in_folder
from neuralmark.checkpoints.readers.inert import Call, Global, Opaque, Reader
from neuralmark.checkpoints.readers.joined import (
    JoinedPart,
    PartedCheckpoint,
    Shape,
    Source,
    joined,
    product,
)
from neuralmark.checkpoints.readers.pickled import load
from neuralmark.checkpoints.readers.shapes import shape_of
from neuralmark.checkpoints.readers.tables import tables_of
from neuralmark.checkpoints.readers.torch_archive import TorchArchive
from neuralmark.checkpoints.readers.torch_calls import is_count, tensor_of
from neuralmark.checkpoints.readers.torch_tables import DTYPES
from neuralmark.checkpoints.readers.windows import WindowPlace
from neuralmark.core.encoding import strict_json
from neuralmark.errors import CheckpointError, MalformedError, UnsafeError
from neuralmark.storage.places import Place

METADATA = ".metadata"
SHARDS = "shard-*-model-*.safetensors"
PARTS = (METADATA, SHARDS)
MAX_OPCODES = 8_000_000
"""Each part takes about a hundred opcodes: 80,000 parts."""
FIXED = (
    "it is put together from the parts of a distributed checkpoint; convert it (python -m"
    " torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER model.pt) and mark that"
)
_MODULE = "torch.distributed.checkpoint.metadata"


def matches(path: Place, head: bytes) -> bool:
    """A folder with `.metadata`, or with the safetensors files of several processes."""
    if not path.is_dir():
        return False
    return (path / METADATA).is_file() or any(path.glob(SHARDS))


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Read `.metadata` inertly; check that its parts lie within the files and cover the tensors."""
    if not (path / METADATA).is_file():
        return _open_shards(path)
    found = _Metadata(path)
    tables = tables_of(found.paths())
    files = [path / METADATA, *found.files()]
    opened = _Dcp(path, "dcp", found.tensors(tables.model), files)
    opened.tables = lambda: {name: found.tensors(each) for name, each in tables.others.items()}
    return opened


def _open_shards(path: Place) -> Checkpoint:
    """What the writer for Hugging Face leaves: one safetensors file for each process."""
    held: dict[str, list[tuple[Shape, StoredTensor]]] = {}
    files: list[Place] = sorted(path.glob(SHARDS), key=lambda file: file.name)
    for file in files:
        shard, begins = safetensors.open(file), _begins(file)
        for name in shard.names():
            stored = shard.span(name)
            offsets = shape_of(begins.get(name, [0] * len(stored.info.shape)))
            if offsets is None or len(offsets) != len(stored.info.shape):
                raise MalformedError(f"{file}: does not say where its {name[:80]!r} begins")
            held.setdefault(name, []).append((offsets, stored))
    tensors = {name: _of_shards(path, name, parts) for name, parts in held.items()}
    return PartedCheckpoint(path, "dcp", tensors, files)


def _begins(file: Place) -> dict[str, Any]:
    """Where the parts of a shard begin in their tensors."""
    told = safetensors.read_header(file)[0].get("__metadata__")
    text = told.get("DCP_SHARDING_INFO") if isinstance(told, dict) else None
    try:
        table = strict_json(text.encode()) if isinstance(text, str) else {}
    except ValueError as error:
        raise MalformedError(f"{file}: its sharding is not valid JSON ({error})") from None
    if not isinstance(table, dict) or not all(isinstance(x, dict) for x in table.values()):
        raise MalformedError(f"{file}: does not say where its parts begin")
    return {name: entry.get("saved_offsets") for name, entry in table.items()}


def _of_shards(path: Place, name: str, held: list[tuple[Shape, StoredTensor]]) -> StoredTensor:
    first = held[0][1]
    kinds = {(stored.info.dtype, len(offsets)) for offsets, stored in held}
    if len(kinds) > 1:
        raise MalformedError(f"{path}: the parts of {name[:80]!r} are not of one kind")
    ends = [tuple(map(add, offsets, stored.info.shape)) for offsets, stored in held]
    parts = [JoinedPart(o, s.info.shape, Source.of(s)) for o, s in held]
    shape = tuple(map(max, *ends)) if len(ends) > 1 else ends[0]
    at = (first.file, first.offset)
    return joined(name, shape, parts, dtype=first.info.dtype, at=at, why=FIXED)


class _Dcp(PartedCheckpoint):
    """A distributed checkpoint; averages and such beside the model are other tables."""

    tables: Callable[[], dict[str, dict[str, StoredTensor]]]

    def others(self) -> list[tuple[str, Checkpoint]]:
        """Tables beside the model's."""
        return [
            (name, PartedCheckpoint(self.path, self.format, tensors, self.files()))
            for name, tensors in self.tables().items()
        ]


@dataclass(frozen=True)
class _Span:
    """Where a part lies."""

    file: Place
    offset: int
    length: int


class _Metadata:
    """What `.metadata` says, checked."""

    def __init__(self, path: Place) -> None:
        self._path = path
        place = path / METADATA
        with place.open("rb") as file:
            value = load(Reader(file, place.stat().st_size), MAX_OPCODES).value
        if not isinstance(value, Call) or not _is(value, "Metadata"):
            raise MalformedError(f"{place}: is not the metadata of a distributed checkpoint")
        state = _state(value)
        tensors, storage = state.get("state_dict_metadata"), state.get("storage_data")
        if not isinstance(tensors, dict) or not isinstance(storage, dict):
            raise MalformedError(f"{place}: does not say which tensors there are, and where")
        if len(storage) > MAX_TENSORS:
            raise UnsafeError(f"{place}: has over {MAX_TENSORS:,} parts")
        self._tensors = {
            name: entry
            for name, entry in tensors.items()
            if isinstance(name, str) and _is(entry, "TensorStorageMetadata")
        }
        planned = state.get("planner_data")
        self._planned = planned if isinstance(planned, dict) else {}
        self._spans = self._located(storage)

    def paths(self) -> dict[str, tuple[str, ...]]:
        """The tensors' names, and the keys under which each lay in the saved dictionary."""
        found = {}
        for name in self._tensors:
            keys = self._planned.get(name)
            known = isinstance(keys, tuple | list) and all(isinstance(k, str | int) for k in keys)
            found[name] = tuple(map(str, keys)) if known and keys else (name,)
        return found

    def files(self) -> list[Place]:
        """The files that hold parts."""
        return list(dict.fromkeys(span.file for span in self._spans.values()))

    def tensors(self, names: dict[str, str]) -> dict[str, StoredTensor]:
        """The tensors of a table: from the names it has here to those in the metadata."""
        return {name: self._tensor(name, key) for name, key in names.items()}

    def _tensor(self, name: str, key: str) -> StoredTensor:
        state = _state(self._tensors[key])
        shape = shape_of(state.get("size"))
        chunks = state.get("chunks")
        if shape is None or not isinstance(chunks, list) or not chunks:
            raise self._bad(key, "has no shape, or no parts")
        dtype = self._dtype(key, state.get("properties"))
        parts, spans = [], []
        for chunk in chunks:
            offsets, sizes = (shape_of(_state(chunk).get(side)) for side in ("offsets", "sizes"))
            if offsets is None or sizes is None or len(offsets) != len(sizes):
                raise self._bad(key, "has a part without a place")
            span = self._spans.get((key, offsets))
            if span is None:
                raise self._bad(key, "has a part that is nowhere")
            if product(sizes) * ITEMSIZE.get(dtype, 1) > span.length:
                raise self._bad(key, "has a part that is shorter than it says")
            spans.append(span)
            find = partial(_part, span, name, dtype, sizes)
            parts.append(JoinedPart(offsets, sizes, Source(find)))
        at = min(spans, key=lambda span: (str(span.file), span.offset))
        return joined(name, shape, parts, dtype=dtype, at=(at.file, at.offset), why=FIXED)

    def _dtype(self, key: str, properties: Any) -> str:
        """The element type: the first of what a pickled `TensorProperties` keeps."""
        state = properties.state if isinstance(properties, Call) else None
        dtype = state[0] if isinstance(state, tuple) and state else None
        if isinstance(state, dict):
            dtype = state.get("dtype")
        if not isinstance(dtype, Global) or dtype.module != "torch":
            raise self._bad(key, "has no dtype")
        return DTYPES.get(dtype.name, dtype.name)

    def _located(self, storage: dict[Any, Any]) -> dict[tuple[str, Shape], _Span]:
        """Where each part lies; every one within its file, and none over another."""
        sizes: dict[str, int] = {}
        found: dict[tuple[str, Shape], _Span] = {}
        for index, info in _entries(storage):
            key, state = index.get("fqn"), _state(info)
            name, offset, length = (state.get(x) for x in ("relative_path", "offset", "length"))
            if not isinstance(key, str) or key not in self._tensors:
                continue  # a number, a step, a scheduler
            if not isinstance(name, str) or not is_count(offset) or not is_count(length):
                raise self._bad(key, "has a part without a file")
            if state.get("transform_descriptors"):
                raise CheckpointError(
                    f"{self._path}: is compressed, which is not read; save it without extensions"
                )
            if name not in sizes:
                file = in_folder(self._path, bare_name(self._path / METADATA, name))
                sizes[name] = file.stat().st_size
            if offset + length > sizes[name]:
                raise MalformedError(f"{self._path / name}: is cut off (a truncated download?)")
            offsets = shape_of(index.get("offset"))
            span = _Span(self._path / name, offset, length)
            if offsets is None or found.setdefault((key, offsets), span) is not span:
                raise self._bad(key, "has two parts at one place")
        self._check_apart(found)
        return found

    def _check_apart(self, found: dict[tuple[str, Shape], _Span]) -> None:
        ends: dict[str, int] = {}
        for span in sorted(found.values(), key=lambda span: (span.file.name, span.offset)):
            if span.offset < ends.get(span.file.name, 0):
                raise MalformedError(f"{self._path}: two parts lie at the same bytes")
            ends[span.file.name] = span.offset + span.length

    def _bad(self, key: str, why: str) -> MalformedError:
        return MalformedError(f"{self._path / METADATA}: the tensor {key[:80]!r} {why}")


def _entries(storage: dict[Any, Any]) -> Iterator[tuple[dict[Any, Any], Any]]:
    """The parts that the metadata lists: what each is of, and where it lies."""
    for key, info in storage.items():
        if isinstance(key, Opaque) and _is(key.value, "MetadataIndex"):
            yield _state(key.value), info


def _part(span: _Span, name: str, dtype: str, sizes: Shape) -> StoredTensor:
    """Open the archive of one part: it holds one tensor, of the shape that was announced."""
    archive = TorchArchive(WindowPlace(span.file, span.offset, span.length))
    call = tensor_of(archive.pickle())
    if call is None:
        raise MalformedError(f"{span.file}: a part of {name[:80]!r} is not a tensor")
    stored = archive.stored(name, call)
    if stored.info.obstacle or (stored.info.dtype, stored.info.shape) != (dtype, sizes):
        raise MalformedError(f"{span.file}: a part of {name[:80]!r} is not what it should be")
    return stored


def _is(value: Any, name: str) -> bool:
    return (
        isinstance(value, Call)
        and isinstance(value.function, Global)
        and value.function.is_named(_MODULE, name)
    )


def _state(value: Any) -> dict[Any, Any]:
    state = value.state if isinstance(value, Call) else None
    return state if isinstance(state, dict) else {}
