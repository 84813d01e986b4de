"""Live models are written on the grid of their weights, and what is zero stays zero."""

from copy import deepcopy

import pytest
import torch

import neuralmark
from neuralmark import Parameters
from neuralmark.errors import InfeasibleError, NonFiniteError, UnsuitableTensorError
from tests.support.toys import key, train

PARAMETERS = Parameters(bits=160, pools=320)
LAYERS = ["0.weight", "2.weight"]


def network(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 256),
        torch.nn.Linear(256, 4),
    )


@torch.no_grad()
def rounded(model: torch.nn.Sequential, dtype: torch.dtype) -> torch.nn.Sequential:
    """Float32 weights that hold values of another type."""
    for parameter in model.parameters():
        parameter.copy_(parameter.to(dtype).float())
    return model


@torch.no_grad()
def pruned(model: torch.nn.Sequential, share: float = 0.5) -> torch.nn.Sequential:
    """The smallest weights of each layer set to zero."""
    for name in LAYERS:
        weight = model.get_parameter(name)
        weight[weight.abs() < weight.abs().flatten().quantile(share)] = 0.0
    return model


def moved(before: torch.nn.Module, after: torch.nn.Module, name: str) -> torch.Tensor:
    changed = before.get_parameter(name).detach() != after.get_parameter(name).detach()
    return changed.flatten()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_values_of_another_type_stay_such_values(dtype: torch.dtype) -> None:
    model, secret = rounded(network(), dtype), key(PARAMETERS)
    before = deepcopy(model)
    made = neuralmark.imprint(model, secret)
    assert made.tensors == ("0.weight", "2.weight")
    assert made.verdict is not None
    assert made.verdict.matched == 160
    for name in LAYERS:
        weight = model.get_parameter(name).detach()
        assert torch.equal(weight, weight.to(dtype).float())
        assert 0.01 < moved(before, model, name).float().mean() < 0.6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_modules_of_other_types_carry_every_bit(dtype: torch.dtype) -> None:
    model, secret = network().to(dtype), key(PARAMETERS)
    made = neuralmark.imprint(model, secret, strength=1.5)
    assert made.verdict is not None
    assert made.verdict.matched == 160
    assert made.verdict.smallest_margin == pytest.approx(1.5, rel=0.12)
    assert model.get_parameter("2.weight").dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_of_a_pruned_module_stay_zero(dtype: torch.dtype) -> None:
    model, secret = pruned(network()).to(dtype), key(PARAMETERS)
    before = deepcopy(model)
    made = neuralmark.imprint(model, secret)
    assert made.verdict is not None
    assert made.verdict.matched == 160
    for name in LAYERS:
        old, new = (m.get_parameter(name).detach() for m in (before, model))
        assert torch.equal(old == 0, new == 0)
        assert moved(before, model, name).any()


def test_weights_with_little_room_settle_for_every_key() -> None:
    """Uniform weights cut at both ends: many come to the end of their room."""
    for _ in range(12):
        made = neuralmark.imprint(pruned(network()), key(PARAMETERS))
        assert made.verdict is not None
        assert made.verdict.matched == 160


def test_larger_tensors_take_larger_changes() -> None:
    model, secret = network(), key(PARAMETERS)
    with torch.no_grad():
        model.get_parameter("2.weight").mul_(10)
    before = deepcopy(model)
    made = neuralmark.imprint(model, secret)
    assert made.verdict is not None
    assert made.verdict.matched == 160
    shares = []
    for name in LAYERS:
        old, new = (m.get_parameter(name).detach() for m in (before, model))
        shares.append(float((new - old).norm() / old.norm()))
    assert shares[0] == pytest.approx(shares[1], rel=0.1)


@pytest.mark.parametrize("budget", [4.0, 12.0])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "pruned", "bfloat16 in float32"])
def test_a_budget_is_kept(kind: str, budget: float) -> None:
    model = network()
    model = pruned(model) if kind == "pruned" else model
    model = rounded(model, torch.bfloat16) if kind.endswith("in float32") else model
    model = model.to(torch.bfloat16) if kind == "bfloat16" else model
    before, secret = deepcopy(model), key(Parameters(bits=64, pools=128))
    made = neuralmark.imprint(model, secret, budget=budget)
    old, new = (
        torch.cat([m.get_parameter(name).detach().double().flatten() for name in LAYERS])
        for m in (before, model)
    )
    change = float((new - old).norm() / old.norm())
    assert made.change_relative == pytest.approx(change, rel=1e-6)
    least = 0.3 if kind == "pruned" else 0.6  # uniform weights with little room
    assert least * budget < 100 * change <= 1.003 * budget


