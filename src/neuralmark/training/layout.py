"""Where a process's part of a tensor lies in the whole: plain tensors and DTensor shards."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed as dist

from neuralmark.core.carriers import Carriers
from neuralmark.core.imprint import Decide
from neuralmark.core.key import Float
from neuralmark.errors import InfeasibleError, UnsuitableTensorError, UsageError

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Peers:
    """Processes that hold other parts or replicas, and the kind of device they talk through."""

    group: Any
    device: str


@dataclass(frozen=True)
class Layout:
    """The block of a tensor that this process holds, and the groups that hold the other blocks."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    whole: tuple[int, ...]
    reduce: tuple[Peers, ...] = ()
    """Over whom partial sums are added up, one after the other."""
    agree: tuple[Peers, ...] = ()
    """Over whom a decision is handed on, one after the other."""

    @property
    def size(self) -> int:
        """Number of weights of the whole tensor."""
        return math.prod(self.whole)

    @property
    def sharded(self) -> bool:
        """Whether other processes hold other parts."""
        return bool(self.reduce)

    def carriers(self, carriers: Carriers, start: int) -> tuple[Index, Index]:
        """Carriers inside the block: positions in the block, and their indices among all carriers.

        `start` is where the tensor begins in w.
        """
        row = int(np.prod(self.whole[1:], dtype=np.int64)) if self.whole else 1
        first_row = self.offset[0] if self.whole else 0
        rows = self.shape[0] if self.whole else 1
        low = start + first_row * row
        first, at = carriers.between(low, low + rows * row)
        order = np.arange(first, first + len(at), dtype=np.int64)
        if self.shape[1:] == self.whole[1:]:
            return at, order
        at += low - start
        corner = [np.asarray(i) for i in np.unravel_index(at, self.whole)]
        inside = np.ones(len(at), bool)
        for axis, place in enumerate(corner):
            place -= self.offset[axis]
            inside &= (place >= 0) & (place < self.shape[axis])
        kept = tuple(place[inside] for place in corner)
        return np.ravel_multi_index(kept, self.shape).astype(np.int64), order[inside]


def layout_of(tensor: torch.Tensor, *, group: Any = None) -> Layout:
    """The layout of a plain tensor (replicated over `group`, if any) or of a DTensor."""
    shape = tuple(tensor.shape)
    if not is_dtensor(tensor):
        agree = (Peers(group, tensor.device.type),) if group is not None else ()
        return Layout(shape, (0,) * len(shape), shape, agree=agree)
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    if any(placement.is_partial() for placement in placements):
        raise UnsuitableTensorError("a tensor that holds partial sums cannot carry a mark")
    block, offset = _block(shape, mesh, placements)
    if block != tuple(local(tensor.detach()).shape):
        raise UnsuitableTensorError(f"a tensor sharded as {placements} cannot carry a mark")
    peers = peers_of(tensor)
    reduce = tuple(peers[i] for i in peers if not placements[i].is_replicate())
    return Layout(block, offset, shape, reduce, tuple(peers.values()))


def peers_of(tensor: torch.Tensor) -> dict[int, Peers]:
    """Who holds other parts or replicas of a DTensor, by the dimension of its mesh."""
    if not is_dtensor(tensor):
        return {}
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    shared = [i for i in range(mesh.ndim) if mesh.size(i) > 1]
    return {i: Peers(mesh.get_group(i), mesh.device_type) for i in shared}


def require_agreement(peers: Sequence[Peers], facts: Mapping[str, object]) -> None:
    """Raise on every process unless all of them give the same facts; all must call it."""
    if not peers:
        return
    digests = [hashlib.sha256(repr(fact).encode()).digest() for fact in facts.values()]
    mine = torch.tensor([int.from_bytes(digest[:7], "little") for digest in digests])
    most = torch.cat([mine, -mine])
    add_up(most, tuple(peers), "MAX")
    differ = most[: len(mine)] != -most[len(mine) :]
    if differ.any():
        what = " and ".join(name for name, other in zip(facts, differ, strict=True) if other)
        raise UsageError(
            f"the processes do not agree on the {what}: every process must make the same call, with"
            " the same key file"
        )


