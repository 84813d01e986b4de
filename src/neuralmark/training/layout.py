"""Where a process's part of a tensor lies in the whole: plain tensors and DTensor shards."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed as dist

from neuralmark.core.carriers import Carriers
from neuralmark.errors import UnsuitableTensorError

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The block of a tensor that this process holds, and the groups that hold the other blocks."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    whole: tuple[int, ...]
    reduce: tuple[Any, ...] = ()
    """Process groups over which partial sums are added up."""
    agree: tuple[Any, ...] = ()
    """Process groups over which a decision is handed on, one after the other."""

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
        first, last = carriers.rank(low), carriers.rank(low + rows * row)
        order = np.arange(first, last, dtype=np.int64)
        at = carriers.positions(first, last) - start
        if self.shape[1:] == self.whole[1:]:
            return at - first_row * row, order
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
        agree = (group,) if group is not None else ()
        return Layout(shape, (0,) * len(shape), shape, agree=agree)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    if any(placement.is_partial() for placement in placements):
        raise UnsuitableTensorError("a tensor that holds partial sums cannot carry a mark")
    local, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
    groups = [mesh.get_group(i) for i in range(mesh.ndim)]
    reduce = tuple(
        group
        for group, placement in zip(groups, placements, strict=True)
        if not placement.is_replicate()
    )
    return Layout(tuple(local), tuple(offset), shape, reduce, tuple(groups))


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether the tensor is distributed; imports nothing that was not imported already."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "to_local")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part that this process holds, sharing its memory (under no_grad)."""
    if is_dtensor(tensor):
        part: torch.Tensor = tensor.to_local()  # type: ignore[attr-defined]
        return part
    return tensor


def add_up(sums: torch.Tensor, groups: tuple[Any, ...]) -> None:
    """Add partial sums over all processes that hold other parts, in place."""
    for group in groups:
        dist.all_reduce(sums, group=group)


def hand_on(values: torch.Tensor, groups: tuple[Any, ...]) -> None:
    """Give every process the first one's values, in place."""
    for group in groups:
        dist.broadcast(values, src=dist.get_global_rank(group, 0), group=group)


def leads(groups: tuple[Any, ...]) -> bool:
    """Whether this process decides for the others."""
    return all(dist.get_rank(group) == 0 for group in groups)
