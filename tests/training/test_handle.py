"""The handle's life: errors at attach, resuming, detaching, moving."""

import os
import signal
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import neuralmark
from neuralmark import Key, Parameters, schemes
from neuralmark.errors import (
    ParameterError,
    TooFewCarriersError,
    UnknownTensorError,
    UnsuitableTensorError,
    UsageError,
)
from neuralmark.marking.options import Mode
from tests.support.toys import NAME, key, network, train, weights


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_unknown_tensors_get_a_suggestion() -> None:
    model = network()
    with pytest.raises(UnknownTensorError, match=r"did you mean '2\.weight'"):
        neuralmark.attach(
            model, sgd(model), key(), options=neuralmark.AttachOptions(tensors=["2.wieght"])
        )


@pytest.mark.parametrize("tensors", [5, [5], {"2.weight": 1}])
def test_tensors_that_are_no_names_are_refused(tensors: Any) -> None:
    with pytest.raises(ParameterError, match="tensors must be a list of names"):
        neuralmark.imprint(network(), key(), tensors=tensors)


def test_frozen_and_foreign_parameters_are_refused_in_gradient_mode() -> None:
    model = network()
    other = torch.optim.SGD(model[3].parameters(), lr=0.1)
    with pytest.raises(UnsuitableTensorError, match="not among the optimizer's parameters"):
        neuralmark.attach(
            model, other, key(), options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient")
        )
    model.get_parameter(NAME).requires_grad_(False)
    with pytest.raises(UnsuitableTensorError, match="frozen"):
        neuralmark.attach(
            model,
            sgd(model),
            key(),
            options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient"),
        )


def test_too_small_tensors_and_bad_settings_are_refused() -> None:
    model = network()
    with pytest.raises(TooFewCarriersError):
        neuralmark.attach(
            model,
            sgd(model),
            Key.new(Parameters(rounds=8)),
            options=neuralmark.AttachOptions(tensors=[NAME]),
        )
    for wrong in ({"mode": "magic"}, {"strength": 0.0}, {"strength": float("nan")}, {"every": 0}):
        with pytest.raises(ParameterError):
            neuralmark.AttachOptions(tensors=[NAME], **wrong)
    for mode in ("gradient", "loss"):
        with pytest.raises(ParameterError, match="projection"):
            neuralmark.attach(
                model,
                sgd(model),
                key(),
                options=neuralmark.AttachOptions(tensors=[NAME], mode=mode, every=2),
            )
    with pytest.raises(ParameterError, match="not an optimizer"):
        neuralmark.attach(model, object(), key(), options=neuralmark.AttachOptions(tensors=[NAME]))
    with pytest.raises(UsageError, match="LoRA"):
        neuralmark.attach(
            model, sgd(model), key(), options=neuralmark.AttachOptions(target="lora-delta")
        )


def test_weights_that_can_be_written_are_projected_and_others_trained() -> None:
    model = network()
    plain = neuralmark.attach(
        model, sgd(model), key(), options=neuralmark.AttachOptions(tensors=[NAME], every=3)
    )
    assert (plain.settings.mode, plain.settings.strength, plain.settings.every) == (
        *("projection", 2.0, 3),
    )
    assert plain.rate == 1
    assert plain.margin == pytest.approx(2, rel=1e-3)
    weak = neuralmark.attach(
        model, sgd(model), key(), options=neuralmark.AttachOptions(tensors=[NAME], strength=1)
    )
    assert (weak.settings.mode, weak.settings.strength) == ("projection", 1.0)
    for mode in ("gradient", "loss"):
        told = neuralmark.attach(
            model, sgd(model), key(), options=neuralmark.AttachOptions(tensors=[NAME], mode=mode)
        )
        assert (told.settings.mode, told.settings.strength) == (mode, 1.0)

    computed = network()
    torch.nn.utils.parametrizations.weight_norm(computed[2])
    trained = neuralmark.attach(
        computed, sgd(computed), key(), options=neuralmark.AttachOptions(tensors=[NAME])
    )
    assert (trained.settings.mode, trained.settings.strength) == ("gradient", 1.0)
    greedy = key(schemes.parameters("greedymark", bits=64, own={"row": 51}))
    other = network()
    chosen = neuralmark.attach(
        other, sgd(other), greedy, options=neuralmark.AttachOptions(tensors=[NAME])
    )
    assert (chosen.settings.mode, chosen.settings.strength) == ("gradient", 1.0)


def test_projecting_only_sometimes_needs_weights_that_can_be_projected() -> None:
    model = network()
    torch.nn.utils.parametrizations.weight_norm(model[2])
    with pytest.raises(ParameterError, match="every"):
        neuralmark.attach(
            model, sgd(model), key(), options=neuralmark.AttachOptions(tensors=[NAME], every=2)
        )
    neuralmark.attach(model, sgd(model), key(), options=neuralmark.AttachOptions(tensors=[NAME]))


def test_the_same_key_again_once_it_is_detached() -> None:
    model, secret = network(), key()
    optimizer = sgd(model)
    first = neuralmark.attach(
        model, optimizer, secret, options=neuralmark.AttachOptions(tensors=[NAME])
    )
    neuralmark.attach(model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME]))
    first.detach()
    first.detach()
    neuralmark.attach(model, optimizer, secret, options=neuralmark.AttachOptions(tensors=[NAME]))


