"""Exported programs and TorchScript: what torch itself wrote, marked copies that still run."""

import io
import json
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import neuralmark
from neuralmark import Embedding, Key
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import CheckpointError, MalformedError, UnsafeError, UsageError
from tests.support.commands import call
from tests.support.models import QUICK

KEY = Key(QUICK, salt=bytes(32), secret=bytes(range(32)))
pytestmark = pytest.mark.filterwarnings("ignore")


class Network(nn.Module):
    """Linear layers, a convolution with its norm, a tied weight and a buffer that is not saved."""

    unsaved: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = nn.Linear(96, 160)
        self.down_proj = nn.Linear(160, 96, bias=False)
        self.again = self.down_proj
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("unsaved", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.again(torch.relu(self.up_proj(x)))
        y = y + self.norm(self.conv(x[None, None])).sum() + self.unsaved.sum()
        assert isinstance(y, torch.Tensor)
        return y


X = torch.linspace(-1, 1, 5 * 96).reshape(5, 96)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Embedding]:
    """A marked network, live, and what embedding gave."""
    folder = tmp_path_factory.mktemp("exported")
    torch.manual_seed(0)
    model = Network().eval()
    torch.save(model.state_dict(), folder / "model.pt")
    done = neuralmark.embed(folder / "model.pt", KEY, folder / "marked.pt")
    model.load_state_dict(torch.load(folder / "marked.pt"))
    return model, done


def export(model: nn.Module, path: Path) -> Path:
    torch.export.save(torch.export.export(model, (X,)), path)
    return path


def script(model: nn.Module, path: Path, *, traced: bool = False, frozen: bool = False) -> Path:
    made = torch.jit.trace(model, X) if traced else torch.jit.script(model)
    made = torch.jit.freeze(made) if frozen else made
    made.save(path)
    return path


def values(path: Path, name: str) -> np.ndarray:
    checkpoint = open_checkpoint(path)
    raw = b"".join(piece.tobytes() for piece in checkpoint.read(name))
    return np.frombuffer(raw, np.float32).reshape(checkpoint.info(name).shape)


def test_an_exported_program_has_the_models_names(
    marked: tuple[Network, Embedding], tmp_path: Path
) -> None:
    model, done = marked
    path = export(model, tmp_path / "model.pt2")
    checkpoint = open_checkpoint(path)
    state = model.state_dict()
    assert set(checkpoint.names()) == {*state, "unsaved"}
    for name, tensor in state.items():
        if tensor.is_floating_point():
            assert np.array_equal(values(path, name), tensor.numpy())
    assert "again.weight" in checkpoint.tied() or "down_proj.weight" in checkpoint.tied()
    assert neuralmark.verify(path, KEY, claim=done.claim).verified
    assert call("inspect", path, "--json").json["format"] == "pt2"


