"""State that each process of a training saved by itself with `torch.save`: a file for every rank.

A sharded tensor is pickled with this process's part of it (a `ShardedTensor` of FSDP, a `DTensor`
of FSDP2 and of tensor parallelism). Where the part begins is written down, or follows from the
process's place in the mesh. The files of all ranks in one folder are read as one model; none of
their pickles is run.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from neuralmark.checkpoints.contract import Checkpoint, StoredTensor
from neuralmark.checkpoints.folder import INDEXED, WHOLE
from neuralmark.checkpoints.readers.dtypes import ITEMSIZE
from neuralmark.checkpoints.readers.inert import Call, Global
from neuralmark.checkpoints.readers.joined import (
    JoinedPart,
    PartedCheckpoint,
    Shape,
    Source,
    alone,
    joined,
    product,
)
from neuralmark.checkpoints.readers.shapes import shape_of
from neuralmark.checkpoints.readers.torch_archive import TorchArchive
from neuralmark.checkpoints.readers.torch_calls import is_count, tensor_of
from neuralmark.checkpoints.readers.torch_tables import DTYPES, tensor_calls
from neuralmark.core.names import natural
from neuralmark.errors import CheckpointError, MalformedError, UnsafeError
from neuralmark.storage.places import Place

MAX_RANKS = 10_000
FLAT = "_flat_param"
PARTS = tuple(f"*rank*[0-9]*.{ending}" for ending in ("pt", "pth", "bin", "ckpt"))
INSTEAD = (
    "save with torch.distributed.checkpoint, or gather the model first"
    " (get_model_state_dict with full_state_dict=True)"
)
FIXED = f"it is put together from the files of several processes; to mark the model, {INSTEAD}"
_RANK = re.compile(r"(.*)rank[_-]?(\d+)(\D.*)?\.(?:pt|pth|bin|ckpt)")


def matches(path: Place, head: bytes) -> bool:
    """A folder of torch files whose names differ in the rank, and no model of the usual names."""
    if not path.is_dir() or any((path / name).is_file() for name in (*WHOLE, *INDEXED)):
        return False
    return bool(_files(path))


def _files(path: Place) -> list[Place]:
    """The files of all ranks; of several sets (model, optimizer) that of the model."""
    sets: dict[tuple[str, str], list[Place]] = {}
    for file in path.glob("*rank*"):
        name = _RANK.fullmatch(file.name)
        if name is not None and file.is_file():
            sets.setdefault((name[1], name[3] or ""), []).append(file)
    kept = [key for key in sets if not re.search("optim|extra|rng|sched", key[0] + key[1])]
    if not kept:
        return []
    chosen = sets[min(kept, key=lambda key: ("model" not in key[0], key))]
    return sorted(chosen, key=lambda file: natural(file.name))


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Read the pickles of all ranks inertly and say where each tensor's parts lie."""
    files = _files(path)
    if len(files) > MAX_RANKS:
        raise UnsafeError(f"{path}: holds the files of over {MAX_RANKS:,} processes")
    ranks = [_Rank(file) for file in files]
    names = list(dict.fromkeys(name for rank in ranks for name in rank.calls))
    if any(name.rpartition(".")[2] == FLAT for name in names):
        raise CheckpointError(
            f"{path}: holds the local state of FSDP, flat parameters without names; {INSTEAD}"
        )
    tensors = {name: _tensor(path, name, ranks) for name in names}
    return PartedCheckpoint(path, "fsdp", tensors, files)


class _Rank:
    """The file of one process."""

    def __init__(self, file: Place) -> None:
        self.file = file
        self.size = file.stat().st_size
        self.archive = TorchArchive(file)
        self.calls = tensor_calls(file, self.archive.pickle())

    def pieces(self, name: str) -> "Iterator[_Piece]":
        """The parts of a tensor that this process saved."""
        call = self.calls.get(name)
        if call is None:
            return
        kind = call.args[0] if call.args else None
        if call.function.name != "_rebuild_wrapper_subclass" or not isinstance(kind, Global):
            yield _Piece(self, name, call, None, ())
        elif kind.name == "ShardedTensor":
            yield from self._shards(name, call)
        elif kind.name == "DTensor":
            yield self._local(name, call)
        else:
            raise self.bad(name, f"is a {kind.name[:80]}")

    def _shards(self, name: str, call: Call) -> "Iterator[_Piece]":
        """The shards of a ShardedTensor: each says where it begins."""
        shards = call.state[0] if isinstance(call.state, tuple) and call.state else None
        for shard in shards if isinstance(shards, list) else []:
            state = _slots(shard)
            inner, told = tensor_of(state.get("tensor")), _slots(state.get("metadata"))
            offsets = shape_of(told.get("shard_offsets"))
            if inner is None or offsets is None:
                raise self.bad(name, "has a shard without a place")
            yield _Piece(self, name, inner, call, (), offsets)

    def _local(self, name: str, call: Call) -> "_Piece":
        """The part of a DTensor that this process has: where it begins follows from the mesh."""
        state = _slots(call)
        inner, spec = tensor_of(state.get("_local_tensor")), _slots(state.get("_spec"))
        mesh, placements = _slots(spec.get("mesh")), spec.get("placements")
        coordinate = shape_of(mesh.get("_coordinate_on_dim"))
        if inner is None or coordinate is None or not isinstance(placements, tuple | list):
            raise self.bad(name, "has a part without a place")
        splits = tuple(self._split(name, placement) for placement in placements)
        if len(splits) != len(coordinate):
            raise self.bad(name, "does not fit its mesh")
        return _Piece(self, name, inner, call, tuple(zip(coordinate, splits, strict=True)))

    def _split(self, name: str, placement: Any) -> "tuple[int, bool] | None":
        """The dimension that a dimension of the mesh cuts, and whether after all others."""
        kind = placement.function if isinstance(placement, Call) else None
        dim = _slots(placement).get("dim")
        if isinstance(kind, Global) and kind.name == "Replicate":
            return None
        title = kind.name if isinstance(kind, Global) else ""
        if title not in ("Shard", "_StridedShard") or not is_count(dim):
            raise self.bad(name, "is placed in a way that is not known")
        return dim, title == "_StridedShard"

    def bad(self, name: str, why: str) -> MalformedError:
        """The error for a tensor that makes no sense."""
        return MalformedError(f"{self.file}: the tensor {name[:80]!r} {why}; {INSTEAD}")


