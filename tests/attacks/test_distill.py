"""A student from fresh weights: it answers as the teacher does, and holds nothing of the mark."""

from typing import Any

import pytest

from neuralmark import Key, imprint
from neuralmark.attacks.contract import Data
from neuralmark.errors import DataMismatchError, MissingDataError
from tests.support.models import QUICK

torch = pytest.importorskip("torch")

from neuralmark.attacks.distill import Distill, divergence, fresh  # noqa: E402
from neuralmark.attacks.engine.launch import launch  # noqa: E402
from neuralmark.attacks.engine.options import LaunchOptions  # noqa: E402


def teacher() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 128),
        torch.nn.BatchNorm1d(128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 3),
    ).eval()


def data(model: Any, count: int = 800) -> Data:
    inputs = torch.randn(count, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        labels = model(inputs).argmax(1)
    half = count // 2
    return Data(inputs[:half], labels[:half], inputs[half:], labels[half:])


def test_the_student_learns_and_the_mark_is_gone() -> None:
    model = teacher()
    key = Key(QUICK, b"", salt=bytes(32), secret=bytes([1]) * 32)
    claim = imprint(model, key, tensors=["2.weight"], strength=1.0).claim
    given = data(model)
    result = launch(Distill(steps=150, lr=3e-3, batch=64), model, key, claim=claim, data=given)
    assert result.before is not None
    assert result.before.verified
    assert result.after is not None
    assert 0.3 < result.after.rate < 0.7
    assert not result.survived
    untaught = launch(Distill(steps=1, lr=0.0, batch=64), model, data=given)
    assert result.figures["agreement"] > 0.8
    assert result.figures["agreement"] > untaught.figures["agreement"] + 0.1
    assert (result.steps, result.queries) == (150, 150 * 64)


def test_the_teacher_is_left_alone_and_runs_repeat() -> None:
    model = teacher()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    given = data(model)
    one, two, other = (
        launch(Distill(steps=3), model, options=LaunchOptions(seed=s), data=given)
        for s in (1, 1, 2)
    )
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    assert one.model is not None
    assert two.model is not None
    assert other.model is not None
    first = [each.model.state_dict()["2.weight"] for each in (one, two, other) if each.model]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


class Bare(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Parameters of its own, with nothing to reset them."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.randn(32, 32))
        self.gain = torch.nn.Parameter(torch.randn(32))
        self.bias = torch.nn.Parameter(torch.randn(32))


def test_nothing_of_the_old_weights_is_left() -> None:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"bare": Bare(), "norm": torch.nn.BatchNorm1d(4), "own": teacher()})
    model["norm"].running_mean.fill_(3.0)
    for value in model.parameters():
        value.requires_grad_(False).add_(0.1)
    made: Any = fresh(model)
    for (name, old), new in zip(model.named_parameters(), made.parameters(), strict=True):
        assert new.requires_grad
        if old.ndim >= 2:
            flat = torch.stack([old.reshape(-1), new.detach().reshape(-1)])
            assert abs(float(torch.corrcoef(flat)[0, 1])) < 0.3, name
        else:
            assert not torch.equal(old, new), name
    assert float(made["norm"].running_mean.abs().max()) == 0


def test_divergence_is_zero_for_the_same_answers_only() -> None:
    answers = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert float(divergence(answers, answers, 2.0)) == pytest.approx(0, abs=1e-6)
    assert float(divergence(answers, answers + 7, 2.0)) == pytest.approx(0, abs=1e-5)
    assert float(divergence(answers, -answers, 2.0)) > 0.1


def test_what_it_cannot_do_without() -> None:
    model = teacher()
    with pytest.raises(MissingDataError):
        launch(Distill(), model)
    given = data(model)
    wrong = Data(given.inputs[:, :4], given.labels, given.test_inputs[:, :4], given.test_labels)
    with pytest.raises(DataMismatchError):
        launch(Distill(steps=1), model, data=wrong)
