"""Which block of a tensor a process holds, and which carriers lie in it."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
from torch.distributed.tensor.placement_types import (
    Placement,
    Replicate,
    Shard,
    _StridedShard,
)

from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Parameters, Terms, derive
from neuralmark.errors import UnsuitableTensorError
from neuralmark.training.layout import Layout, _block


@dataclass(frozen=True)
class Mesh:
    """What `_block` asks of a device mesh."""

    sizes: tuple[int, ...]
    at: tuple[int, ...] = ()

    @property
    def ndim(self) -> int:
        return len(self.sizes)

    def size(self, dimension: int) -> int:
        return self.sizes[dimension]

    def get_local_rank(self, dimension: int) -> int:
        return self.at[dimension]

    def everyone(self) -> list["Mesh"]:
        return [Mesh(self.sizes, at) for at in product(*map(range, self.sizes))]


def chunk(tensor: torch.Tensor, parts: int, index: int, axis: int) -> torch.Tensor:
    """As FSDP and DTensor cut: some of the last parts may be empty."""
    chunks = list(tensor.chunk(parts, dim=axis))
    return chunks[index] if index < len(chunks) else tensor.narrow(axis, 0, 0)


@pytest.mark.parametrize("rows", range(1, 24))
@pytest.mark.parametrize("sizes", [(2, 2), (4, 2), (2, 4), (3, 5)])
def test_fsdp_cuts_what_tensor_parallel_has_left(rows: int, sizes: tuple[int, int]) -> None:
    whole = torch.arange(rows * 3).reshape(rows, 3)
    placements = (_StridedShard(0, split_factor=sizes[1]), Shard(0))
    for mesh in Mesh(sizes).everyone():
        expected = chunk(chunk(whole, sizes[1], mesh.at[1], 0), sizes[0], mesh.at[0], 0)
        assert_block((rows, 3), mesh, placements, whole, expected)


@pytest.mark.parametrize("rows", [1, 3, 7, 8])
@pytest.mark.parametrize("axes", [(0, 0), (0, 1), (1, 0)])
def test_mesh_dimensions_cut_from_left_to_right(rows: int, axes: tuple[int, int]) -> None:
    whole = torch.arange(rows * 5).reshape(rows, 5)
    placements = (Replicate(), Shard(axes[0]), Shard(axes[1]))
    for mesh in Mesh((2, 2, 3)).everyone():
        expected = chunk(chunk(whole, 2, mesh.at[1], axes[0]), 3, mesh.at[2], axes[1])
        assert_block((rows, 5), mesh, placements, whole, expected)


def assert_block(
    shape: tuple[int, ...],
    mesh: Mesh,
    placements: tuple[Placement, ...],
    whole: torch.Tensor,
    expected: torch.Tensor,
) -> None:
    block, offset = _block(shape, mesh, placements)
    assert block == tuple(expected.shape)
    for axis, (low, size) in enumerate(zip(offset, block, strict=True)):
        whole = whole.narrow(axis, low, size)
    assert torch.equal(whole, expected)


def test_shards_that_no_engine_makes_are_refused() -> None:
    mesh = Mesh((2, 2), (0, 0))
    with pytest.raises(UnsuitableTensorError, match="sharded as"):
        _block((8, 8), mesh, (Shard(0), _StridedShard(0, split_factor=2)))


@pytest.mark.parametrize("cut", [(1, 1, 1), (3, 1, 1), (1, 2, 1), (2, 1, 3), (3, 2, 2), (50, 1, 1)])
@pytest.mark.parametrize("start", [0, 777])
def test_blocks_hold_every_carrier_once(cut: tuple[int, ...], start: int) -> None:
    shape = (41, 10, 9)
    mark = derive(bytes(32), Terms(Parameters(16, 32, 2), (("w", shape),)))
    size = int(np.prod(shape))
    carriers = Carriers.of(mark, start + size + 100)
    first, last = carriers.rank(start), carriers.rank(start + size)
    whole = np.arange(size).reshape(shape)
    found = np.full(carriers.size, -1)
    for index in product(*map(range, cut)):
        lows = [-(-n // c) * i for n, c, i in zip(shape, cut, index, strict=True)]
        lows = [min(low, n) for low, n in zip(lows, shape, strict=True)]
        sizes = [min(-(-n // c), n - low) for n, c, low in zip(shape, cut, lows, strict=True)]
        at, order = Layout(tuple(sizes), tuple(lows), shape).carriers(carriers, start)
        block = whole[tuple(slice(low, low + n) for low, n in zip(lows, sizes, strict=True))]
        assert (found[order] == -1).all()
        found[order] = block.reshape(-1)[at]
    assert (found[first:last] == carriers.positions(first, last) - start).all()
    assert (found[:first] == -1).all()
    assert (found[last:] == -1).all()
