"""Both formats of torch.save: read like torch.load, changed so that torch.load sees the change."""

import os
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.checkpoints.readers import torch_tables
from neuralmark.checkpoints.readers.dtypes import ITEMSIZE
from neuralmark.errors import (
    CheckpointError,
    MalformedError,
    UnsafeError,
    UnsuitableTensorError,
)
from tests.support.checks import raw

Save = Callable[..., Path]
DTYPES = [name for name in torch_tables.DTYPES if hasattr(torch, name)]


@pytest.fixture(params=["torch_zip", "torch_legacy"])
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Save:
    """Save an object in one of the two formats."""

    def write(value: Any, name: str = "model.pt") -> Path:
        path = tmp_path / name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save(value, path, _use_new_zipfile_serialization=request.param == "torch_zip")
        return path

    write.form = request.param  # type: ignore[attr-defined]
    return write


def bytes_of(tensor: torch.Tensor) -> bytes:
    tensor = tensor.detach().contiguous().clone()
    return bytes(tensor.untyped_storage().tolist())


def assert_same(path: Path, expected: dict[str, torch.Tensor]) -> Checkpoint:
    checkpoint = open_checkpoint(path)
    assert checkpoint.names() == list(expected)
    for name, tensor in expected.items():
        assert checkpoint.info(name).obstacle is None
        assert checkpoint.info(name).shape == tuple(tensor.shape)
        assert raw(checkpoint, name) == bytes_of(tensor)
    return checkpoint


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 2)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(save: Save, dtype: str) -> None:
    size = ITEMSIZE[torch_tables.DTYPES[dtype]]
    content = torch.arange(6 * size, dtype=torch.uint8) % 2
    tensor = content.view(getattr(torch, dtype)).reshape(2, 3)
    checkpoint = open_checkpoint(save({"w": tensor}))
    assert checkpoint.format == save.form  # type: ignore[attr-defined]
    assert checkpoint.info("w").dtype == torch_tables.DTYPES[dtype]
    assert checkpoint.info("w").shape == (2, 3)
    assert checkpoint.info("w").obstacle is None
    assert raw(checkpoint, "w") == bytes(content.tolist())


