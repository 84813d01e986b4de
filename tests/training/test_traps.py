"""What goes wrong silently in a training loop: noticed, refused or simply made to work."""

import copy
import gc
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import neuralmark
from neuralmark.errors import (
    NeuralMarkWarning,
    ParameterError,
    TooFewCarriersError,
    UnsuitableTensorError,
    UsageError,
)
from neuralmark.marking.options import Mode
from tests.support.toys import NAME, PARAMETERS, key, network, task_loss, train, weights


def sgd(model: torch.nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def names(mark: neuralmark.LiveMark) -> list[str]:
    return [name for name, _ in mark.placement]


# What `auto` takes


def test_auto_takes_parameters_only() -> None:
    model = network()
    model.register_buffer("mask", torch.randn(400, 400))
    mark = neuralmark.attach(model, sgd(model), key())
    assert "mask" not in names(mark)
    assert "mask" not in neuralmark.imprint(network_with_buffer(), key()).tensors


def network_with_buffer() -> torch.nn.Module:
    model = network()
    model.register_buffer("mask", torch.randn(400, 400))
    return model


def test_a_pruned_layer_is_marked_where_it_is_used() -> None:
    model, secret = network(), key()
    torch.nn.utils.prune.random_unstructured(model[2], "weight", amount=0.3)
    optimizer = sgd(model)
    mark = neuralmark.attach(
        model, optimizer, secret, options=neuralmark.AttachOptions(strength=400)
    )
    assert (names(mark), mark.settings.mode) == ([NAME], "gradient")
    train(model, optimizer, range(60))
    assert mark.rate > 0.95
    for part in ("2.weight_mask", "2.weight_orig"):
        with pytest.raises(UnsuitableTensorError, match="pruned"):
            neuralmark.attach(
                model, sgd(model), key(), options=neuralmark.AttachOptions(tensors=[part])
            )
    mark.detach()
    torch.nn.utils.prune.remove(model[2], "weight")
    assert neuralmark.verify(model, secret, tensors=[NAME]).rate > 0.95


@pytest.mark.parametrize("old", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm])
def test_old_reparametrisations_are_refused_with_the_way_out(old: Callable[..., Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = network()
        old(model[2])
    inside = "2.weight_v" if old is torch.nn.utils.weight_norm else "2.weight_orig"
    with pytest.raises(UnsuitableTensorError, match=r"torch\.nn\.utils\.parametrizations"):
        neuralmark.attach(
            model, sgd(model), key(), options=neuralmark.AttachOptions(tensors=[inside])
        )
    with pytest.raises(TooFewCarriersError, match=r"torch\.nn\.utils\.parametrizations"):
        neuralmark.attach(model, sgd(model), key())


# Reading changes nothing


def test_reading_how_far_it_is_never_changes_training() -> None:
    found = []
    for reads in (False, True):
        model = network()
        torch.nn.utils.parametrizations.spectral_norm(model[2])
        torch.manual_seed(3)
        optimizer = sgd(model)
        mark = neuralmark.attach(
            model, optimizer, key_of(7), options=neuralmark.AttachOptions(tensors=[NAME])
        )
        for step in range(4):
            train(model, optimizer, range(step, step + 1))
            if reads:
                _ = mark.rate, mark.loss, mark.margin, mark.measure(), mark.claim()
                neuralmark.verify(model, key_of(7), tensors=[NAME])
        found.append({name: value.clone() for name, value in model.state_dict().items()})
        found[-1]["random"] = torch.rand(3)
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


def key_of(number: int) -> neuralmark.Key:
    return neuralmark.Key(PARAMETERS, salt=bytes(32), secret=bytes([number]) * 32)


# Masters


class Mastered(torch.optim.SGD):
    """A half-precision optimizer that steps float32 copies, kept where its kind keeps them."""

    def __init__(self, parameters: Any, lr: float, place: str) -> None:
        super().__init__(parameters, lr=lr)
        self.place = place
        self.hidden: dict[torch.Tensor, torch.Tensor] = {}

    def master(self, p: torch.Tensor) -> torch.Tensor:
        if self.place == "state":
            return self.state[p].setdefault("master_param", p.detach().float())  # type: ignore[no-any-return]
        if self.place == "attribute":
            if not hasattr(p, "main_param"):
                p.main_param = p.detach().float()  # type: ignore[attr-defined]
            return p.main_param  # type: ignore[attr-defined, no-any-return]
        return self.hidden.setdefault(p, p.detach().float())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    master = self.master(p)
                    master -= group["lr"] * p.grad.float()
                    p.copy_(master)


@pytest.mark.parametrize("place", ["state", "attribute"])
def test_masters_that_the_optimizer_shows_are_marked(place: str) -> None:
    model, secret = network(dtype=torch.bfloat16), key()
    optimizer = Mastered(model.parameters(), 0.01, place)
    for p in model.parameters():
        optimizer.master(p)
    mark = neuralmark.attach(
        model, optimizer, secret, options=neuralmark.AttachOptions(tensors=[NAME])
    )
    train(model, optimizer, range(10))
    assert neuralmark.verify(model, secret, claim=mark.claim()).matched == 64
    master = optimizer.master(model.get_parameter(NAME))
    assert torch.equal(master.bfloat16(), model.get_parameter(NAME))


def test_masters_that_come_with_the_first_step() -> None:
    model, secret = network(dtype=torch.bfloat16), key()
    optimizer = Mastered(model.parameters(), 0.01, "state")
    mark = neuralmark.attach(
        model, optimizer, secret, options=neuralmark.AttachOptions(tensors=[NAME])
    )
    train(model, optimizer, range(10))
    assert neuralmark.verify(model, secret, claim=mark.claim()).matched == 64


@pytest.mark.parametrize("mode", ["projection", "gradient"])
def test_masters_as_the_optimizers_own_parameters(mode: Mode) -> None:
    """As apex and Megatron do it: the optimizer knows float32 copies only."""
    model, secret = network(dtype=torch.bfloat16), key()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.05)
    strength = 400.0 if mode == "gradient" else 2.0
    mark = neuralmark.attach(
        model,
        optimizer,
        secret,
        options=neuralmark.AttachOptions(tensors=[NAME], mode=mode, strength=strength),
    )
    for step in range(40):
        task_loss(model, step).backward()
        for p, master in zip(model.parameters(), masters, strict=True):
            assert p.grad is not None
            master.grad = p.grad.float()
            p.grad = None
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(model.parameters(), masters, strict=True):
                p.copy_(master)
    assert mark.rate > 0.95
    assert neuralmark.verify(model, secret, claim=mark.claim()).rate > 0.95


def test_masters_that_cannot_be_found_are_refused_with_the_way_out() -> None:
    model = network(dtype=torch.bfloat16)
    flat = torch.cat([p.detach().float().reshape(-1) for p in model.parameters()])
    optimizer = torch.optim.SGD([flat.requires_grad_()], lr=0.1)
    with pytest.raises(UnsuitableTensorError, match="neuralmark embed"):
        neuralmark.attach(model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME]))


