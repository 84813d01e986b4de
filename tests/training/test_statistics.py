"""Triggers in a network with batch norms: read in evaluation, trained as the norms are trained."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import neuralmark
from neuralmark import AttachOptions, Triggers
from neuralmark.training.derived import at_rest
from neuralmark.training.statistics import moving_along
from tests.support.learnt import digits
from tests.support.triggered import drawn, everything, key_for


def normed(width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)),
    )


def right(model: nn.Module) -> float:
    with torch.no_grad():
        return float((model(digits().test_inputs).argmax(1) == digits().test_labels).float().mean())


@pytest.mark.parametrize("form", ["paper", "released"])
def test_a_network_with_batch_norms_still_works_in_evaluation(form: str) -> None:
    """Without it, 78 % (paper): in training mode the same network has 97 %.

    The conv layers ran away from the statistics that evaluation takes.
    """
    key, data, model = key_for("deepsigns", 7, form=form), digits(), normed()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    options = AttachOptions(tensors=["8"], triggers=drawn(key), strength=0.3)
    mark = neuralmark.attach(model, optimizer, key, options)
    order = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(10):
        for some in torch.randperm(len(data.inputs), generator=order).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(model(data.inputs[some]), data.labels[some]).backward()
            optimizer.step()
    model.eval()
    assert right(model) > 0.88
    assert mark.rate > 0.6


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(6), (5, 6)),
        (nn.BatchNorm1d(6, affine=False), (5, 6, 3)),
        (nn.BatchNorm2d(6), (2, 6, 3, 3)),
        (nn.InstanceNorm2d(6, track_running_stats=True), (2, 6, 3, 3)),
    ],
)
def test_the_value_is_that_of_evaluation_and_the_gradient_that_of_training(
    norm: Any, shape: tuple[int, ...]
) -> None:
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    given = torch.randn(shape, requires_grad=True)
    kept = {name: value.clone() for name, value in norm.state_dict().items()}
    with moving_along(norm), at_rest(norm):
        moved = norm(given)
    torch.testing.assert_close(moved, norm.eval()(given))
    (slope,) = torch.autograd.grad((moved * torch.randn(shape)).sum(), given)
    axes = [axis for axis in range(len(shape)) if axis != 1]
    assert float(slope.sum(axes).abs().max()) < 1e-4  # nothing is won by moving a channel's mean
    size = ((given - given.mean(axes, keepdim=True)).detach() * slope).sum(axes)
    assert float(size.abs().max()) < 1e-3  # nor its size
    for name, value in norm.state_dict().items():
        assert torch.equal(value, kept[name])


def test_norms_in_evaluation_and_single_values_keep_their_gradient() -> None:
    frozen, single = nn.BatchNorm1d(4).eval(), nn.BatchNorm1d(4)
    for norm, count in ((frozen, 5), (single, 1)):
        given = torch.randn(count, 4, requires_grad=True)
        with moving_along(norm), at_rest(norm):
            norm(given).sum().backward()
        assert given.grad is not None
        assert float(given.grad.abs().min()) > 0.5


def test_a_single_trigger_can_be_learnt_behind_a_norm() -> None:
    key, model = key_for("featuremap", channels=8, side=4), normed()
    triggers = Triggers.draw(everything(), key, count=1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    options = AttachOptions(tensors=["5"], triggers=triggers)
    neuralmark.attach(model, optimizer, key, options)
    weight = next(model[4].parameters())
    before = weight.detach().clone()
    optimizer.step()
    assert not torch.equal(before, weight)
