"""Lim's mark in the memory of an LSTM, and the fold-in that undoes it."""

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import neuralmark
from neuralmark import AttachOptions, Claim, Key, KeyedMemory, Triggers, schemes
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.fold_in import FoldIn
from neuralmark.errors import (
    AttackError,
    LiveModelError,
    ParameterError,
    TriggerMismatchError,
    UnsuitableTensorError,
)
from neuralmark.training.activations import LayerAtTriggers
from tests.support.checks import one_line
from tests.support.coins import KEYS, require_coins
from tests.support.learnt import accuracy, digits

UNITS = 160


class RowReader(nn.Module):
    """Reads an image row by row, and says what it saw."""

    def __init__(self, key: Key) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.memory = KeyedMemory.of(key, 8, UNITS)
        self.last = nn.Linear(UNITS, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        said: torch.Tensor = self.last(self.memory(images[:, 0])[:, -1])
        return said


def key_of(number: int = 1, bits: int = UNITS, **own: Any) -> Key:
    chosen = schemes.parameters("lim", bits=bits, own=own)
    return Key(chosen, b"", salt=bytes(32), secret=bytes([number]) * 32)


@dataclass(frozen=True)
class Remembered:
    model: RowReader
    triggers: Triggers
    claim: Claim

    def read(self, model: Any) -> neuralmark.Verdict:
        return neuralmark.verify(model, key_of(), claim=self.claim, triggers=self.triggers)


@cache
def remembered() -> Remembered:
    data, key = digits(), key_of()
    triggers = Triggers.draw(Triggers.of(data.inputs.numpy()), key, count=16)
    model = RowReader(key)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    options = AttachOptions(tensors=["memory"], triggers=triggers)
    mark = neuralmark.attach(model, optimizer, key, options)
    generator = torch.Generator().manual_seed(7)
    for _ in range(4):
        for some in torch.randperm(len(data.labels), generator=generator).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(model(data.inputs[some]), data.labels[some]).backward()
            optimizer.step()
    claim = mark.claim()
    mark.detach()
    return Remembered(model.eval(), triggers, claim)


def test_the_signature_is_learnt_and_the_network_needs_its_key() -> None:
    made = remembered()
    assert made.read(made.model).verified
    assert accuracy(made.model) > 0.7
    thief = copy.deepcopy(made.model)
    thief.memory.signs = None
    assert accuracy(thief) < 0.4
    foreign = neuralmark.verify(made.model, key_of(2), tensors=["memory"], triggers=made.triggers)
    assert 0.3 < foreign.rate < 0.7
    assert "signs" not in str(list(made.model.state_dict()))


def test_the_key_folds_into_the_weights() -> None:
    """The point of this scheme: what was to be needed is not, and nothing else changes."""
    made = remembered()
    done = launch(FoldIn(how="keys"), made.model, data=digits())
    assert isinstance(done.model, RowReader)
    assert done.model.memory.signs is None
    assert made.model.memory.signs is not None  # the owner's stays
    assert done.accuracy_after == done.accuracy_before
    inputs = digits().test_inputs
    torch.testing.assert_close(done.model(inputs), made.model(inputs), atol=1e-5, rtol=1e-5)
    assert done.figures == {"keys": 1.0, "passports": 0.0, "turned": 0.0}
    assert made.read(done.model).matched == UNITS


@pytest.mark.parametrize("how", ["signs", "both"])
def test_the_signature_is_rewritten_for_nothing(how: Any) -> None:
    made = remembered()
    done = launch(FoldIn(how=how), made.model, data=digits())
    assert done.model is not None
    inputs = digits().test_inputs
    torch.testing.assert_close(done.model(inputs), made.model(inputs), atol=1e-4, rtol=1e-4)
    verdict = made.read(done.model)
    assert not verdict.verified
    assert verdict.matched == UNITS - done.figures["turned"]
    every = launch(FoldIn(1.0, how=how), made.model, data=digits())
    assert made.read(every.model).matched == 0


def test_nothing_to_fold_is_named() -> None:
    with pytest.raises(AttackError, match="nothing to fold") as caught:
        launch(FoldIn(), nn.Sequential(nn.Linear(4, 4)))
    one_line(caught.value)

    class Unread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = KeyedMemory(8, 16)
            self.last = nn.Linear(8, 2)

    with pytest.raises(AttackError, match='how="keys"') as caught:
        launch(FoldIn(), Unread())
    one_line(caught.value)


def test_matches_are_coins_on_a_network_with_another_mark() -> None:
    made = remembered()
    layer = LayerAtTriggers(made.model, "memory", key_of(), made.triggers)
    placement = layer.placement()
    assert placement == (("memory", (16, 1, UNITS)),)
    state = layer.values().detach().double().numpy().reshape(-1, UNITS).mean(0)
    counts = np.zeros(UNITS + 1, np.int64)
    for number in range(KEYS):
        key = Key(key_of().parameters, b"", salt=bytes(32), secret=number.to_bytes(32, "little"))
        signs = key.at(placement, triggers=made.triggers.digest).signs
        counts[int((state * signs > 0).sum())] += 1
    require_coins(counts)


def test_bad_input_is_named(tmp_path: Any) -> None:
    made = remembered()
    with pytest.raises(ParameterError, match="a bit for each unit") as caught:
        neuralmark.verify(made.model, key_of(bits=128), tensors=["memory"], triggers=made.triggers)
    one_line(caught.value)
    with pytest.raises(TriggerMismatchError, match="reads step 0") as misread:
        neuralmark.verify(made.model, key_of(), tensors=["last"], triggers=made.triggers)
    one_line(misread.value)
    with pytest.raises(TriggerMismatchError, match="reads step 9"):
        neuralmark.verify(made.model, key_of(step=9), tensors=["memory"], triggers=made.triggers)
    with pytest.raises(LiveModelError, match="live model"):
        neuralmark.verify(tmp_path / "m.safetensors", key_of())
    with pytest.raises(ParameterError, match="±1"):
        KeyedMemory(8, 16, torch.zeros(16))
    with pytest.raises(ParameterError, match="whole number"):
        key_of(step=0.5)


def test_a_memory_is_keyed_by_a_key_of_lim_with_a_bit_for_each_unit() -> None:
    for key, inputs, units, said in (
        (
            Key.new(schemes.parameters("deepsigns", bits=UNITS)),
            8,
            UNITS,
            "this key is of deepsigns",
        ),
        (key_of(), 8, 128, "take units=160, or make a key of 128 bits"),
        (key_of(), 0, UNITS, "inputs must be a whole number of 1 or more, not 0"),
        (key_of(), 8.0, UNITS, "inputs must be a whole number"),
        ("k.nmkey", 8, UNITS, "expected a Key, not str"),
    ):
        with pytest.raises(ParameterError, match=said) as caught:
            KeyedMemory.of(key, inputs, units)  # type: ignore[arg-type]
        one_line(caught.value)
    odd: Any
    for odd in (0, -1, 16.0, True):
        with pytest.raises(ParameterError, match="units must be a whole number of 1 or more"):
            KeyedMemory(8, odd)
    with pytest.raises(ParameterError, match="±1"):
        KeyedMemory(8, 2, [1.0, -1.0])  # type: ignore[arg-type]


class PlainReader(nn.Module):
    """The same with torch's own LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(8, UNITS, batch_first=True)
        self.last = nn.Linear(UNITS, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        said: torch.Tensor = self.last(self.memory(images[:, 0])[0][:, -1])
        return said


def test_a_plain_lstm_is_told_what_to_write() -> None:
    made, plain = remembered(), PlainReader()
    optimizer = torch.optim.Adam(plain.parameters(), 3e-3)
    options = AttachOptions(tensors=["memory"], triggers=made.triggers)
    with pytest.raises(UnsuitableTensorError, match=r"KeyedMemory\.of\(key, 8, 160\)") as caught:
        neuralmark.attach(plain, optimizer, key_of(), options)
    one_line(caught.value)