def test_hidden_masters_are_noticed_at_the_first_step() -> None:
    model = network(dtype=torch.bfloat16)
    optimizer = Mastered(model.parameters(), 0.01, "hidden")
    for p in model.parameters():
        optimizer.master(p)
    neuralmark.attach(model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME]))
    with pytest.warns(NeuralMarkWarning, match="copies of the weights"):
        train(model, optimizer, range(1))


def test_a_large_first_step_is_no_hidden_master() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME])
    )
    train(model, optimizer, range(3))
    assert mark.rate == 1


# Freezing


@pytest.mark.parametrize("mode", ["gradient", "projection"])
def test_freezing_in_the_middle_stops_the_mark(mode: Mode) -> None:
    model = network()
    optimizer = sgd(model)
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME], mode=mode)
    )
    train(model, optimizer, range(2))
    weight = model.get_parameter(NAME)
    weight.requires_grad_(False)
    weight.grad = None
    before = weight.detach().clone()
    with pytest.warns(NeuralMarkWarning, match="frozen"):
        train(model, optimizer, range(2, 3))
    train(model, optimizer, range(3, 4))  # said once
    assert torch.equal(weight, before)
    weight.requires_grad_(True)
    train(model, optimizer, range(4, 6))
    assert not torch.equal(weight, before)
    if mode == "projection":
        assert mark.rate == 1