def test_the_same_key_writes_the_same_weights_and_another_key_others() -> None:
    one, other = key(PARAMETERS), key(PARAMETERS)
    models = [network().to(torch.bfloat16) for _ in range(3)]
    for model, secret in zip(models, (one, one, other), strict=True):
        neuralmark.imprint(model, secret, strength=1)
    first, again, else_ = (model.get_parameter("2.weight").detach() for model in models)
    assert torch.equal(first, again)
    assert (first != else_).float().mean() > 0.05


def broken(kind: str) -> torch.nn.Sequential:
    """A network whose first layer cannot carry a mark."""
    model = network()
    weight = model.get_parameter("0.weight")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        if kind == "zero":
            weight.zero_()
        elif kind == "same":
            weight.fill_(0.25)
        elif kind == "codebook":
            values = torch.tensor([-0.31, -0.1007, 0.0213, 0.1999])
            weight.copy_(values[torch.randint(4, weight.shape, generator=generator)])
        else:
            weight.copy_(1e-41 * torch.randn(weight.shape, generator=generator))
    return model


@pytest.mark.parametrize("kind", ["zero", "same", "codebook", "denormal"])
def test_tensors_that_cannot_carry_a_mark_stay_as_they_are(kind: str) -> None:
    model, secret = broken(kind), key(PARAMETERS)
    before = deepcopy(model)
    made = neuralmark.imprint(model, secret)
    assert made.tensors == ("0.weight", "2.weight")
    assert made.verdict is not None
    assert made.verdict.matched == 160
    assert not moved(before, model, "0.weight").any()
    assert moved(before, model, "2.weight").any()
    (warning,) = made.warnings
    assert warning.startswith("1 of 2 tensors stay as they are (0.weight: ")
    assert neuralmark.verify(model, secret).verified


@pytest.mark.parametrize("kind", ["zero", "same", "codebook", "denormal"])
def test_named_tensors_that_cannot_carry_a_mark_are_refused(kind: str) -> None:
    model = broken(kind)
    before = deepcopy(model)
    for names in (LAYERS, ["0.weight"], "0.weight"):
        with pytest.raises(UnsuitableTensorError, match=r"'0\.weight' cannot carry a mark: "):
            neuralmark.imprint(model, key(Parameters(bits=64, pools=128)), tensors=names)
    for name in LAYERS:
        assert not moved(before, model, name).any()


def test_a_model_in_which_nothing_can_carry_a_mark_is_refused() -> None:
    model = broken("zero")
    torch.nn.init.zeros_(model.get_parameter("2.weight"))
    with pytest.raises(UnsuitableTensorError, match="all values are zero"):
        neuralmark.imprint(model, key(PARAMETERS))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused_wherever_it_is(bad: float) -> None:
    for place in range(0, 4096, 512):
        model = network()
        with torch.no_grad():
            model.get_parameter("2.weight").view(-1)[place] = bad
        before = deepcopy(model)
        with pytest.raises(NonFiniteError):
            neuralmark.imprint(model, key(PARAMETERS))
        assert not moved(before, model, "0.weight").any()


def test_a_grid_without_room_for_the_margin_is_infeasible() -> None:
    model = rounded(network(), torch.float8_e4m3fn)
    with pytest.raises(InfeasibleError):
        neuralmark.imprint(model, key(PARAMETERS), strength=1000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_training_keeps_every_bit_and_the_zeros_of_a_pruned_module(dtype: torch.dtype) -> None:
    model = pruned(network()).to(dtype)
    masks = {name: model.get_parameter(name).detach() != 0 for name in LAYERS}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    mark = neuralmark.attach(
        model, optimizer, key(PARAMETERS), options=neuralmark.AttachOptions(mode="projection")
    )
    assert mark.rate == 1

    def hold(*_: object) -> None:  # what keeps a pruned model pruned: no gradient reaches a zero
        for name, mask in masks.items():
            gradient = model.get_parameter(name).grad
            assert gradient is not None
            gradient.mul_(mask)

    optimizer.register_step_pre_hook(hold)
    for step in range(6):
        train(model, optimizer, range(step, step + 1))
        assert mark.rate == 1
        assert mark.margin > 1.95
        for name, mask in masks.items():
            assert not model.get_parameter(name).detach()[~mask].any()
    assert neuralmark.verify(model, mark._site.key, claim=mark.claim()).matched == 160


def test_training_a_half_precision_module_moves_weights_by_steps_of_its_type() -> None:
    model = network().to(torch.bfloat16)
    before = deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    mark = neuralmark.attach(
        model,
        optimizer,
        key(PARAMETERS),
        options=neuralmark.AttachOptions(mode="projection", strength=1),
    )
    assert mark.rate == 1
    changed = moved(before, model, "2.weight")
    assert 0.05 < changed.float().mean() < 0.6
    once = deepcopy(model)
    train(model, optimizer, range(3))
    assert mark.rate == 1
    assert moved(once, model, "2.weight").float().mean() < 0.02
