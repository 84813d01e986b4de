"""Changes where the inputs have no component: large in the weights, unseen in the outputs."""

from typing import Any

import numpy as np
import pytest

from neuralmark import Key, imprint
from neuralmark.attacks.contract import Data
from neuralmark.errors import AttackError, DataMismatchError, MissingDataError
from tests.support.models import QUICK

torch = pytest.importorskip("torch")

from neuralmark.attacks.engine.launch import launch  # noqa: E402
from neuralmark.attacks.engine.options import LaunchOptions  # noqa: E402
from neuralmark.attacks.nullspace import Nullspace, drawn, free_directions, record  # noqa: E402

NAME = "2.weight"


def network(wide: int = 200, *, narrow: bool = True) -> Any:
    """A layer whose inputs fill 40 of its dimensions only, unless `narrow` is off."""
    torch.manual_seed(0)
    first = torch.nn.Linear(40 if narrow else 400, wide, bias=False)
    return torch.nn.Sequential(first, torch.nn.Identity(), torch.nn.Linear(wide, 80)).eval()


def data(width: int = 40, count: int = 600) -> Data:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, width, generator=generator)
    labels = torch.randint(0, 80, (count,), generator=generator)
    return Data(
        inputs[: count // 2], labels[: count // 2], inputs[count // 2 :], labels[count // 2 :]
    )


def test_the_function_stays_and_the_mark_goes() -> None:
    model, given = network(), data()
    key = Key(QUICK, b"", salt=bytes(32), secret=bytes([1]) * 32)
    claim = imprint(model, key, tensors=[NAME], strength=1.0).claim
    result = launch(Nullspace(20.0), model, key, claim=claim, data=given)
    assert result.model is not None
    with torch.no_grad():
        before, after = model(given.test_inputs), result.model(given.test_inputs)
    assert float((before - after).abs().max()) < 1e-3 * float(before.abs().max())
    assert result.accuracy_before == result.accuracy_after
    assert result.figures["free_share"] == pytest.approx(160 / 200)
    assert result.figures["felt"] < 1e-3
    assert result.after is not None
    assert not result.survived
    assert 0.3 < result.after.rate < 0.7
    change = result.weights[NAME] - model.state_dict()[NAME].numpy() if result.weights else 0
    assert np.linalg.norm(change) == pytest.approx(
        20 * float(model.state_dict()[NAME].norm()), rel=1e-3
    )


def test_a_layer_with_full_inputs_leaves_no_room() -> None:
    model = network(wide=100, narrow=False)
    result = launch(Nullspace(4.0), model, options=LaunchOptions(tensors=[NAME]), data=data(400))
    assert result.figures["free_share"] == 0
    assert result.figures["layers"] == 0
    assert result.change == 0
    assert "no room" in result.note


def test_patches_are_what_a_convolution_multiplies() -> None:
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(3, 5, 3, stride=2, padding=1, dilation=1, bias=False)
    model = torch.nn.Sequential(conv)
    inputs = torch.randn(6, 3, 9, 9)
    moments = record(model, ["0.weight"], inputs)["0.weight"]
    weight = conv.weight.detach().numpy().reshape(5, -1).astype(np.float64)
    with torch.no_grad():
        energy = conv(inputs).double().square().sum((0, 2, 3)).numpy()
    assert np.einsum("ij,jk,ik->i", weight, moments, weight) == pytest.approx(energy, rel=1e-4)


def test_dead_channels_of_a_convolution_are_free() -> None:
    torch.manual_seed(0)
    first = torch.nn.Conv2d(3, 8, 3, padding=1)
    with torch.no_grad():
        first.weight[:4] = 0
        first.bias[:4] = -1
    second = torch.nn.Conv2d(8, 6, 3, padding=1)
    tail = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    model = torch.nn.Sequential(first, torch.nn.ReLU(), second, *tail)
    inputs, labels = torch.randn(64, 3, 8, 8), torch.randint(0, 6, (64,))
    given = Data(inputs, labels, inputs[:32], labels[:32])
    result = launch(Nullspace(10.0), model, options=LaunchOptions(tensors=[NAME]), data=given)
    assert result.figures["free_share"] >= 0.5
    assert result.model is not None
    with torch.no_grad():
        before, after = model(inputs), result.model(inputs)
    assert float((before - after).abs().max()) < 0.02 * float(before.abs().max())
    assert result.change == pytest.approx(10, rel=1e-3)


def test_conv1d_of_transformers_is_stored_the_other_way_round() -> None:
    utils = pytest.importorskip("transformers.pytorch_utils")
    torch.manual_seed(0)
    first = torch.nn.Linear(10, 60, bias=False)
    model = torch.nn.Sequential(first, torch.nn.Identity(), utils.Conv1D(30, 60)).eval()
    given = data(10, 200)
    result = launch(Nullspace(5.0), model, options=LaunchOptions(tensors=[NAME]), data=given)
    assert result.figures["free_share"] == pytest.approx(50 / 60)
    assert result.model is not None
    with torch.no_grad():
        before, after = model(given.inputs), result.model(given.inputs)
    assert float((before - after).abs().max()) < 1e-3 * float(before.abs().max())


def test_directions_are_orthogonal_to_what_is_used() -> None:
    rng = np.random.default_rng(0)
    used = rng.standard_normal((50, 7)) @ rng.standard_normal((7, 20))
    basis, share = free_directions(used.T @ used, 1e-9)
    assert share == pytest.approx(13 / 20)
    change = drawn(rng, basis, 4)
    assert np.abs(change @ used.T).max() < 1e-9 * np.linalg.norm(change) * np.linalg.norm(used)


def test_what_it_cannot_do_without() -> None:
    with pytest.raises(MissingDataError):
        launch(Nullspace(), network())
    with pytest.raises(MissingDataError):
        launch(Nullspace(), {NAME: np.ones((4, 4), np.float32)}, data=data())
    with pytest.raises(DataMismatchError):
        launch(Nullspace(), network(), data=data(17))
    norm = torch.nn.Sequential(torch.nn.Embedding(4, 4))
    numbers, labels = torch.zeros(8, 3, dtype=torch.long), torch.zeros(8, dtype=torch.long)
    with pytest.raises(AttackError, match="not a weight of a plain"):
        launch(Nullspace(), norm, data=Data(numbers, labels, numbers, labels))