# The next training


def test_a_mark_whose_optimizer_is_gone_does_not_block_the_next() -> None:
    model, secret = network(), key()
    optimizer = sgd(model)
    kept = neuralmark.attach(
        model, optimizer, secret, options=neuralmark.AttachOptions(tensors=[NAME])
    )
    del optimizer
    gc.collect()
    optimizer = sgd(model)
    mark = neuralmark.attach(
        model, optimizer, secret, options=neuralmark.AttachOptions(tensors=[NAME])
    )
    train(model, optimizer, range(2))
    assert (mark.steps, kept.steps) == (2, 0)


def test_an_interrupted_training_does_not_block_the_next() -> None:
    model, secret = network(), key()
    optimizer = sgd(model)
    first = neuralmark.attach(
        model, optimizer, secret, options=neuralmark.AttachOptions(tensors=[NAME])
    )
    train(model, optimizer, range(1))
    with pytest.warns(NeuralMarkWarning, match="takes its place"):
        second = neuralmark.attach(
            model, optimizer, secret, options=neuralmark.AttachOptions(tensors=[NAME])
        )
    train(model, optimizer, range(2))
    assert (first.steps, second.steps) == (1, 2)


# Optimizers


def test_an_optimizer_that_maximizes() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=True)
    with pytest.raises(ParameterError, match="maximize"):
        neuralmark.attach(
            model,
            optimizer,
            key(),
            options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient"),
        )
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME])
    )
    train(model, optimizer, range(2))
    assert mark.rate == 1


def test_sparse_gradients() -> None:
    torch.manual_seed(0)
    model = torch.nn.Embedding(200, 64, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.01)
    with pytest.raises(UnsuitableTensorError, match="sparse"):
        neuralmark.attach(
            model,
            optimizer,
            key(),
            options=neuralmark.AttachOptions(tensors=["weight"], mode="gradient"),
        )
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=["weight"])
    )
    model(torch.arange(20)).square().sum().backward()
    optimizer.step()
    assert mark.rate == 1


def test_another_optimizer_that_trains_the_marked_weights_is_noticed() -> None:
    model = network()
    optimizer = sgd(model)
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME])
    )
    other = torch.optim.SGD(model[0].parameters(), lr=0.1)
    train(model, other, range(1))  # not of the marked tensor
    for replaced in (sgd(model), copy.copy(optimizer)):
        with pytest.warns(NeuralMarkWarning, match="another optimizer"):
            train(model, replaced, range(1))
        mark.detach()
        train(model, replaced, range(1))
        mark = neuralmark.attach(
            model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME])
        )


def test_a_copy_that_was_trained_instead_is_noticed() -> None:
    model = network()
    optimizer = sgd(model)
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME])
    )
    other, stepped = copy.deepcopy((model, optimizer))
    train(other, stepped, range(1))
    with pytest.warns(NeuralMarkWarning, match="took no step"):
        mark.claim()


def test_an_average_that_began_before_the_mark_is_noticed() -> None:
    model = network()
    average = torch.optim.swa_utils.AveragedModel(model)
    with pytest.warns(NeuralMarkWarning, match="AveragedModel"):
        mark = neuralmark.attach(
            model, sgd(model), key(), options=neuralmark.AttachOptions(tensors=[NAME])
        )
    mark.detach()
    del average
    gc.collect()
    mark = neuralmark.attach(
        model, sgd(model), key(), options=neuralmark.AttachOptions(tensors=[NAME])
    )
    after = torch.optim.swa_utils.AveragedModel(model)  # nothing is said of one begun later
    assert after.n_averaged == 0


# Secrets


def test_handles_do_not_pickle_their_secret() -> None:
    model = network()
    optimizer = sgd(model)
    mark = neuralmark.attach(
        model, optimizer, key(), options=neuralmark.AttachOptions(tensors=[NAME])
    )
    for save in (pickle.dumps, copy.deepcopy, lambda given: torch.save(given, io.BytesIO())):
        with pytest.raises(UsageError, match=r"state_dict\(\)"):
            save(mark)
    pickle.dumps((model, optimizer))
    assert weights(model).isfinite().all()
