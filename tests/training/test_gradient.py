"""Gradient mode is exactly the paper's objective, whatever the optimizer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import neuralmark
from neuralmark import Key, Parameters
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Filter
from neuralmark.errors import UnsuitableTensorError
from tests.support.toys import NAME, PARAMETERS, key, network, task_loss, train, weights

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=5e-4),
    "sgd-foreach": lambda p: torch.optim.SGD(p, lr=0.05, foreach=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.05, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_adding_the_loss(name: str) -> None:
    """The hook against the same term in the user's own loss."""
    secret = key()
    hooked, explicit = network(), network()
    one, two = OPTIMIZERS[name](hooked.parameters()), OPTIMIZERS[name](explicit.parameters())
    neuralmark.attach(
        hooked,
        one,
        secret,
        options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient", strength=3),
    )
    term = neuralmark.attach(
        explicit,
        two,
        secret,
        options=neuralmark.AttachOptions(tensors=[NAME], mode="loss", strength=3),
    )
    train(hooked, one, range(12))
    train(explicit, two, range(12), term.loss_term)
    torch.testing.assert_close(weights(hooked), weights(explicit), rtol=1e-4, atol=1e-5)
    plain = network()
    train(plain, OPTIMIZERS[name](plain.parameters()), range(12))
    assert not torch.allclose(weights(hooked), weights(plain), atol=1e-4)


@pytest.mark.parametrize(
    ("chosen", "rounds", "factor"),
    [
        *(("stream", 1, 8.0), ("stream", 3, 2.0), ("stream", 4, 1.0), ("stream", 5, 1.0)),
        *(("tiled", 1, 1.0), ("tiled", 4, 1.0)),
    ],
)
def test_the_logits_of_a_stream_mark_are_sharpened(
    chosen: Filter, rounds: int, factor: float
) -> None:
    """By √2 for each round below the paper's four; tiled marks are trained as published."""
    secret = key(Parameters(32, 64, rounds, filter=chosen))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    mark = neuralmark.attach(
        model,
        optimizer,
        secret,
        options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient", strength=3),
    )
    before = model.get_parameter(NAME).detach().clone()

    made = secret.at(mark.placement)
    carriers = Carriers.of(made, before.numel())
    free = before.double().reshape(-1).requires_grad_()
    pooled = free[torch.from_numpy(carriers.positions())].reshape(-1, carriers.pools).mean(0)
    logits = factor**0.5 * (pooled @ torch.from_numpy(made.matrix).double())
    wanted = torch.from_numpy(made.bits).double()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted)
    loss.backward()

    assert mark.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    optimizer.step()
    moved = (before - model.get_parameter(NAME).detach()).reshape(-1).double()
    assert free.grad is not None
    torch.testing.assert_close(moved, 3 * free.grad, rtol=1e-3, atol=1e-7)
    assert moved.abs().max() > 1e-5


def test_lbfgs_closures_see_the_term_in_loss_and_gradient() -> None:
    secret = Key(PARAMETERS, salt=bytes(32), secret=bytes(32))
    hooked, explicit = network(), network()

    def optimizer(model: torch.nn.Module) -> torch.optim.LBFGS:
        return torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    one, two = optimizer(hooked), optimizer(explicit)
    neuralmark.attach(
        hooked,
        one,
        secret,
        options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient", strength=2),
    )
    term = neuralmark.attach(
        explicit,
        two,
        secret,
        options=neuralmark.AttachOptions(tensors=[NAME], mode="loss", strength=2),
    )

    def closure(model: torch.nn.Module, opt: torch.optim.Optimizer, with_term: bool) -> Any:
        def run() -> torch.Tensor:
            opt.zero_grad()
            loss = task_loss(model, 0)
            if with_term:
                loss = loss + term.loss_term()
            loss.backward()
            return loss

        return run

    for _ in range(2):
        one.step(closure(hooked, one, with_term=False))
        two.step(closure=closure(explicit, two, with_term=True))
    torch.testing.assert_close(weights(hooked), weights(explicit), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("as_keyword", [True, False])
def test_a_closure_that_computes_gradients_inside_the_step(as_keyword: bool) -> None:
    """What Lightning does; a naive hook would silently do nothing."""
    secret = key()
    inside, outside = network(), network()
    one = torch.optim.SGD(inside.parameters(), lr=0.05)
    two = torch.optim.SGD(outside.parameters(), lr=0.05)
    neuralmark.attach(
        inside, one, secret, options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient")
    )
    neuralmark.attach(
        outside, two, secret, options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient")
    )
    for step in range(5):

        def closure(step: int = step) -> torch.Tensor:
            one.zero_grad()
            loss = task_loss(inside, step)
            loss.backward()
            return loss

        one.step(closure=closure) if as_keyword else one.step(closure)
    train(outside, two, range(5))
    torch.testing.assert_close(weights(inside), weights(outside), rtol=1e-6, atol=1e-7)


def test_a_closure_of_none_is_no_closure() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient")
    )
    task_loss(model, 0).backward()
    optimizer.step(None)
    assert mark.steps == 1


