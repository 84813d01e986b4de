"""Files of torch.save before 1.6: real ones, storage views, and files that lie."""

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neuralmark.checkpoints import open_checkpoint, torch_legacy
from neuralmark.errors import CheckpointError, MalformedError
from tests.support.checks import raw

MACHINE = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}


class Reference:
    """Something that is pickled as a persistent reference."""

    def __init__(self, *value: Any) -> None:
        self.value = value


class Pickler(pickle._Pickler):
    """A pickler in Python, so that it may write what torch would not."""

    def persistent_id(self, obj: Any) -> Any:
        return obj.value if isinstance(obj, Reference) else None


class Tensor:
    """Pickles as the call that rebuilds a tensor."""

    def __init__(self, storage: Reference, *args: Any) -> None:
        self.args = (storage, *args, False, OrderedDict())

    def __reduce__(self) -> Any:
        return torch._utils._rebuild_tensor_v2, self.args


def legacy(
    path: Path,
    value: Any,
    storages: dict[Any, tuple[int, bytes]],
    *,
    head: tuple[Any, ...] = (torch_legacy.MAGIC, 1001, MACHINE),
    keys: Any = None,
) -> Path:
    """Write a file by hand: storages give an element count and bytes by key."""
    with path.open("wb") as file:
        for part in head:
            pickle.dump(part, file, 2)
        Pickler(file, 2).dump(value)
        pickle.dump(list(storages) if keys is None else keys, file, 2)
        for count, data in storages.values():
            file.write(count.to_bytes(8, "little") + data)
    return path


def reference(key: Any = "k", count: Any = 4, view: Any = None, kind: Any = None) -> Reference:
    return Reference("storage", kind or torch.FloatStorage, key, "cpu", count, view)


FOUR = np.arange(4, dtype="<f4").tobytes()


def test_written_by_hand(tmp_path: Path) -> None:
    path = legacy(tmp_path / "m.pt", {"a": Tensor(reference(), 1, (3,), (1,))}, {"k": (4, FOUR)})
    assert raw(open_checkpoint(path), "a") == FOUR[4:]
    assert torch.equal(torch.load(path)["a"], torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("size", [2, 8])
def test_storage_views(tmp_path: Path, size: int) -> None:
    storage = reference(view=("v", 2, size))
    path = legacy(tmp_path / "m.pt", {"a": Tensor(storage, 0, (2,), (1,))}, {"k": (4, FOUR)})
    assert raw(open_checkpoint(path), "a") == FOUR[8:]
    assert torch.equal(torch.load(path)["a"], torch.tensor([2.0, 3.0]))


@pytest.mark.parametrize("view", [("v", 2, 1), ("v", 5, 1), ("v", 3, 9), ("v", -1, 2), 3, ("v",)])
def test_views_that_lie(tmp_path: Path, view: Any) -> None:
    storage = reference(view=view)
    path = legacy(tmp_path / "m.pt", {"a": Tensor(storage, 0, (2,), (1,))}, {"k": (4, FOUR)})
    with pytest.raises(MalformedError):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("storage", "storages", "keys"),
    [
        (reference(), {"k": (5, FOUR)}, None),
        (reference(), {"k": (4, FOUR[:-1])}, None),
        (reference(count=1 << 61), {"k": (1 << 61, FOUR)}, None),
        (reference(count=5), {"k": (4, FOUR)}, None),
        (reference(count=-4), {"k": (4, FOUR)}, None),
        (reference(key=3), {"k": (4, FOUR)}, None),
        (reference(kind="FloatStorage"), {"k": (4, FOUR)}, None),
        (reference(kind=dict), {"k": (4, FOUR)}, None),
        (reference(), {"other": (4, FOUR)}, None),
        (reference(), {}, None),
        (reference(), {"k": (4, FOUR)}, ["k", "k"]),
        (reference(), {"k": (4, FOUR)}, "k"),
        (reference(), {"k": (4, FOUR)}, [3]),
        (Reference("storage"), {}, None),
        (Reference("other", 1, 2, 3, 4), {}, None),
    ],
)
def test_storages_that_lie(tmp_path: Path, storage: Any, storages: Any, keys: Any) -> None:
    value = {"a": Tensor(storage, 0, (2,), (1,))}
    with pytest.raises(MalformedError):
        open_checkpoint(legacy(tmp_path / "m.pt", value, storages, keys=keys))


def test_one_storage_described_in_two_ways(tmp_path: Path) -> None:
    value = {
        "a": Tensor(reference(), 0, (2,), (1,)),
        "b": Tensor(reference(kind=torch.HalfStorage, count=8), 0, (2,), (1,)),
    }
    with pytest.raises(MalformedError, match="two ways"):
        open_checkpoint(legacy(tmp_path / "m.pt", value, {"k": (4, FOUR)}))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ((torch_legacy.MAGIC, 1002, MACHINE), "begin"),
        ((torch_legacy.MAGIC, 1001, {}), "numbers"),
        ((torch_legacy.MAGIC, 1001, 7), "numbers"),
        ((torch_legacy.MAGIC, 1001, {"little_endian": False}), "big-endian"),
    ],
)
def test_other_heads(tmp_path: Path, head: tuple[Any, ...], message: str) -> None:
    path = legacy(tmp_path / "m.pt", {"a": 1}, {}, head=head)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


def test_a_plain_pickle_is_not_of_this_format(tmp_path: Path) -> None:
    data = pickle.dumps({"a": 1}, 2)
    assert not torch_legacy.matches(tmp_path, data)
