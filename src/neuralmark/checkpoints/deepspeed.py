"""Folders of DeepSpeed's ZeRO: weights put together from the float32 partitions of all processes.

Stages 1 and 2 lay the parameters of a group end to end and cut the whole into one piece for each
process; stage 3 cuts every parameter and lays each process's pieces end to end. Names and shapes
are in the files of model states. None of the pickles is run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from neuralmark.checkpoints.contract import MAX_TENSORS, Checkpoint, StoredTensor
from neuralmark.checkpoints.readers.dtypes import ITEMSIZE
from neuralmark.checkpoints.readers.folders import bare_name
from neuralmark.checkpoints.readers.inert import Call
from neuralmark.checkpoints.readers.joined import (
    JoinedPart,
    PartedCheckpoint,
    Shape,
    Source,
    joined,
    product,
)
from neuralmark.checkpoints.readers.shapes import shape_of
from neuralmark.checkpoints.readers.torch_archive import TorchArchive
from neuralmark.checkpoints.readers.torch_calls import tensor_of
from neuralmark.checkpoints.readers.torch_tables import stored_tensors
from neuralmark.core.names import natural
from neuralmark.errors import CheckpointError, MalformedError, UnsafeError
from neuralmark.storage.places import Place, read_small

LATEST = "latest"
OPTIMIZERS, MODELS = "*_optim_states.pt", "*_model_states.pt"
PARTS = (MODELS,)
MAX_PROCESSES = 100_000
FIXED = (
    "it is put together from the partitions of a DeepSpeed checkpoint; convert it (zero_to_fp32.py,"
    " which DeepSpeed leaves beside it) and mark the result"
)
_PARTITIONS = {
    **dict.fromkeys((1, 2), "single_partition_of_fp32_groups"),
    3: "fp32_flat_groups",
}


def matches(path: Place, head: bytes) -> bool:
    """A folder with model states, or with the file that names the latest of such folders."""
    return path.is_dir() and (
        any(path.glob(MODELS))
        or ((path / LATEST).is_file() and any((path / _latest(path)).glob(MODELS)))
    )


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Read the states of all processes inertly and say where each parameter's pieces lie."""
    folder = path if any(path.glob(MODELS)) else path / _latest(path)
    models, optimizers = _files(folder, MODELS), _files(folder, OPTIMIZERS)
    apart = [f for f in (*models, *optimizers) if "mp_rank_" in f.name and not _whole(f.name)]
    if apart:
        raise CheckpointError(
            f"{folder}: {apart[0].name} holds a part of a model that several processes share"
            " (tensor or pipeline parallel); convert it with DeepSpeed's ds_to_universal first"
        )
    first = _States(models[0])
    if not optimizers:  # no ZeRO: the weights are in the model states
        tensors = stored_tensors(models[0], first.value, first.archive.locate)
        return Checkpoint(path, "deepspeed", {n: _fixed(t) for n, t in tensors.items()})
    ranks = [_Partitions(file) for file in optimizers]
    _check(folder, ranks)
    others = [_States(file) for file in models[1:]] if ranks[0].stage == 3 else []
    tensors = _ZeroWeights(folder, [first, *others], ranks).tensors()
    return PartedCheckpoint(path, "deepspeed", tensors, [*models, *optimizers])


def _latest(path: Place) -> str:
    """The folder that is named by the file `latest`."""
    name = read_small(path / LATEST, 4096).decode("utf-8", "replace").strip()
    return bare_name(path / LATEST, name or "..")


def _files(folder: Place, pattern: str) -> list[Place]:
    found: list[Place] = sorted(folder.glob(pattern), key=lambda file: natural(file.name))
    if len(found) > MAX_PROCESSES:
        raise UnsafeError(f"{folder}: holds the states of over {MAX_PROCESSES:,} processes")
    return found


def _whole(name: str) -> bool:
    return "mp_rank_00_" in name


def _fixed(stored: StoredTensor) -> StoredTensor:
    return replace(stored, info=replace(stored.info, fixed=FIXED))


