"""A network that fails on the data, data that holds NaN, and a mark that was trained too weakly."""

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from neuralmark import AttachOptions, attach, attacks
from neuralmark.attacks import Data
from neuralmark.attacks.engine.costing import inference_time
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.finetune import Finetune
from neuralmark.attacks.noise import Noise
from neuralmark.errors import (
    AttackError,
    DataMismatchError,
    ModelCodeError,
    NoMarkError,
    NonFiniteError,
    UnsuitableTensorError,
)
from neuralmark.marking.beside import FROM_FILE
from tests.support.checks import one_line
from tests.support.failing import RAISED, Failing
from tests.support.images import data, network
from tests.support.triggered import drawn, everything, fresh, key_for, marked

GIVEN = data()
HUNGRY = ("cerb", "distill", "finetune", "forge-triggers", "nullspace", "overwrite")


def normed() -> nn.Sequential:
    """With a norm, for a block to stand before."""
    first, *rest = network()
    return nn.Sequential(first, nn.BatchNorm2d(64), *rest)


def test_these_are_the_attacks_that_need_data() -> None:
    names = [name for name in attacks.names() if "data" in attacks.get(name).needs]
    assert set(names) == set(HUNGRY)


@pytest.mark.parametrize("name", HUNGRY)
def test_whatever_a_network_raises_has_a_name(name: str) -> None:
    for error in RAISED:
        with pytest.raises(DataMismatchError, match="does not fit the model") as caught:
            launch(attacks.get(name)(), Failing(normed(), error), data=GIVEN)
        assert type(error).__name__ in one_line(caught.value)


def test_a_network_that_ends_the_program_is_named() -> None:
    with pytest.raises(ModelCodeError, match="ended the program"):
        launch(attacks.get("finetune")(), Failing(normed(), SystemExit(0)), data=GIVEN)


class Tired(nn.Sequential):
    """Fails when it has been run so many times."""

    left = 2

    def forward(self, given: torch.Tensor) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyError("tired")
        for part in self:
            given = part(given)
        return given


@pytest.mark.parametrize("name", ["finetune", "distill", "nullspace", "cerb"])
def test_a_network_that_fails_later_is_named_too(name: str) -> None:
    model = Tired(*normed())
    with pytest.raises((DataMismatchError, AttackError), match="KeyError: 'tired'") as caught:
        launch(attacks.get(name)(), model, data=GIVEN)
    one_line(caught.value)
    with pytest.raises(DataMismatchError, match="tired"):
        inference_time(model, GIVEN)


def test_a_network_that_cannot_be_copied_is_named() -> None:
    model = network()
    model.__dict__["numbers"] = (number for number in range(3))
    for attack in (attacks.get("noise")(), attacks.get("finetune")()):
        with pytest.raises(AttackError, match="cannot be copied") as caught:
            launch(attack, model, data=GIVEN)
        one_line(caught.value)


def test_a_network_on_the_meta_device_is_named() -> None:
    with pytest.raises(UnsuitableTensorError, match="meta device"):
        launch(attacks.get("noise")(), network().to("meta"))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", ["inputs", "test_inputs"])
def test_data_that_holds_nan_is_refused_at_once(wrong: float, part: str) -> None:
    parts = {name: getattr(GIVEN, name).clone() for name in ("inputs", "test_inputs")}
    parts[part][5, 1, 2, 3] = wrong
    spoilt = Data(parts["inputs"], GIVEN.labels, parts["test_inputs"], GIVEN.test_labels)
    for name in (*HUNGRY, "restructure", "noise"):
        model = network()
        model.forward = None  # type: ignore[assignment, method-assign]
        with pytest.raises(NonFiniteError, match=rf"{part} of the data .* example 5") as caught:
            launch(attacks.get(name)(), model, data=spoilt)
        one_line(caught.value)


def test_whole_numbers_and_half_precision_are_finite() -> None:
    half = Data(GIVEN.inputs.half(), GIVEN.labels, GIVEN.test_inputs.half(), GIVEN.test_labels)
    assert launch(Noise(0.01), network().half(), data=half).accuracy_before
    words = nn.Sequential(nn.Embedding(9, 40), nn.Flatten(), nn.Linear(80, 4))
    tokens = torch.from_numpy(np.arange(8).reshape(4, 2))
    spoken = Data(tokens, torch.arange(4), tokens, torch.arange(4))
    assert launch(Noise(0.01), words, data=spoken).accuracy_before is not None


def weak(steps: int) -> tuple[Any, dict[str, Any]]:
    """A model whose mark was trained for a few steps only."""
    key = key_for("deepsigns")
    triggers, model = drawn(key), fresh("deepsigns")
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    options = AttachOptions(tensors=["3"], triggers=triggers, strength=1.0)
    mark = attach(model, optimizer, key, options)
    for _ in range(steps):
        optimizer.zero_grad()
        optimizer.step()
    claim = mark.claim()
    mark.detach()
    return model.eval(), {"key": key, "claim": claim, "triggers": triggers}


def test_a_weak_mark_is_told_from_none(tmp_path: Any) -> None:
    model, given = weak(80)
    with pytest.raises(NoMarkError) as caught:
        launch(attacks.get("noise")(), model, **given)
    said = one_line(caught.value)
    assert said.startswith("live Sequential does not carry this key's mark (")
    assert "train it longer or with a larger strength, or with fewer triggers of a class" in said
    assert "give the triggers" not in said
    file = tmp_path / "m.safetensors"
    save_file(model.state_dict(), file)
    setattr(model, FROM_FILE, str(file))
    for go in (launch, attacks.suite):
        first = (attacks.get("noise")(), model) if go is launch else (model,)
        with pytest.raises(NoMarkError, match=rf"^{file} does not carry"):
            go(*first, **given)


def test_an_attacked_copy_is_not_the_file_that_it_was_made_from(tmp_path: Any) -> None:
    made = marked("deepsigns")
    model, file = made.model(), tmp_path / "m.safetensors"
    save_file(made.state, file)
    setattr(model, FROM_FILE, str(file))
    known = everything()
    some, kinds = torch.tensor(known.inputs[:64]), torch.tensor(known.labels[:64])
    given: dict[str, Any] = {"claim": made.claim, "triggers": made.triggers}
    given["data"] = Data(some, kinds, some, kinds)
    for attack in (Noise(0.01), Finetune(epochs=1, classifier="keep")):
        result = launch(attack, model, made.key, **given)
        assert result.before is not None
        assert result.after is not None
        assert result.before.model == str(file) != result.after.model
        assert result.before.checkpoint_digest != result.after.checkpoint_digest
        assert not result.after.checkpoint_digest.files


def test_no_mark_at_all_asks_for_the_model() -> None:
    made = marked("deepsigns")
    with pytest.raises(NoMarkError, match=r"as many as luck gives.*give the model") as caught:
        launch(
            attacks.get("noise")(),
            fresh("deepsigns"),
            made.key,
            claim=made.claim,
            triggers=made.triggers,
        )
    one_line(caught.value)
