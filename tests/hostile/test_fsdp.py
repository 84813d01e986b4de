"""Files of several ranks that are damaged in one way each: named errors, nothing guessed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._utils import _rebuild_wrapper_subclass
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.shard import Shard as TensorShard
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from neuralmark.checkpoints import fsdp, open_checkpoint
from neuralmark.errors import MalformedError, UnsafeError
from tests.support.makers import fsdp as maker
from tests.support.makers import values

WHOLE = torch.arange(24.0).reshape(4, 6)
HALVES = WHOLE.chunk(2)


class Pickled:
    """Pickled as a call with arguments and a state, whatever they are."""

    def __init__(self, function: Any, args: tuple[Any, ...] = (), state: Any = None) -> None:
        self._told = function, args, state

    def __reduce__(self) -> Any:
        return self._told


def wrapped(kind: Any, state: Any, size: Any = (4, 6), dtype: Any = torch.float32) -> Pickled:
    """A tensor of a class of its own, as torch pickles it."""
    return Pickled(_rebuild_wrapper_subclass, (kind, dtype, size, (6, 1), 0), state)


def along(dim: Any) -> Pickled:
    return Pickled(Shard, (0,), {"dim": dim})


def dtensor(rank: int, **changes: Any) -> Pickled:
    """What a rank of two saves of a DTensor whose rows are cut."""
    told = {"local": HALVES[rank].clone(), "coordinate": [rank], "placements": (along(0),)}
    told.update({name: value for name, value in changes.items() if name in told})
    mesh = Pickled(DeviceMesh, (), {"_coordinate_on_dim": told["coordinate"]})
    spec = Pickled(DTensorSpec, (), {"mesh": mesh, "placements": told["placements"]})
    outer = {name: value for name, value in changes.items() if name not in told}
    return wrapped(DTensor, {"_local_tensor": told["local"], "_spec": spec}, **outer)


def sharded(rank: int, **changes: Any) -> Pickled:
    """What a rank of two saves of a ShardedTensor whose rows are cut."""
    told = {"tensor": HALVES[rank].clone(), "offsets": [2 * rank, 0], **changes}
    metadata = Pickled(ShardMetadata, (), {"shard_offsets": told["offsets"]})
    shard = Pickled(TensorShard, (), {"tensor": told["tensor"], "metadata": metadata})
    return wrapped(ShardedTensor, ([shard], None, None))


def ranks(folder: Path, *states: Any) -> Path:
    """A file for each rank, with one weight."""
    for rank, state in enumerate(states):
        torch.save({"w": state, "step": 3}, folder / f"model_rank_{rank}.pt")
    return folder


@pytest.mark.parametrize("make", [dtensor, sharded])
def test_sound_files_of_the_same_kind(tmp_path: Path, make: Any) -> None:
    folder = ranks(tmp_path, make(0), make(1))
    assert np.array_equal(values(folder, "w"), WHOLE.numpy())


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (wrapped(torch.Tensor, {}), dtensor(1), "is a Tensor;"),
        (dtensor(0), dtensor(1, local=None), "has a part without a place"),
        (dtensor(0), dtensor(1, coordinate=None), "has a part without a place"),
        (dtensor(0), dtensor(1, coordinate=[-1]), "has a part without a place"),
        (dtensor(0), dtensor(1, placements=None), "has a part without a place"),
        (dtensor(0), dtensor(1, coordinate=[1, 0]), "does not fit its mesh"),
        (dtensor(0), dtensor(1, placements=()), "does not fit its mesh"),
        (dtensor(0), dtensor(1, placements=(Pickled(Partial),)), "in a way that is not known"),
        (dtensor(0), dtensor(1, placements=(along(-1),)), "in a way that is not known"),
        (dtensor(0), dtensor(1, placements=("rows",)), "in a way that is not known"),
        (dtensor(0), dtensor(1, placements=(along(2),)), "has no such dimension"),
        (dtensor(0), dtensor(1, placements=(along(1),)), "another size than its place has"),
        (dtensor(0), dtensor(1, local=WHOLE.clone()), "another size than its place has"),
        (dtensor(0), dtensor(1, coordinate=[1 << 61]), "another size than its place has"),
        (dtensor(0), dtensor(0), "another size than its place has"),
        (dtensor(0, size=None), dtensor(1), "has no shape or no dtype"),
        (dtensor(0, size=(-4, 6)), dtensor(1), "has no shape or no dtype"),
        (dtensor(0, dtype="float32"), dtensor(1), "has no shape or no dtype"),
        (dtensor(0), WHOLE, "in another way than by other processes"),
        (dtensor(0), sharded(1), "in another way than by other processes"),
        (dtensor(0), dtensor(1, local=HALVES[1].to_sparse()), "in another way than by other"),
        (dtensor(0), dtensor(1, local=HALVES[1].long()), "in another way than by other"),
        (dtensor(0), dtensor(1, local=torch.ones(1).expand(2, 6)), "in another way than by"),
        (sharded(0), sharded(1, offsets=None), "has a shard without a place"),
        (sharded(0), sharded(1, tensor=[1.0]), "has a shard without a place"),
        (sharded(0), sharded(1, offsets=[1, 0]), "do not cover it"),
        (sharded(0), sharded(1, offsets=[2]), "do not cover it"),
        (sharded(0), sharded(1, offsets=[3, 0]), "do not cover it"),
        (sharded(0), wrapped(ShardedTensor, ([],)), "do not cover it"),
        (wrapped(ShardedTensor, ()), wrapped(ShardedTensor, None), "no process saved a part"),
    ],
)
def test_parts_that_lie_are_refused(tmp_path: Path, first: Any, second: Any, why: str) -> None:
    with pytest.raises(MalformedError, match=why):
        open_checkpoint(ranks(tmp_path, first, second))


def test_a_tensor_that_is_larger_than_the_files(tmp_path: Path) -> None:
    """Every process has all of it, and the shape is a lie."""
    whole = (Pickled(Replicate),)
    large = {"local": torch.ones(1).expand(1 << 20, 6), "placements": whole, "size": (1 << 20, 6)}
    with pytest.raises(MalformedError, match="in another way than by other processes"):
        open_checkpoint(ranks(tmp_path, dtensor(0, **large)))
    empty = torch.ones(0, 6)
    told = {"local": empty, "placements": (along(0),), "size": (1 << 40, 6)}
    with pytest.raises(MalformedError):
        open_checkpoint(ranks(tmp_path, dtensor(0, **told)))
    shard = wrapped(ShardedTensor, sharded(0).__reduce__()[2], size=(1 << 40, 6))
    with pytest.raises(MalformedError, match="is larger than the files"):
        open_checkpoint(ranks(tmp_path, shard))


def test_a_weight_that_only_some_ranks_have(tmp_path: Path) -> None:
    ranks(tmp_path, dtensor(0), dtensor(1))
    torch.save({"other": torch.ones(3)}, tmp_path / "model_rank_2.pt")
    assert np.array_equal(values(tmp_path, "w"), WHOLE.numpy())
    assert np.array_equal(values(tmp_path, "other"), np.ones(3))


def test_too_many_ranks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = maker.make({"w": WHOLE.numpy()}, tmp_path)
    monkeypatch.setattr(fsdp, "MAX_RANKS", 1)
    with pytest.raises(UnsafeError, match="files of over 1 processes"):
        open_checkpoint(folder)


def test_tensors_that_every_rank_has_whole(tmp_path: Path) -> None:
    folder = ranks(tmp_path, WHOLE.T, WHOLE.T)
    assert np.array_equal(values(folder, "w"), WHOLE.T.numpy())
    folder = ranks(tmp_path, WHOLE.to_sparse(), WHOLE.to_sparse())
    assert open_checkpoint(folder).info("w").obstacle == "it is not a plain dense tensor"
    folder = ranks(tmp_path, WHOLE.long(), WHOLE.long())
    assert "hold no weights" in str(open_checkpoint(folder).info("w").obstacle)
