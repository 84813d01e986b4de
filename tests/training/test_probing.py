"""Live suspects that store their layers in ways of their own: read by probing."""

import time
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import neuralmark

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from neuralmark.errors import ParameterError  # noqa: E402
from neuralmark.training.probing import calling, probed  # noqa: E402
from neuralmark.training.probing.plain import is_stored  # noqa: E402
from tests.support.architectures import CifarResNet, lived_in, llama, tokens  # noqa: E402
from tests.support.encoded import (  # noqa: E402
    CONVOLUTIONS,
    Difference,
    Rotated,
    Running,
    encoded,
    noise_like,
    turn,
)
from tests.support.marks import some_key  # noqa: E402
from tests.support.moved import rebuilt  # noqa: E402

SHAPE = (2, 3, 16, 16)
OPTIONS = neuralmark.VerifyOptions(example=SHAPE)


def resnet(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return lived_in(CifarResNet(1), seed)


@cache
def marked() -> tuple[Path, neuralmark.Key]:
    """A marked ResNet beside its claim and its anchor."""
    folder = Path(mkdtemp())
    key = neuralmark.Key(neuralmark.Parameters(), b"", salt=bytes(32), secret=bytes([1]) * 32)
    save_file(resnet(1).state_dict(), folder / "model.safetensors")
    neuralmark.embed(folder / "model.safetensors", key, folder / "marked.safetensors")
    return folder / "marked.safetensors", key


def stolen(how: Any, *, moved: bool = False) -> nn.Module:
    """The marked network in another encoding, its channels permuted before."""
    table = load_file(marked()[0])
    if moved:
        made = rebuilt({n: v.numpy() for n, v in table.items() if v.is_floating_point()}, "permute")
        table |= {name: torch.from_numpy(value.copy()) for name, value in made.items()}
    model = resnet(2)
    model.load_state_dict(table)
    return encoded(model, how, nn.Conv2d, "conv1")


def verdict_on(model: Any, options: Any = OPTIONS) -> neuralmark.Verdict:
    file, key = marked()
    return neuralmark.verify(model, key, claim=f"{file}.claim.json", options=options)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_every_encoding_is_the_same_map(name: str) -> None:
    found = verdict_on(stolen(CONVOLUTIONS[name]))
    assert found.verified
    assert found.matched >= 250
    assert found.alignment is not None
    assert any("read by probing" in fate.changes for fate in found.alignment.tensors)
    assert "layers were read by probing" in found.reason


@pytest.mark.parametrize("name", ["rotated", "integers", "winograd", "rolled"])
def test_channels_may_be_permuted_as_well(name: str) -> None:
    assert verdict_on(stolen(CONVOLUTIONS[name], moved=True)).matched >= 250


def test_without_an_example_nothing_is_run() -> None:
    found = verdict_on(stolen(CONVOLUTIONS["winograd"]), None)
    assert not found.verified
    assert "probing" not in found.reason


def test_a_stranger_stays_at_chance() -> None:
    found = verdict_on(encoded(resnet(5), Rotated, nn.Conv2d, "conv1"))
    assert not found.verified
    assert found.matched < 175


def test_what_is_read_in_its_place_is_not_probed() -> None:
    model = resnet(2)
    model.load_state_dict(load_file(marked()[0]))
    assert "probing" not in verdict_on(model).reason


@cache
def marked_llama() -> tuple[Path, neuralmark.Key]:
    pytest.importorskip("transformers")
    folder = Path(mkdtemp())
    torch.manual_seed(1)
    state = {name: value.clone() for name, value in llama().state_dict().items()}
    save_file(state, folder / "model.safetensors")
    options = neuralmark.EmbedOptions(heads=8)
    key = some_key()
    neuralmark.embed(folder / "model.safetensors", key, folder / "m.safetensors", options)
    return folder / "m.safetensors", key


@pytest.mark.parametrize(("how", "moved"), [(Rotated, False), (Rotated, True), (Difference, True)])
def test_a_language_model_is_probed_at_tokens(how: Any, moved: bool) -> None:
    file, key = marked_llama()
    table = load_file(file)
    if moved:
        made = rebuilt({name: value.numpy() for name, value in table.items()}, "permute")
        table |= {name: torch.from_numpy(value.copy()) for name, value in made.items()}
    model = llama()
    model.load_state_dict(table)
    suspect = encoded(model, how, nn.Linear)
    options = neuralmark.VerifyOptions(example=tokens())
    claim = f"{file}.claim.json"
    assert neuralmark.verify(suspect, key, claim=claim, options=options).matched >= 157


class Lying(nn.Module):
    """Answers as it likes."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls, self.weight = how, 0, nn.Parameter(turn(8))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 1:
            return x @ self.weight
        if self.how == "raises":
            raise KeyError("no")
        if self.how == "exits":
            raise SystemExit(3)
        if self.how == "never ends":
            while True:
                time.sleep(0.01)
        if self.how == "words":
            return "nothing"  # type: ignore[return-value]
        if self.how == "shapes":
            return x[:1]
        if self.how == "random":
            x = torch.randn_like(x)
        if self.how == "drifts":
            x = x + self.calls
        factor = {"nan": float("nan"), "huge": 1e38, "zero": 0.0}.get(self.how, 1.0)
        made: Tensor = x @ self.weight * factor
        return made


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("raises", "it raised KeyError"),
        ("exits", "it raised SystemExit"),
        ("never ends", "it took more than"),
        ("words", "it does not answer with a tensor"),
        ("nan", "NaN or infinity"),
        ("huge", ""),
        ("shapes", ""),
        ("random", ""),
        ("drifts", ""),
        ("zero", ""),
    ],
)
def test_modules_that_lie_are_left_out_by_name(
    how: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "SECONDS", 0.5)
    model = nn.Sequential(Lying(how), nn.ReLU(), Running(nn.Linear(8, 6)))
    found = probed(model, (4, 8))
    assert why in found.skipped.get("0", "")
    assert [name for name in found.weights if not name.startswith("0")] == ["2.weight (probed)"]
    if how != "huge":
        assert "0.weight (probed)" not in found.weights


def test_a_suspect_that_takes_no_such_example_is_refused() -> None:
    with pytest.raises(ParameterError, match="give an example that it takes"):
        probed(nn.Sequential(nn.Linear(8, 6)), (4, 9))


def test_what_ran_before_it_stopped_is_probed() -> None:
    found = probed(nn.Sequential(Running(nn.Linear(8, 6)), nn.ReLU(), nn.Linear(5, 5)), (4, 8))
    assert list(found.weights) == ["0.weight (probed)"]
    assert "RuntimeError" in found.told


class Own(nn.Module):
    """Code around a layer."""

    def __init__(self, inner: nn.Module, code: Any) -> None:
        super().__init__()
        self.inner, self.code = inner, code

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.code(self.inner(x))
        return made


@pytest.mark.parametrize(
    "code", [torch.relu, functional.gelu, torch.tanh, lambda x: x * x, lambda x: x.softmax(-1)]
)
def test_what_is_not_affine_is_not_probed(code: Any) -> None:
    found = probed(Own(nn.Linear(8, 6), code), (4, 8))
    assert not found.weights
    assert not found.skipped


def exact(layer: Any, shape: tuple[int, ...], name: str = "weight (probed)") -> Tensor:
    """What is probed of a layer that is wrapped."""
    found: Tensor = torch.from_numpy(probed(Own(layer, nn.Identity()), shape).weights[name])
    return found


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(8, 6), (1, 8)),
        (nn.Linear(300, 6), (2, 5, 300)),
        (nn.Conv1d(4, 6, 5, 2, 2), (2, 4, 20)),
        (nn.Conv2d(4, 6, 3, padding=1), (1, 4, 8, 8)),
        (nn.Conv2d(4, 6, 3, padding=1), (1, 4, 2, 2)),
        (nn.Conv2d(4, 6, 7, 2, 3), (2, 4, 16, 16)),
        (nn.Conv2d(4, 6, (3, 5), (2, 1)), (2, 4, 16, 16)),
        (nn.Conv2d(3, 6, 8, 8), (2, 3, 32, 32)),
        (nn.Conv2d(4, 6, 1), (2, 4, 8, 8)),
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), (2, 4, 8, 8)),
        (nn.Conv2d(8, 4, 3, padding=1, groups=2), (2, 8, 8, 8)),
        (nn.Conv3d(2, 3, 3, padding=1), (1, 2, 6, 6, 6)),
    ],
)
def test_weights_are_read_exactly(layer: Any, shape: tuple[int, ...]) -> None:
    assert torch.allclose(exact(layer, shape), layer.weight, atol=1e-5)


def test_a_norm_behind_is_folded_and_a_norm_alone_is_nothing() -> None:
    layer: Any = nn.Conv2d(4, 6, 3, bias=False)
    norm: Any = lived_in(nn.BatchNorm2d(6))
    found = exact(nn.Sequential(layer, norm), (2, 4, 8, 8))
    gain = norm.weight / (norm.running_var + norm.eps).sqrt()
    assert torch.allclose(found, layer.weight * gain[:, None, None, None], atol=1e-5)
    assert not probed(Own(nn.BatchNorm2d(4), nn.Identity()), (2, 4, 8, 8)).weights


def test_torchs_own_layers_are_not_probed() -> None:
    assert is_stored(nn.Linear(8, 6))
    assert is_stored(nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)))
    assert not is_stored(nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 4)))
    assert not is_stored(Running(nn.Linear(8, 6)))
    hooked = nn.Linear(8, 6)
    hooked.register_forward_hook(lambda *given: given[2] + 1)
    assert not is_stored(hooked)


def test_the_suspect_and_random_numbers_are_left_as_they_were() -> None:
    model = nn.Sequential(Running(nn.Linear(8, 6)), nn.Dropout()).train()
    before = torch.get_rng_state()
    one, two = (probed(model, (4, 8)).weights["0.weight (probed)"] for _ in range(2))
    assert (one == two).all()
    assert model.training
    assert model[1].training
    assert torch.equal(torch.get_rng_state(), before)
    assert not model._forward_hooks


@pytest.mark.parametrize("example", ["1x3", (0, 3), (), 3.5, ("a",)])
def test_what_is_no_example_is_refused(example: Any) -> None:
    with pytest.raises(ParameterError, match="example must be a tensor or a shape"):
        neuralmark.VerifyOptions(example=example)


def test_an_example_needs_a_live_module_and_an_anchor() -> None:
    file, key = marked()
    with pytest.raises(ParameterError, match="give the live module"):
        neuralmark.verify(file, key, options=OPTIONS)
    with pytest.raises(ParameterError, match="anchor of the mark"):
        neuralmark.verify(resnet(1), key, options=OPTIONS)


class Inlined(nn.Module):
    """A block whose layers are computed by its own code."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        one, two = block.conv1.weight.detach(), block.conv2.weight.detach()
        self.a, self.b = nn.Parameter(one + noise_like(one)), nn.Parameter(noise_like(one))
        self.turn, self.norm1, self.norm2 = turn(len(two)), block.bn1, block.bn2
        self.turned = nn.Conv2d(len(two), len(two), 3, padding=1, bias=False)
        self.turned.weight.data = torch.einsum("ab,bchw->achw", self.turn, two)
        self.stride, self.side = block.stride, block.added // 2

    def forward(self, x: Tensor) -> Tensor:
        one = functional.conv2d(x, self.a, None, self.stride, 1)
        one = one - functional.conv2d(x, self.b, None, self.stride, 1)
        made = self.turned(functional.relu(self.norm1(one)))
        made = self.norm2(torch.einsum("ba,nbhw->nahw", self.turn, made))
        short = x[:, :, :: self.stride, :: self.stride]
        short = functional.pad(short, (0, 0, 0, 0, self.side, self.side))
        return functional.relu(made + short)


def test_layers_that_are_no_modules_are_found_in_the_code() -> None:
    model = stolen(lambda layer: layer)
    for name in ("layer1", "layer2", "layer3"):
        layers = model.get_submodule(name)
        layers[0] = Inlined(layers[0])  # type: ignore[index, operator]
    assert not verdict_on(model, None).verified
    before = {name: set(vars(each)) for name, each in model.named_modules()}
    found = verdict_on(model)
    assert found.matched >= 250
    assert "6 layers were read by probing" in found.reason
    assert {name: set(vars(each)) for name, each in model.named_modules()} == before


class Hidden(nn.Module):
    """Rotations and factors within code that is not affine."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.w = turn(24), nn.Parameter(turn(24, 3)[:16])
        self.inner = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.gelu(x @ self.into @ self.w.T + 1)
        return functional.softmax(self.inner(x) * x, -1)


def test_products_within_code_are_read() -> None:
    model = Hidden()
    (found,) = probed(model, (2, 5, 24)).weights.values()
    assert torch.allclose(torch.from_numpy(found), (model.into @ model.w.T).T, atol=1e-5)


class Choosing(Hidden):
    """Cannot be traced."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


def test_code_that_cannot_be_traced_is_left_alone() -> None:
    found = probed(Choosing(), (2, 5, 24))
    assert not found.weights
    assert not found.skipped
