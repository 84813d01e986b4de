"""Projection mode: every bit at its margin from the first step, by the smallest change."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import neuralmark
from neuralmark import Parameters
from tests.support.toys import NAME, PARAMETERS, key, network, task_loss, train, weights


def test_all_bits_hold_from_the_first_moment_and_after_every_step() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    mark = neuralmark.attach(
        model,
        optimizer,
        key(),
        options=neuralmark.AttachOptions(tensors=[NAME], mode="projection", strength=2),
    )
    assert mark.rate == 1
    for step in range(20):
        train(model, optimizer, range(step, step + 1))
        assert mark.rate == 1
        assert mark.margin == pytest.approx(2, rel=1e-3)


def test_every_nth_step_only() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    mark = neuralmark.attach(
        model,
        optimizer,
        key(),
        options=neuralmark.AttachOptions(tensors=[NAME], mode="projection", every=3),
    )
    held = []
    for step in range(9):
        train(model, optimizer, range(step, step + 1))
        held.append(mark.margin > 1.999)
    assert held == [True, False, False] * 3


def test_it_moves_the_weights_less_than_the_gradient_does_to_the_same_margin() -> None:
    secret = key()
    moved = {}
    for mode in ("gradient", "projection"):
        model = network()
        start = weights(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        strength = 15.0 if mode == "gradient" else 1.0
        mark = neuralmark.attach(
            model,
            optimizer,
            secret,
            options=neuralmark.AttachOptions(tensors=[NAME], mode=mode, strength=strength),
        )
        for step in range(600):
            train(model, optimizer, range(step, step + 1))
            if mark.margin >= 0.999:
                break
        assert mark.margin >= 0.999
        moved[mode] = float((weights(model) - start).norm())
    assert moved["projection"] < moved["gradient"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_margins_hold_after_rounding_to_the_parameters_precision(dtype: torch.dtype) -> None:
    model = network(dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME], mode="projection")
    )
    train(model, optimizer, range(3))
    assert mark.rate == 1
    assert mark.margin > 1.98


def test_frozen_parameters_and_those_outside_the_optimizer() -> None:
    model = network()
    model.get_parameter(NAME).requires_grad_(False)
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1)
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME], mode="projection")
    )
    train(model, optimizer, range(3))
    assert mark.rate == 1


def test_clipping_scaling_and_adam_do_not_weaken_it() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME], mode="projection")
    )
    scaler = torch.amp.GradScaler("cpu")
    for step in range(5):
        optimizer.zero_grad()
        scaler.scale(task_loss(model, step)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        scaler.step(optimizer)
        scaler.update()
    assert mark.rate == 1


def test_several_tensors_as_one() -> None:
    names = ["0.weight", "2.weight", "3.weight"]
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    secret = key()
    mark = neuralmark.attach(
        model,
        optimizer,
        secret,
        options=neuralmark.AttachOptions(tensors=names[::-1], mode="projection"),
    )
    train(model, optimizer, range(3))
    assert [name for name, _ in mark.placement] == names
    assert neuralmark.verify(model, secret, claim=mark.claim()).matched == 64


def test_two_keys_on_one_tensor_both_hold(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    one, two = key(Parameters(rounds=2)), key(Parameters(rounds=2))
    marks = [
        neuralmark.attach(
            model,
            optimizer,
            secret,
            options=neuralmark.AttachOptions(tensors=["0.weight"], mode="projection"),
        )
        for secret in (one, two)
    ]
    for step in range(5):
        optimizer.zero_grad()
        x = torch.randn(8, 512, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()
        optimizer.step()
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    for secret, mark in zip((one, two), marks, strict=True):
        verdict = neuralmark.verify(tmp_path / "m.safetensors", secret, claim=mark.claim())
        assert verdict.verified


def test_live_and_file_give_the_same_verdict(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    secret = key(Parameters(bits=256, pools=288, rounds=1))
    mark = neuralmark.attach(
        model,
        optimizer,
        secret,
        options=neuralmark.AttachOptions(tensors="auto", mode="projection"),
    )
    train(model, optimizer, range(5))
    claim = mark.claim()
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    for options in ({"claim": claim}, {}):
        live = neuralmark.verify(model, secret, **options)  # type: ignore[arg-type]
        file = neuralmark.verify(tmp_path / "m.safetensors", secret, **options)  # type: ignore[arg-type]
        assert live.matched == file.matched == 256
        assert live.trials == file.trials
        assert live.smallest_margin == pytest.approx(file.smallest_margin, rel=1e-6)
        assert live.median_margin == pytest.approx(file.median_margin, rel=1e-6)
        assert live.certified_radius_relative == pytest.approx(
            file.certified_radius_relative, rel=1e-6
        )
        assert live.checkpoint_digest.tensors == file.checkpoint_digest.tensors
        assert live.checkpoint_digest.headers == file.checkpoint_digest.headers


@pytest.mark.parametrize("effort", [{"budget": 20}, {"strength": 1.5}, {}])
def test_imprinting_a_live_model_costs_what_embedding_into_its_file_does(
    tmp_path: Path, effort: dict[str, float]
) -> None:
    model = network()
    secret = key(PARAMETERS)
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    file = neuralmark.embed(
        tmp_path / "m.safetensors",
        secret,
        tmp_path / "o.safetensors",
        options=neuralmark.EmbedOptions(tensors=[NAME], anchor=False, **effort),  # type: ignore[arg-type]
    )
    live = neuralmark.imprint(model, secret, tensors=[NAME], **effort)  # type: ignore[arg-type]
    assert live.strength == pytest.approx(file.strength, rel=0.03)
    assert live.change_relative == pytest.approx(file.change_relative, rel=0.03)
    assert live.change_largest == pytest.approx(file.change_largest, rel=0.1)
    assert live.verdict is not None
    assert file.verdict is not None
    assert live.verdict.matched == file.verdict.matched == 64
    assert live.verdict.smallest_margin == pytest.approx(file.verdict.smallest_margin, rel=0.05)
    assert live.claim is not None
    assert neuralmark.verify(tmp_path / "o.safetensors", secret, claim=live.claim).matched == 64
    assert file.claim is not None
    assert neuralmark.verify(model, secret, claim=file.claim).matched == 64