@dataclass(frozen=True)
class _Piece:
    """A part of a tensor, as one process saved it."""

    rank: _Rank
    name: str
    inner: Call
    outer: Call | None
    """What wraps it; None of a tensor that every process has whole."""
    mesh: "tuple[tuple[int, tuple[int, bool] | None], ...]"
    """For each dimension of the mesh: this process's place, and what is cut along it."""
    offsets: Shape | None = None

    def placed(self, shape: Shape, counts: Sequence[int], found: Shape) -> Shape:
        """Where the part begins, in a mesh of so many processes; it must have the right size."""
        if self.offsets is not None:
            return self.offsets
        begins, sizes = [0] * len(shape), list(shape)
        cuts = [(n, c, cut) for n, (c, cut) in zip(counts, self.mesh, strict=True) if cut]
        plain = [cut for cut in cuts if not cut[2][1]]
        late = [cut for cut in reversed(cuts) if cut[2][1]]
        for count, coordinate, (dim, _) in (*plain, *late):
            if dim >= len(shape):
                raise self.bad("has no such dimension")
            step = -(-sizes[dim] // count)
            start = min(sizes[dim], coordinate * step)
            begins[dim] += start
            sizes[dim] = min(step, sizes[dim] - start)
        if tuple(sizes) != found:
            raise self.bad("has a part of another size than its place has")
        return tuple(begins)

    def bad(self, why: str) -> MalformedError:
        """The error for a tensor that makes no sense."""
        return self.rank.bad(self.name, why)


def _tensor(path: Place, name: str, ranks: list[_Rank]) -> StoredTensor:
    pieces = [piece for rank in ranks for piece in rank.pieces(name)]
    if not pieces:
        raise MalformedError(f"{path}: no process saved a part of {name[:80]!r}")
    first = pieces[0]
    if first.outer is None:
        return alone(first.rank.archive.stored(name, first.inner), FIXED)
    shape, dtype = _described(first.outer)
    if shape is None or not isinstance(dtype, Global):
        raise first.bad("has no shape or no dtype")
    kind = DTYPES.get(dtype.name, dtype.name)
    held = [(piece, piece.rank.archive.stored(name, piece.inner)) for piece in pieces]
    for piece, stored in held:
        other = stored.info.obstacle or stored.info.dtype != kind
        if other or piece.outer is None or len(piece.mesh) != len(first.mesh):
            raise piece.bad("is saved in another way than by other processes")
    counts = [max(piece.mesh[i][0] for piece in pieces) + 1 for i in range(len(first.mesh))]
    parts: dict[Shape, JoinedPart] = {}
    for piece, stored in held:
        offsets = piece.placed(shape, counts, stored.info.shape)
        parts.setdefault(offsets, JoinedPart(offsets, stored.info.shape, Source.of(stored)))
    if product(shape) * ITEMSIZE.get(kind, 1) > sum(rank.size for rank in ranks):
        raise first.bad("is larger than the files")
    at = (held[0][1].file, held[0][1].offset)
    return joined(name, shape, list(parts.values()), dtype=kind, at=at, why=FIXED)


def _described(outer: Call) -> tuple[Shape | None, Any]:
    """Shape and dtype of the whole tensor."""
    return (shape_of(outer.args[2]), outer.args[1]) if len(outer.args) > 2 else (None, None)


def _slots(value: Any) -> dict[Any, Any]:
    """What an object keeps: its state, which is a pair where it has slots."""
    state = value.state if isinstance(value, Call) else None
    if isinstance(state, tuple) and len(state) == 2:
        state = state[1]
    return state if isinstance(state, dict) else {}