def test_gradient_accumulation_adds_the_term_once_a_step() -> None:
    secret = key()
    summed, split = network(), network()
    one = torch.optim.SGD(summed.parameters(), lr=0.05)
    two = torch.optim.SGD(split.parameters(), lr=0.05)
    neuralmark.attach(
        summed,
        one,
        secret,
        options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient", strength=5),
    )
    neuralmark.attach(
        split,
        two,
        secret,
        options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient", strength=5),
    )
    (task_loss(summed, 0) + task_loss(summed, 1)).backward()
    one.step()
    for part in (0, 1):
        task_loss(split, part).backward()
    two.step()
    torch.testing.assert_close(weights(summed), weights(split), rtol=1e-5, atol=1e-6)


def test_clipping_comes_before_the_term() -> None:
    """The term is added after clipping, so a small norm does not silence the mark."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    mark = neuralmark.attach(
        model,
        optimizer,
        key(),
        options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient", strength=1),
    )
    before = mark.loss
    task_loss(model, 0).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-9)
    optimizer.step()
    assert mark.loss < before


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_leaves_the_term_unscaled(fused: bool) -> None:
    secret = key()
    scaled, plain = network(), network()
    one = torch.optim.SGD(scaled.parameters(), lr=0.05, fused=fused)
    two = torch.optim.SGD(plain.parameters(), lr=0.05)
    neuralmark.attach(
        scaled,
        one,
        secret,
        options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient", strength=4),
    )
    neuralmark.attach(
        plain,
        two,
        secret,
        options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient", strength=4),
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        one.zero_grad()
        scaler.scale(task_loss(scaled, step)).backward()
        scaler.step(one)
        scaler.update()
    train(plain, two, range(4))
    torch.testing.assert_close(weights(scaled), weights(plain), rtol=1e-4, atol=1e-5)


def test_autocast_does_not_touch_the_readout() -> None:
    model = network()
    mark = neuralmark.attach(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        key(),
        options=neuralmark.AttachOptions(tensors=[NAME], mode="loss"),
    )
    exact = float(mark.loss_term().detach())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert float(mark.loss_term().detach()) == exact
        assert mark.loss == pytest.approx(exact, rel=1e-6)


def test_nan_gradients_are_left_to_the_user() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient")
    )
    task_loss(model, 0).backward()
    weight = model.get_parameter(NAME)
    assert weight.grad is not None
    weight.grad[0, 0] = float("nan")
    optimizer.step()
    assert weight.isnan().sum() == 1


def test_a_missing_gradient_is_made() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient")
    )
    before = mark.loss
    optimizer.step()
    assert mark.loss < before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_train_the_mark(dtype: torch.dtype) -> None:
    model = network(dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient")
    )
    before = mark.loss
    for _ in range(30):
        optimizer.zero_grad()
        optimizer.step()
    assert mark.loss < before / 1.5
    assert model.get_parameter(NAME).dtype == dtype


def test_a_gradient_that_is_not_contiguous() -> None:
    torch.manual_seed(0)
    model = torch.nn.Conv2d(64, 64, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    twin = torch.nn.Conv2d(64, 64, 3)
    twin.load_state_dict(model.state_dict())
    secret = key()
    for conv in (model, twin):
        optimizer = torch.optim.SGD(conv.parameters(), lr=10.0)
        neuralmark.attach(
            conv,
            optimizer,
            secret,
            options=neuralmark.AttachOptions(tensors=["weight"], mode="gradient"),
        )
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()
    assert not model.weight.is_contiguous()
    torch.testing.assert_close(model.weight, twin.weight, rtol=1e-6, atol=1e-7)


def test_parametrised_weights_carry_the_mark_where_they_are_used() -> None:
    model = network()
    torch.nn.utils.parametrizations.weight_norm(model[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    secret = key()
    mark = neuralmark.attach(
        model, optimizer, secret, options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient")
    )
    for _ in range(400):
        optimizer.zero_grad()
        optimizer.step()
    assert mark.rate == 1
    claim = mark.claim()
    assert neuralmark.verify(model, secret, claim=claim).matched == 64
    torch.nn.utils.parametrize.remove_parametrizations(model[2], "weight")
    assert neuralmark.verify(model, secret, claim=claim).matched == 64
    other = network()
    torch.nn.utils.parametrizations.weight_norm(other[2])
    with pytest.raises(UnsuitableTensorError, match="gradient"):
        neuralmark.attach(
            other,
            optimizer,
            secret,
            options=neuralmark.AttachOptions(tensors=[NAME], mode="projection"),
        )


def test_compiled_models_are_marked_under_their_own_names() -> None:
    model = network()
    compiled: Any = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    secret = key()
    mark = neuralmark.attach(
        compiled,
        optimizer,
        secret,
        options=neuralmark.AttachOptions(tensors=[NAME], mode="projection"),
    )
    train(compiled, optimizer, range(3))
    assert mark.placement[0][0] == NAME
    assert neuralmark.verify(model, secret, claim=mark.claim()).matched == 64