def test_a_marked_program_still_runs(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Network().eval()
    path = export(model, tmp_path / "model.pt2")
    done = neuralmark.embed(path, KEY, tmp_path / "marked.pt2")
    program: Any = torch.export.load(tmp_path / "marked.pt2").module()
    given = program(X)
    assert not torch.equal(given, model(X))
    assert torch.allclose(given, model(X), atol=0.2)
    name = done.tensors[0]
    assert np.array_equal(
        dict(program.named_parameters())[name].detach().numpy(),
        values(tmp_path / "marked.pt2", name),
    )
    assert zipfile.ZipFile(tmp_path / "marked.pt2").testzip() is None


@pytest.mark.parametrize("traced", [False, True])
def test_torchscript_has_the_models_names(
    marked: tuple[Network, Embedding], tmp_path: Path, traced: bool
) -> None:
    model, done = marked
    path = script(model, tmp_path / "model.pt", traced=traced)
    checkpoint = open_checkpoint(path)
    assert {"up_proj.weight", "down_proj.weight", "conv.weight"} <= set(checkpoint.names())
    assert np.array_equal(values(path, "up_proj.weight"), model.up_proj.weight.detach().numpy())
    assert neuralmark.verify(path, KEY, claim=done.claim).verified


@pytest.mark.parametrize("traced", [False, True])
def test_the_mark_is_found_in_a_frozen_model(
    marked: tuple[Network, Embedding], tmp_path: Path, traced: bool
) -> None:
    model, done = marked
    path = script(model, tmp_path / "frozen.pt", traced=traced, frozen=True)
    names = open_checkpoint(path).names()
    assert "CONSTANTS.c0" in names
    assert not any(name.startswith("up_proj") for name in names)
    options = neuralmark.VerifyOptions(anchor=done.anchor_file)
    verdict = neuralmark.verify(path, KEY, claim=done.claim, options=options)
    assert verdict.verified
    assert verdict.matched == 160
    assert call("inspect", path, "--json").json["format"] == "torch_script"


def test_marked_torchscript_still_runs(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Network().eval()
    for frozen in (False, True):
        path = script(model, tmp_path / f"model{frozen}.pt", frozen=frozen)
        neuralmark.embed(path, KEY, tmp_path / f"marked{frozen}.pt")
        given = torch.jit.load(tmp_path / f"marked{frozen}.pt")(X)
        assert not torch.equal(given, model(X))
        assert torch.allclose(given, model(X), atol=0.2)


def rewritten(path: Path, changes: dict[str, Any]) -> Path:
    """The archive with some records replaced (None: taken out), and new ones added."""
    out = path.with_name("changed.pt2")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        root = old.namelist()[0].partition("/")[0]
        for name in old.namelist():
            data = changes.pop(name.removeprefix(f"{root}/"), old.read(name))
            if data is not None:
                new.writestr(name, data)
        for name, data in changes.items():
            if data is not None:
                new.writestr(f"{root}/{name}", data)
    return out


CONFIG = "data/weights/model_weights_config.json"


def config_of(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(next(n for n in archive.namelist() if n.endswith(CONFIG))))


def test_older_programs_hold_a_file_of_torch(
    marked: tuple[Network, Embedding], tmp_path: Path
) -> None:
    model, done = marked
    path = export(model, tmp_path / "model.pt2")
    state = io.BytesIO()
    torch.save(model.state_dict(), state)
    newer = rewritten(path, {CONFIG: None, "data/weights/model.pt": state.getvalue()})
    with zipfile.ZipFile(tmp_path / "first.pt2", "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
        archive.writestr("serialized_state_dict.pt", state.getvalue())
        archive.writestr("serialized_constants.pt", b"")
    for old in (newer, tmp_path / "first.pt2"):
        assert np.array_equal(values(old, "up_proj.weight"), model.up_proj.weight.detach().numpy())
        assert neuralmark.verify(old, KEY, claim=done.claim).verified
        with pytest.raises(UsageError, match=r"can be read, but not marked: .* mark the model"):
            neuralmark.embed(old, KEY, tmp_path / "out.pt2")


def test_several_programs_in_one_archive(tmp_path: Path) -> None:
    path = export(nn.Linear(96, 8), tmp_path / "model.pt2")
    config = json.dumps(config_of(path))
    two = rewritten(path, {"data/weights/other_weights_config.json": config})
    checkpoint = open_checkpoint(two)
    assert [name for name, _ in checkpoint.others()] == ["other"]
    assert checkpoint.others()[0][1].names() == checkpoint.names()


@pytest.mark.parametrize(
    ("entry", "value", "error"),
    [
        ("sizes", [{"as_int": 1 << 40}, {"as_int": 1 << 40}], MalformedError),
        ("sizes", [{"as_int": 9}, {"as_int": 96}], MalformedError),
        ("sizes", [{"as_int": -8}, {"as_int": 96}], MalformedError),
        ("sizes", "many", MalformedError),
        ("strides", [{"as_int": 96}], MalformedError),
        ("storage_offset", {"as_int": 1}, MalformedError),
        ("storage_offset", {"as_expr": "s0"}, MalformedError),
    ],
)
def test_programs_that_lie_are_refused(
    tmp_path: Path, entry: str, value: Any, error: type[Exception]
) -> None:
    path = export(nn.Linear(96, 8), tmp_path / "model.pt2")
    config = config_of(path)
    config["config"]["weight"]["tensor_meta"][entry] = value
    with pytest.raises(error):
        open_checkpoint(rewritten(path, {CONFIG: json.dumps(config)}))


def test_elements_that_share_bytes_are_not_read(tmp_path: Path) -> None:
    path = export(nn.Linear(96, 8), tmp_path / "model.pt2")
    config = config_of(path)
    meta = config["config"]["weight"]["tensor_meta"]
    meta["sizes"] = [{"as_int": 1 << 20}, {"as_int": 1 << 20}]
    meta["strides"] = [{"as_int": 0}, {"as_int": 0}]
    opened = open_checkpoint(rewritten(path, {CONFIG: json.dumps(config)}))
    assert "share their bytes" in str(opened.info("weight").obstacle)


def test_missing_and_packed_records_are_refused(tmp_path: Path) -> None:
    path = export(nn.Linear(96, 8), tmp_path / "model.pt2")
    with pytest.raises(MalformedError, match="is missing"):
        open_checkpoint(rewritten(path, {"data/weights/weight_0": None}))
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "packed.pt2", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name), zipfile.ZIP_DEFLATED)
    with pytest.raises(UnsafeError, match="compressed"):
        open_checkpoint(tmp_path / "packed.pt2")


def test_compiled_programs_say_what_to_do(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        archive.writestr("model/archive_format", "pt2")
        archive.writestr("model/data/aotinductor/model/x.so", b"\x7fELF")
    with pytest.raises(CheckpointError, match="compiled program"):
        open_checkpoint(tmp_path / "model.pt2")


def test_nothing_is_run(tmp_path: Path) -> None:
    """A pickle that would make a file does not, in any place that is read."""

    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    trap = io.BytesIO()
    torch.save({"weight": torch.ones(3), "trap": Trap()}, trap)
    path = export(nn.Linear(96, 8), tmp_path / "model.pt2")
    old = rewritten(path, {CONFIG: None, "data/weights/model.pt": trap.getvalue()})
    assert open_checkpoint(old).names() == ["weight"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frozen = script(Network().eval(), tmp_path / "frozen.pt", frozen=True)
    changed = tmp_path / "trapped.pt"
    with zipfile.ZipFile(frozen) as before, zipfile.ZipFile(changed, "w") as after:
        for name in before.namelist():
            data = pickle.dumps((Trap(),)) if name.endswith("constants.pkl") else before.read(name)
            after.writestr(name, data)
    with pytest.raises(MalformedError, match="holds no tensors"):
        open_checkpoint(changed)
    assert not (tmp_path / "sprung").exists()