def test_wrapped_optimizers_are_unwrapped_however_often() -> None:
    class Wrapper:
        def __init__(self, optimizer: object) -> None:
            self.optimizer = optimizer

    model = network()
    optimizer = sgd(model)
    mark = neuralmark.attach(
        model, Wrapper(Wrapper(optimizer)), key(), options=neuralmark.AttachOptions(tensors=[NAME])
    )
    train(model, optimizer, range(2))
    assert mark.steps == 2


def test_tied_weights_are_one_parameter() -> None:
    model = torch.nn.Module()
    model.a = torch.nn.Linear(96, 96, bias=False)
    model.b = torch.nn.Linear(96, 96, bias=False)
    model.b.weight = model.a.weight
    optimizer = sgd(model)
    with pytest.raises(UnsuitableTensorError, match="tied"):
        neuralmark.attach(
            model,
            optimizer,
            key(),
            options=neuralmark.AttachOptions(tensors=["a.weight", "b.weight"]),
        )
    secret = key()
    mark = neuralmark.attach(
        model,
        optimizer,
        secret,
        options=neuralmark.AttachOptions(tensors=["b.weight"], mode="projection"),
    )
    assert neuralmark.verify(model, secret, claim=mark.claim()).matched == 64


@pytest.mark.parametrize("mode", ["gradient", "projection"])
def test_detaching_in_the_middle_leaves_plain_training(mode: Mode) -> None:
    marked, plain = network(), network()
    one, two = sgd(marked), sgd(plain)
    mark = neuralmark.attach(
        marked, one, key(), options=neuralmark.AttachOptions(tensors=[NAME], mode=mode)
    )
    train(marked, one, range(3))
    mark.detach()
    plain.load_state_dict(marked.state_dict())
    two.load_state_dict(deepcopy(one.state_dict()))
    train(marked, one, range(3, 6))
    train(plain, two, range(3, 6))
    assert torch.equal(weights(marked), weights(plain))
    assert mark.steps == 3


@pytest.mark.parametrize("mode", ["gradient", "projection"])
def test_a_model_may_change_its_precision_after_attach(mode: Mode) -> None:
    model = network()
    optimizer = sgd(model)
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME], mode=mode)
    )
    train(model, optimizer, range(2))
    model.to(torch.float64)
    optimizer.state.clear()
    train(model, optimizer, range(2, 4))
    assert mark.steps == 4
    assert model.get_parameter(NAME).dtype == torch.float64


@pytest.mark.parametrize("mode", ["gradient", "projection"])
def test_a_model_without_values_is_refused(mode: Mode) -> None:
    model = network()
    optimizer = sgd(model)
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME], mode=mode)
    )
    model.to("meta")
    with pytest.raises(UnsuitableTensorError, match="replaced"):
        optimizer.step()
    mark.detach()
    with pytest.raises(UnsuitableTensorError, match="meta"):
        neuralmark.attach(
            model, sgd(model), key(), options=neuralmark.AttachOptions(tensors=[NAME])
        )


def test_states_of_other_marks_are_refused() -> None:
    model = network()
    mark = neuralmark.attach(
        model, sgd(model), key(), options=neuralmark.AttachOptions(tensors=[NAME])
    )
    state = mark.state_dict()
    with pytest.raises(ParameterError, match="not the state"):
        mark.load_state_dict({})
    with pytest.raises(ParameterError, match="strength"):
        mark.load_state_dict(state | {"strength": 7.0})
    with pytest.raises(ParameterError, match="fingerprint"):
        mark.load_state_dict(state | {"fingerprint": "nm1-other"})
    mark.load_state_dict(state | {"steps": 9})
    assert mark.steps == 9


SCRIPT = """
import os, signal, sys, torch, neuralmark
sys.path.insert(0, {root!r})
from tests.support.toys import NAME, network, train
folder, mode, until = sys.argv[1], sys.argv[2], int(sys.argv[3])
key = neuralmark.Key.load(folder + "/key.nmkey")
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
every = 4 if mode == "projection" else 1
options = neuralmark.AttachOptions(tensors=[NAME], mode=mode, every=every)
mark = neuralmark.attach(model, optimizer, key, options)
saved, start = folder + "/state.pt", 0
if os.path.exists(saved):
    state = torch.load(saved, weights_only=True)
    model.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"])
    mark.load_state_dict(state["mark"]); start = state["step"]
for step in range(start, 30):
    train(model, optimizer, range(step, step + 1))
    if step + 1 == until:
        torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict(),
                        mark=mark.state_dict(), step=step + 1), saved)
    if step + 1 == until + 3:
        os.kill(os.getpid(), signal.SIGKILL)
torch.save(model.state_dict(), folder + "/final-%d.pt" % until)
"""


@pytest.mark.parametrize("mode", ["gradient", "projection"])
def test_training_resumed_after_a_kill_equals_uninterrupted_training(
    tmp_path: Path, mode: Mode
) -> None:
    Key.new(Parameters(bits=64, pools=128, rounds=2)).save(tmp_path / "key.nmkey", None)
    root = str(Path(__file__).parents[2])

    def run(until: int) -> int:
        command = [sys.executable, "-c", SCRIPT.format(root=root), str(tmp_path), mode, str(until)]
        return subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode

    assert run(100) == 0
    assert run(10) == -signal.SIGKILL
    assert run(100) == 0  # resumes from step 10; writes the same file again
    resumed = torch.load(tmp_path / "final-100.pt", weights_only=True)
    (tmp_path / "state.pt").unlink()
    assert run(100) == 0
    whole = torch.load(tmp_path / "final-100.pt", weights_only=True)
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