def first_told(topic: str, fact: str) -> str:
    """What the first process to come told about this topic, this many times; nobody waits.

    For modules of which nobody knows who else holds them: a process that never comes to this point
    must not stop the others.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return fact
    store = dist.distributed_c10d._get_default_store()
    slot = f"neuralmark/{hashlib.sha256(topic.encode()).hexdigest()}"
    turn = store.add(f"{slot}/{dist.get_rank()}", 1)
    return bytes(store.compare_set(f"{slot}/turn-{turn}", "", fact)).decode()


def _block(
    whole: tuple[int, ...], mesh: Any, placements: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and offset of this process's block: every axis is cut as torch.chunk does.

    Mesh dimensions cut from left to right; but FSDP over tensor parallel cuts what the latter has
    left, which torch writes as a strided shard at the left (whose is_shard() may be False).
    """
    shape, offset = list(whole), [0] * len(whole)
    strided = [i for i in range(mesh.ndim) if hasattr(placements[i], "split_factor")]
    plain = [i for i in range(mesh.ndim) if i not in strided and not placements[i].is_replicate()]
    for i in plain + strided[::-1]:
        axis, parts = placements[i].dim, mesh.size(i)
        if i in strided and placements[i].split_factor != math.prod(
            mesh.size(j)
            for j in range(i + 1, mesh.ndim)
            if not placements[j].is_replicate() and placements[j].dim == axis
        ):
            raise UnsuitableTensorError(f"a tensor sharded as {placements} cannot carry a mark")
        size = -(-shape[axis] // parts)
        low = min(size * mesh.get_local_rank(i), shape[axis])
        offset[axis] += low
        shape[axis] = min(size, shape[axis] - low)
    return tuple(shape), tuple(offset)


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether the tensor is distributed; imports nothing that was not imported already."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "to_local")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part that this process holds, sharing its memory (under no_grad)."""
    if is_dtensor(tensor):
        part: torch.Tensor = tensor.to_local()  # type: ignore[attr-defined]
        return part
    return tensor


def add_up(sums: torch.Tensor, peers: tuple[Peers, ...], how: str = "SUM") -> None:
    """Add partial sums over all processes that hold other parts, in place; or take "MAX"."""
    for each in peers:
        sent = _within_reach(sums, each)
        dist.all_reduce(sent, getattr(dist.ReduceOp, how), group=each.group)
        if sent is not sums:
            sums.copy_(sent)


def agreed(decide: Decide, peers: tuple[Peers, ...]) -> Decide:
    """The first process decides, the others follow (or fail) with it, so that no two drift apart.

    k + 1 numbers are handed on: whether there is a change (or none can be found), and the change.
    """
    if not peers:
        return decide
    none, change, failed = 0.0, 1.0, 2.0

    def together(pooled: Float, overshoot: float) -> Float | None:
        message = torch.zeros(len(pooled) + 1, dtype=torch.float64, device="cpu")
        failure = InfeasibleError("the first process could not write the mark; see its error")
        if _leads(peers):
            try:
                more = decide(pooled, overshoot)
            except InfeasibleError as error:
                failure, more = error, None
                message[0] = failed
            if more is not None:
                message[0] = change
                message[1:] = torch.from_numpy(more)
        _hand_on(message, peers)
        if message[0] == failed:
            raise failure
        return None if message[0] == none else message[1:].numpy()

    return together


def _hand_on(values: torch.Tensor, peers: tuple[Peers, ...]) -> None:
    """Give every process the first one's values, in place."""
    for each in peers:
        sent = _within_reach(values, each)
        dist.broadcast(sent, src=dist.get_global_rank(each.group, 0), group=each.group)
        if sent is not values:
            values.copy_(sent)


def _leads(peers: tuple[Peers, ...]) -> bool:
    """Whether this process decides for the others."""
    return all(dist.get_rank(each.group) == 0 for each in peers)


def _within_reach(values: torch.Tensor, peers: Peers) -> torch.Tensor:
    """The values where the group can send them from: NCCL, say, knows no memory of the CPU."""
    return values if values.device.type == peers.device else values.to(peers.device)