def test_state_dict(save: Save) -> None:
    model = small_net()
    checkpoint = assert_same(save(model.state_dict()), model.state_dict())
    assert checkpoint.info("1.num_batches_tracked").shape == ()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol(save: Save, tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "p.pt"
    state = small_net().state_dict()
    zipped = save.form == "torch_zip"  # type: ignore[attr-defined]
    torch.save(state, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    assert_same(path, state)


def test_parameters_views_ties_and_empty_tensors(save: Save) -> None:
    base = torch.arange(24.0)
    state = {
        "parameter": nn.Parameter(torch.ones(3)),
        "tail": base[20:],
        "middle": base[6:18].view(3, 4),
        "row": base.view(4, 6)[2],
        "same": base,
        "column of one": base.view(24, 1),
        "scalar": torch.tensor(5.0),
        "none": torch.empty(0, 3),
        "end": base[24:],
    }
    checkpoint = assert_same(save(state), state)
    assert checkpoint.span("tail").offset == checkpoint.span("same").offset + 80
    with_state = nn.Parameter(torch.ones(2))
    with_state.note = "kept"  # type: ignore[attr-defined]
    assert_same(save({"a": with_state}, "b.pt"), {"a": with_state})


class Subclass(torch.Tensor):
    """A tensor subclass, which torch pickles in another way."""


def test_subclasses(save: Save) -> None:
    tensor = torch.arange(4.0).as_subclass(Subclass)
    assert_same(save({"a": tensor}), {"a": tensor.as_subclass(torch.Tensor)})


@pytest.mark.parametrize("key", torch_tables.USUAL_KEYS)
def test_usual_containers(save: Save, key: str) -> None:
    state = small_net().state_dict()
    training = {"epoch": 3, "optimizer": {"state": {0: {"m": torch.ones(2)}}}, key: state}
    assert_same(save(training), state)


def test_other_containers_are_flattened_without_the_optimizer(save: Save) -> None:
    a, b = torch.ones(2), torch.zeros(3)
    value = {
        "epoch": 1,
        "generator": {"layers": {0: a}},
        "critic": OrderedDict(w=b),
        "optimizer": {"state": {0: torch.ones(9)}},
        "lr_scheduler": {"x": torch.ones(9)},
        (1, 2): {"x": a},
        "list": [a],
    }
    assert_same(save(value), {"generator.layers.0": a, "critic.w": b})


def test_nested_dictionaries_beside_tensors(save: Save) -> None:
    a, b = torch.ones(2), torch.zeros(3)
    assert_same(save({"a": a, "more": {"b": b, "note": "x"}}), {"a": a, "more.b": b})


def test_an_empty_usual_key_is_passed_over(save: Save) -> None:
    a = torch.ones(2)
    assert_same(save({"state_dict": {}, "model": {"a": a}}), {"a": a})


def test_data_parallel(save: Save) -> None:
    model = nn.DataParallel(small_net())
    assert_same(save({"state_dict": model.state_dict()}), model.state_dict())


class Net(nn.Module):
    """A module with all that a state_dict keeps and leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("kept", torch.arange(3))
        self.register_buffer("left", torch.arange(4), persistent=False)
        self.register_parameter("none", None)


def test_whole_modules(save: Save) -> None:
    model = Net()
    expected = model.state_dict()
    assert_same(save(model), expected)
    assert_same(save({"model": model, "epoch": 1}), expected)
    parallel = nn.DataParallel(model)
    assert_same(save(parallel), parallel.state_dict())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(12.0).view(3, 4)[:, 1:],
        torch.arange(12.0)[1::3],
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(2, 1, 4, 1).bfloat16().permute(2, 1, 0, 3),
    ],
)
def test_strided_tensors_are_read(save: Save, tensor: torch.Tensor) -> None:
    checkpoint = open_checkpoint(save({"a": tensor, "b": torch.ones(2)}))
    assert checkpoint.info("a").obstacle is None
    raw = b"".join(piece.tobytes() for piece in checkpoint.read("a"))
    assert raw == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(1).expand(5),
        torch.ones(1).expand(100_000_000_000),
        torch.arange(12.0).as_strided((3, 4), (2, 1)),
    ],
)
def test_elements_that_share_bytes(save: Save, tensor: torch.Tensor) -> None:
    checkpoint = open_checkpoint(save({"a": tensor, "b": torch.ones(2)}))
    assert checkpoint.info("a").obstacle == torch_tables.OVERLAPPING
    assert checkpoint.info("a").shape == tuple(tensor.shape)
    with pytest.raises(UnsuitableTensorError, match="contiguous"):
        checkpoint.read("a")
    assert raw(checkpoint, "b") == bytes_of(torch.ones(2))


def special(kind: str) -> torch.Tensor:
    if kind == "sparse":
        return torch.eye(3).to_sparse()
    if kind == "sparse_csr":
        return torch.eye(3).to_sparse_csr()
    if kind == "meta":
        return torch.empty(3, device="meta")
    if kind == "conjugated":
        return torch.ones(3, dtype=torch.complex64).conj()
    if kind == "fp4":
        return torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


@pytest.mark.parametrize("kind", ["sparse", "sparse_csr", "meta", "conjugated", "fp4", "quantised"])
def test_special_tensors_have_an_obstacle(save: Save, kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = special(kind)
    checkpoint = open_checkpoint(save({"a": tensor, "b": torch.ones(2)}))
    assert checkpoint.names() == ["a", "b"]
    assert checkpoint.info("a").obstacle
    with pytest.raises(UnsuitableTensorError):
        checkpoint.read("a")
    assert raw(checkpoint, "b") == bytes_of(torch.ones(2))


def changed_places(before: bytes, after: bytes) -> list[int]:
    assert len(before) == len(after)
    return [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s, "epoch": 1}])
def test_edit_and_reload(save: Save, tmp_path: Path, wrap: Callable[[Any], Any]) -> None:
    state = small_net().state_dict()
    path, out = save(wrap(state)), tmp_path / "out.pt"
    checkpoint = open_checkpoint(path)
    new = {"0.weight": state["0.weight"] + 1, "2.0.bias": state["2.0.bias"] * 3}
    edits = {name: lambda t=tensor: iter([bytes_of(t)]) for name, tensor in new.items()}
    checkpoint.write(out, edits)
    loaded = torch.load(out, weights_only=True)
    loaded = loaded.get("state_dict", loaded)
    for name, tensor in state.items():
        assert torch.equal(loaded[name], new.get(name, tensor))
    allowed = {
        at
        for _, offset, length in checkpoint.in_place_ranges(list(new))
        for at in range(offset, offset + length)
    }
    assert set(changed_places(path.read_bytes(), out.read_bytes())) <= allowed
    checkpoint.apply(edits, lambda file: file)
    assert path.read_bytes() == out.read_bytes()


def test_editing_a_view_changes_the_whole_storage_checksum(save: Save, tmp_path: Path) -> None:
    base = torch.arange(24.0)
    path, out = save({"a": base[3:7], "b": base}), tmp_path / "out.pt"
    new = torch.full((4,), -1.0)
    open_checkpoint(path).write(out, {"a": lambda: iter([bytes_of(new)])})
    loaded = torch.load(out, weights_only=True)
    assert torch.equal(loaded["a"], new)
    assert torch.equal(loaded["b"][3:7], new)
    assert torch.equal(loaded["b"][7:], base[7:])


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_nothing_is_run(save: Save, tmp_path: Path) -> None:
    evil = Evil(f"touch {tmp_path}/ran")
    checkpoint = assert_same(save({"a": torch.ones(2), "evil": evil}), {"a": torch.ones(2)})
    assert checkpoint.names() == ["a"]
    with pytest.raises(UnsafeError, match=r"system.*state_dict"):
        open_checkpoint(save(evil, "evil.pt"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [{}, {"a": 1}, {"state_dict": {"a": [1]}}])
def test_no_tensors(save: Save, value: Any) -> None:
    with pytest.raises(MalformedError, match="no tensors"):
        open_checkpoint(save(value))


@pytest.mark.parametrize("value", [torch.ones(2), [torch.ones(2)], 3, None])
def test_not_a_table(save: Save, value: Any) -> None:
    with pytest.raises(UnsafeError, match="state_dict"):
        open_checkpoint(save(value))


def test_two_tensors_of_one_name(save: Save) -> None:
    with pytest.raises(MalformedError, match="two tensors"):
        open_checkpoint(save({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}))


def test_cycles_end(save: Save) -> None:
    value: dict[str, Any] = {"a": torch.ones(2)}
    value["self"] = value
    assert_same(save(value), {"a": torch.ones(2)})


def test_shared_dictionaries_do_not_explode(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_tables, "MAX_STEPS", 100_000)
    value: dict[str, Any] = {"a": torch.ones(2)}
    for _ in range(30):
        value = {"l": value, "r": value}
    with pytest.raises(UnsafeError, match="unfolds"):
        open_checkpoint(save(value))


def test_too_deep(save: Save) -> None:
    value: dict[str, Any] = {"a": torch.ones(2)}
    for _ in range(40):
        value = {"n": value}
    with pytest.raises(UnsafeError, match="deeper"):
        open_checkpoint(save(value))


class Rebuilt:
    """Pickles as any call of torch's that a forger may write."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.parts = function, args

    def __reduce__(self) -> Any:
        return self.parts


BASE = torch.arange(4.0).untyped_storage()
TYPED = torch.storage.TypedStorage(wrap_storage=BASE, dtype=torch.float32, _internal=True)


@pytest.mark.parametrize(
    "args",
    [
        (1, (4,), (1,)),
        (0, (5,), (1,)),
        (0, (2, 2), (3, 1)),
        (-1, (2,), (1,)),
        (0, (-2,), (1,)),
        (0, (2,), (-1,)),
        (0, (2,), (1, 1)),
        (0, "ab", (1, 1)),
        (0, (2.0,), (1,)),
        (0, (True,), (1,)),
        (2**63, (2,), (1,)),
        (0, (2**40, 2**40), (0, 0)),
        (0, (1,) * 65, (1,) * 65),
        (None, (2,), (1,)),
    ],
)
def test_tensors_that_lie(save: Save, args: tuple[Any, ...]) -> None:
    forged = Rebuilt(torch._utils._rebuild_tensor_v2, TYPED, *args, False, OrderedDict())
    with pytest.raises(MalformedError, match="the tensor 'a'"):
        open_checkpoint(save({"a": forged}))


@pytest.mark.parametrize("args", [(), (TYPED,), (1, 0, (2,), (1,), False, ())])
def test_calls_without_a_storage(save: Save, args: tuple[Any, ...]) -> None:
    with pytest.raises(MalformedError, match="the tensor 'a'"):
        open_checkpoint(save({"a": Rebuilt(torch._utils._rebuild_tensor_v2, *args)}))


def test_a_tensor_with_a_dtype_of_its_own(save: Save) -> None:
    rebuild = torch._utils._rebuild_tensor_v3
    args: tuple[Any, ...] = (TYPED, 0, (4,), (1,), False, OrderedDict())
    expected = {"a": torch.arange(4.0).view(torch.int32)}
    assert_same(save({"a": Rebuilt(rebuild, *args, torch.int32)}), expected)
    with pytest.raises(MalformedError, match="has no dtype"):
        open_checkpoint(save({"a": Rebuilt(rebuild, *args, "int32")}))


class Odd:
    """Has attributes, and is no module."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@pytest.mark.parametrize(
    "odd",
    [
        Odd(weight=torch.ones(3)),
        Rebuilt(torch._tensor._rebuild_from_type_v2, torch.Tensor),
        Rebuilt(torch._utils._rebuild_parameter),
    ],
    ids=["object", "subclass", "parameter"],
)
def test_what_is_no_tensor_is_passed_over(save: Save, odd: Any) -> None:
    assert_same(save({"a": torch.ones(2), "odd": odd}), {"a": torch.ones(2)})


def test_a_parameter_of_a_parameter_and_so_on_is_no_tensor(save: Save) -> None:
    value: Any = torch.ones(2)
    for _ in range(9):
        value = Rebuilt(torch._utils._rebuild_parameter, value, True, OrderedDict())
    assert_same(save({"a": torch.ones(2), "b": value}), {"a": torch.ones(2)})


def test_a_module_that_names_nothing_it_leaves_out(save: Save) -> None:
    module = nn.Linear(3, 2)
    module.__dict__["_non_persistent_buffers_set"] = None
    expected = {name: value.detach() for name, value in module.named_parameters()}
    assert_same(save(module), expected)


def test_too_many_tensors(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_tables, "MAX_TENSORS", 3)
    with pytest.raises(UnsafeError, match="over 3 tensors"):
        open_checkpoint(save({str(number): torch.ones(1) for number in range(4)}))


def test_every_truncation_gives_a_named_error(save: Save, tmp_path: Path) -> None:
    content = save(small_net().state_dict()).read_bytes()
    path = tmp_path / "cut.pt"
    for length in range(0, len(content), max(1, len(content) // 200)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            open_checkpoint(path)


def test_flipped_bytes_give_a_named_error_or_tensors(save: Save, tmp_path: Path) -> None:
    content = save({"a": torch.ones(3), "b": {"c": torch.ones(2)}}).read_bytes()
    path = tmp_path / "flipped.pt"
    for at in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[at] ^= 0x41
        path.write_bytes(damaged)
        try:
            checkpoint = open_checkpoint(path)
            for name in checkpoint.names():
                if checkpoint.info(name).obstacle is None:
                    raw(checkpoint, name)
        except CheckpointError:
            pass


def test_pickle_module_is_not_used(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(small_net().state_dict())

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a pickle was executed")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert len(open_checkpoint(path).names()) == 9
