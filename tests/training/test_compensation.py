"""Training on while a mark is held: its weights stay, bit for bit, whatever the optimizer does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import neuralmark
from neuralmark import AttachOptions, Claim, EmbedOptions, Key, Parameters, schemes
from neuralmark.errors import ParameterError, UnsuitableTensorError
from neuralmark.training.compensation import compensate
from tests.support.learnt import accuracy, fit, learnt

HIDDEN = ["1.weight", "3.weight"]


def key_of(scheme: str = "feng", number: int = 1) -> Key:
    parameters = schemes.parameters(scheme, bits=160)
    return Key(parameters, b"", salt=bytes(32), secret=bytes([number]) * 32)


def held_places(model: Any, key: Key, claim: Claim) -> tuple[np.ndarray, np.ndarray]:
    """Where the mark lies among the hidden weights, and where not."""
    mark = key.at(claim.placement, claim.anchor_digest)
    at = schemes.of(mark).carriers(mark, claim.placement).positions()
    total = sum(model.get_parameter(name).numel() for name in HIDDEN)
    return at, np.setdiff1d(np.arange(total), at)


def hidden(model: Any) -> np.ndarray:
    return np.concatenate([model.get_parameter(n).detach().reshape(-1).numpy() for n in HIDDEN])


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum and decay": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_marked_weights_stay_and_others_move(name: str) -> None:
    model, key = learnt("narrow"), key_of()
    optimizer = OPTIMIZERS[name](model.parameters())
    fit(model, optimizer, 1)  # momentum that pulls at every weight
    made = neuralmark.imprint(model, key, tensors=HIDDEN, strength=2.0)
    assert made.claim is not None
    at, others = held_places(model, key, made.claim)
    before = hidden(model)
    with compensate(model, optimizer, key, made.claim) as held:
        fit(model, optimizer, 2)
    after = hidden(model)
    assert (held.weights, held.steps) == (2560, 2 * 22)
    assert (after[at] == before[at]).all()
    assert (after[others] != before[others]).mean() > 0.8  # some units are dead
    for parameter in map(model.get_parameter, HIDDEN):
        for value in optimizer.state[parameter].values():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                assert (value == 0).sum() >= 1000
    assert neuralmark.verify(model, key, claim=made.claim).rate == 1.0
    fit(model, optimizer, 1)  # let go
    assert (hidden(model)[at] != after[at]).mean() > 0.8


def test_without_it_the_mark_decays() -> None:
    model, key = learnt("narrow"), key_of()
    made = neuralmark.imprint(model, key, tensors=HIDDEN, strength=0.5)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.01)
    fit(model, optimizer, 30)
    assert neuralmark.verify(model, key, claim=made.claim).rate < 1.0


def test_compensation_wins_back_what_embedding_cost() -> None:
    """The mean of six keys: one test digit is 0.2 %."""
    before, embedded, compensated = accuracy(learnt("narrow")), [], []
    for number in range(6):
        model, key = learnt("narrow"), key_of(number=number)
        made = neuralmark.imprint(model, key, tensors=HIDDEN, strength=4.0)
        embedded.append(accuracy(model))
        assert made.claim is not None
        optimizer = torch.optim.SGD(model.parameters(), 0.005, momentum=0.9, weight_decay=5e-4)
        with neuralmark.compensate(model, optimizer, key, made.claim):
            fit(model, optimizer, 5)
        compensated.append(accuracy(model))
        assert neuralmark.verify(model, key, claim=made.claim).verified
    assert before > 0.96
    assert np.mean(embedded) < before - 0.02
    assert np.mean(compensated) > np.mean(embedded) + 0.01
    assert np.mean(compensated) > before - 0.02


def test_a_mark_of_a_file_is_held_too(tmp_path: Path) -> None:
    """Bound to its anchor: other positions than without one."""
    model, key = learnt("narrow"), key_of()
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    options = EmbedOptions(tensors=HIDDEN, strength=1.0)
    made = neuralmark.embed(tmp_path / "m.safetensors", key, tmp_path / "o.safetensors", options)
    assert made.claim is not None
    assert made.claim.anchor is not None
    model.load_state_dict(load_file(tmp_path / "o.safetensors"))
    before = hidden(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=0.1)
    with compensate(model, optimizer, key, made.claim):
        fit(model, optimizer, 1)
    at, _ = held_places(model, key, made.claim)
    assert (hidden(model)[at] == before[at]).all()
    assert neuralmark.verify(model, key, claim=made.claim).matched == 160


def test_marks_of_other_schemes_are_held() -> None:
    model = learnt("digits")
    key = Key(Parameters(160, 320), b"", salt=bytes(32), secret=bytes(32))
    made = neuralmark.imprint(model, key, tensors=["conv2.weight"])
    assert made.claim is not None
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with compensate(model, optimizer, key, made.claim) as held:
        fit(model, optimizer, 1)
    assert held.weights == made.carriers
    assert neuralmark.verify(model, key, claim=made.claim).rate == 1.0


def test_what_cannot_be_held_is_named() -> None:
    model, key = learnt("narrow"), key_of()
    made = neuralmark.imprint(model, key, tensors=HIDDEN, strength=1.0)
    assert made.claim is not None
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ParameterError, match="the claim is of the key"):
        compensate(model, optimizer, key_of(number=2), made.claim)
    with pytest.raises(ParameterError, match="not an optimizer"):
        compensate(model, object(), key, made.claim)
    wider = nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    )
    with pytest.raises(UnsuitableTensorError, match="other shapes"):
        compensate(wider, torch.optim.SGD(wider.parameters(), 0.1), key, made.claim)


def test_computed_weights_cannot_be_held() -> None:
    model, key = learnt("narrow"), key_of()
    made = neuralmark.imprint(model, key, tensors=HIDDEN, strength=1.0)
    assert made.claim is not None
    nn.utils.parametrizations.weight_norm(model[1])
    with pytest.raises(UnsuitableTensorError, match="computed from other parameters"):
        compensate(model, torch.optim.SGD(model.parameters(), 0.1), key, made.claim)


def test_projection_keeps_coefficients_of_one_size_through_a_training() -> None:
    model, key = learnt("narrow"), key_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    mark = neuralmark.attach(
        model, optimizer, key, AttachOptions(tensors=HIDDEN, mode="projection", strength=1.0)
    )
    fit(model, optimizer, 2)
    mark.detach()
    made = key.at(mark.placement)
    pooled = hidden(model).astype(np.float64)[made.extra["filter"]]
    sizes = np.abs(np.einsum("jrl,jl->jr", made.extra["waves"], pooled[made.extra["blocks"]]))
    assert sizes.max() / sizes.min() < 1.02
    assert accuracy(model) > 0.9