class _States:
    """The file of model states of one process: names and shapes, buffers, frozen parameters."""

    def __init__(self, file: Place) -> None:
        self.file = file
        self.archive = TorchArchive(file)
        value = self.archive.pickle()
        if not isinstance(value, dict):
            raise MalformedError(f"{file}: is not a file of model states")
        self.value: dict[Any, Any] = value

    def shapes(self) -> list[dict[str, Shape]]:
        """Shapes by name, for each group of parameters."""
        groups = self.value.get("param_shapes")
        if not isinstance(groups, list):
            raise MalformedError(f"{self.file}: does not say which parameters there are")
        return [self.table(group) for group in groups]

    def table(self, group: Any) -> dict[str, Shape]:
        """Shapes by name."""
        found: dict[str, Shape] = {}
        for name, value in (group if isinstance(group, dict) else {}).items():
            shape = shape_of(value)
            if not isinstance(name, str) or shape is None:
                raise MalformedError(f"{self.file}: a parameter has no name or no shape")
            found[name] = shape
        return found

    def stored(self, name: str, value: Any) -> StoredTensor:
        """Where a tensor of the file lies."""
        call = tensor_of(value)
        if call is None:
            raise MalformedError(f"{self.file}: {name[:80]!r} is not a tensor")
        return self.archive.stored(name, call)

    def kept(self, stage: int) -> Iterator[StoredTensor]:
        """What the module keeps in this file: all of it, or in stage 3 what is no parameter."""
        names, module = self.value.get("buffer_names"), self.value.get("module")
        if isinstance(names, list) and isinstance(module, dict):
            for name in module if stage < 3 else names:
                if isinstance(name, str) and tensor_of(module.get(name)):
                    yield self.stored(name, module[name])


@dataclass(frozen=True)
class _Flat:
    """A run of numbers that lies in several tensors, one behind the other."""

    tensors: tuple[StoredTensor, ...]

    def cut(self, start: int, stop: int, at: int) -> Iterator[JoinedPart]:
        """The elements start … stop-1, as parts of a vector in which they begin at `at`."""
        ends = accumulate(each.info.size for each in self.tensors)
        for stored, end in zip(self.tensors, ends, strict=True):
            begin = end - stored.info.size
            low, high = max(start, begin), min(stop, end)
            if low < high:
                source = Source.of(stored)
                yield JoinedPart((at + low - start,), (high - low,), source, low - begin)


class _Partitions:
    """The file of optimizer states of one process: its float32 partitions."""

    def __init__(self, file: Place) -> None:
        self.file = file
        archive = TorchArchive(file)
        value = archive.pickle()
        state = value.get("optimizer_state_dict") if isinstance(value, dict) else None
        if not isinstance(state, dict):
            raise MalformedError(f"{file}: holds no optimizer state")
        self.stage = _number(state.get("zero_stage"))
        counts = state.get("partition_count")
        self.count = max(map(_number, counts if isinstance(counts, list) and counts else [counts]))
        self.paddings = state.get("param_alignment_paddings")
        key = _PARTITIONS.get(self.stage)
        groups = state.get(key) if key else None
        calls = [tensor_of(each) for each in groups] if isinstance(groups, list) else []
        if not calls or None in calls:
            raise CheckpointError(
                f"{file}: has no float32 partitions (ZeRO stage {self.stage}); save the gathered"
                " weights with save_16bit_model, or as safetensors"
            )
        self.groups = [self._flat(archive, i, call) for i, call in enumerate(calls) if call]
        if sum(g.info.size * ITEMSIZE[g.info.dtype] for g in self.groups) > file.stat().st_size:
            raise MalformedError(f"{file}: its partitions are longer than the file")

    def _flat(self, archive: TorchArchive, number: int, call: Call) -> StoredTensor:
        stored = archive.stored(f"partition {number}", call)
        if stored.info.obstacle or len(stored.info.shape) != 1 or stored.strides:
            raise MalformedError(f"{self.file}: its partition {number} is not a run of numbers")
        return stored


def _number(value: Any) -> int:
    """A number, or the one that an enumeration stands for."""
    if isinstance(value, Call) and value.args:
        value = value.args[0]
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _check(folder: Place, ranks: list[_Partitions]) -> None:
    stages, groups = {rank.stage for rank in ranks}, {len(rank.groups) for rank in ranks}
    if len(stages) > 1 or len(groups) > 1:
        raise MalformedError(f"{folder}: the processes saved different kinds of partitions")
    if ranks[0].count != len(ranks):
        raise MalformedError(
            f"{folder}: has the partitions of {len(ranks)} processes, of {ranks[0].count}: files"
            " are missing, or left from another run"
        )


class _ZeroWeights:
    """All tensors, from all files."""

    def __init__(self, folder: Place, states: list[_States], ranks: list[_Partitions]) -> None:
        self._folder, self._states, self._ranks = folder, states, ranks
        self._found: dict[str, StoredTensor] = {}

    def tensors(self) -> dict[str, StoredTensor]:
        """Parameters, buffers and further names of the same tensors."""
        states = self._states[0]
        shapes = states.shapes()
        if sum(map(len, shapes)) > MAX_TENSORS:
            raise UnsafeError(f"{self._folder}: has over {MAX_TENSORS:,} tensors")
        if self._ranks[0].stage == 3:
            self._cut_apart({name: shape for group in shapes for name, shape in group.items()})
        else:
            self._end_to_end(shapes)
        self._frozen()
        for stored in states.kept(self._ranks[0].stage):
            self._found.setdefault(stored.info.name, _fixed(stored))
        shared = states.value.get("shared_params")
        for name, other in (shared if isinstance(shared, dict) else {}).items():
            if isinstance(name, str) and isinstance(other, str) and other in self._found:
                one = self._found[other]
                self._found.setdefault(name, replace(one, info=replace(one.info, name=name)))
        return self._found

    def _end_to_end(self, shapes: list[dict[str, Shape]]) -> None:
        """Stages 1 and 2: a group is the vector of its parameters, cut among the processes."""
        for number, group in enumerate(shapes[: len(self._ranks[0].groups)]):
            flat = _Flat(tuple(rank.groups[number] for rank in self._ranks))
            at, pads = 0, self._paddings(number, len(group))
            for (name, shape), pad in zip(group.items(), pads, strict=True):
                size = product(shape)
                self._put(name, shape, list(flat.cut(at, at + size, 0)))
                at += size + pad

    def _paddings(self, number: int, count: int) -> Sequence[int]:
        pads = self._ranks[0].paddings
        mine = pads[number] if isinstance(pads, list | tuple) and number < len(pads) else None
        if mine is None:
            return [0] * count
        if not isinstance(mine, list | tuple) or len(mine) != count:
            raise MalformedError(f"{self._folder}: its paddings do not fit its parameters")
        return [max(0, _number(pad)) for pad in mine]

    def _cut_apart(self, shapes: dict[str, Shape]) -> None:
        """Stage 3: every process has a piece of every parameter, and the pieces end to end."""
        count, at = len(self._ranks), 0
        flats = [_Flat(tuple(rank.groups)) for rank in self._ranks]
        for name, shape in shapes.items():
            size = product(shape)
            piece = -(-size // count)
            parts = [
                part
                for number, flat in enumerate(flats)
                for part in flat.cut(
                    at, at + max(0, min(piece, size - number * piece)), number * piece
                )
            ]
            self._put(name, shape, parts)
            at += piece

    def _frozen(self) -> None:
        """Parameters that were not trained: whole, or one piece for each process."""
        shapes = self._states[0].table(self._states[0].value.get("frozen_param_shapes"))
        for name, shape in shapes.items():
            held = []
            for states in self._states:
                fragments = states.value.get("frozen_param_fragments")
                if not isinstance(fragments, dict) or name not in fragments:
                    raise MalformedError(f"{states.file}: misses the parameter {name[:80]!r}")
                held.append(states.stored(name, fragments[name]))
            odd = next((stored for stored in held if stored.info.obstacle), None)
            if odd is not None:
                self._add(name, _fixed(odd))
            else:
                self._put(name, shape, list(_Flat(tuple(held)).cut(0, product(shape), 0)))

    def _put(self, name: str, shape: Shape, parts: list[JoinedPart]) -> None:
        if len({part.source.stored.info.dtype for part in parts}) > 1:
            raise MalformedError(f"{self._folder}: the parts of {name[:80]!r} are not of one kind")
        first = parts[0].source.stored if parts else self._ranks[0].groups[0]
        skip = parts[0].skip * ITEMSIZE[first.info.dtype] if parts else 0
        at = (first.file, first.offset + skip)
        flat = joined(name, (product(shape),), parts, dtype=first.info.dtype, at=at, why=FIXED)
        self._add(name, replace(flat, info=replace(flat.info, shape=shape)))

    def _add(self, name: str, stored: StoredTensor) -> None:
        if name in self._found:
            raise MalformedError(f"{self._folder}: two parameters are named {name[:80]!r}")
        self._found[name] = stored
