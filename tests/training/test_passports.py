"""Passports in a live network: a second branch over its weights, which never ships."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import neuralmark
from neuralmark import Key, Passports, Triggers, schemes
from neuralmark.core.readout import Known
from neuralmark.errors import (
    ClaimMismatchError,
    LiveModelError,
    MissingNormError,
    ParameterError,
    PassportMismatchError,
    TriggerMismatchError,
    UnknownTensorError,
)
from neuralmark.training.norms import PassportNorm
from tests.support.checks import one_line
from tests.support.learnt import digits
from tests.support.passports import LAYERS, branched, key_for, learnt, normed, right


@pytest.fixture
def inputs() -> torch.Tensor:
    return digits().test_inputs[:16]


def test_both_branches_learn_and_the_bits_are_in_the_weights() -> None:
    made = branched()
    model = made.model()
    private = made.branch(model).eval()
    assert neuralmark.verify(model, made.key, claim=made.claim).verified
    assert neuralmark.verify(model.state_dict(), made.key, claim=made.claim).verified
    assert right(model) > 0.9
    assert right(private) > 0.9
    # With passports of another key the branch is a stranger, and so is the mark.
    other = Passports(model, key_for("passport-aware", 2), LAYERS)
    for mine, theirs in zip(other.norms, private.norms, strict=True):
        assert mine.mlp is not None
        assert theirs.mlp is not None
        mine.mlp.load_state_dict(theirs.mlp.state_dict())
        mine.normal.load_state_dict(theirs.normal.state_dict())
    assert right(other.eval()) < right(private) - 0.1


def test_the_deployed_network_is_a_plain_one(inputs: torch.Tensor) -> None:
    model = learnt()
    names = list(model.state_dict())
    means = [model.get_buffer(f"{norm}.running_mean").clone() for norm in (5, 8)]
    private = Passports(model, key_for("passport-aware"), LAYERS)
    private.train()
    model.train()
    with torch.no_grad():
        private(inputs)
    model.eval()
    assert list(model.state_dict()) == names
    assert [type(part) for part in model] == [type(part) for part in normed()]
    for norm, mean in zip((5, 8), means, strict=True):  # it counts for itself
        assert torch.equal(model.get_buffer(f"{norm}.running_mean"), mean)
    assert any("running_mean" in name for name in private.state_dict())
    assert not any(name.startswith("branch") for name in model.state_dict())


def test_a_failing_run_leaves_the_network_as_it_was() -> None:
    model = learnt()
    private = Passports(model, key_for("deepipr"), LAYERS)
    with pytest.raises(RuntimeError):
        private(torch.ones(1, 3, 8, 8))
    assert not any(isinstance(part, PassportNorm) for part in model.modules())


@pytest.mark.parametrize(("name", "shared"), [("deepipr", True), ("trapdoor", False)])
def test_statistics_are_shared_or_not(name: str, shared: bool, inputs: torch.Tensor) -> None:
    model = learnt()
    mean = model.get_buffer("5.running_mean").clone()
    private = Passports(model, key_for(name), LAYERS)
    model.train()
    private(inputs)
    assert torch.equal(model.get_buffer("5.running_mean"), mean) != shared


def test_the_factors_are_what_the_key_reads() -> None:
    """γ of the live branch and γ from the file: one number, two programs."""
    model, key = learnt(), key_for("passport-aware")
    private = Passports(model, key, LAYERS)
    mark = key.at(private.placement)
    scheme = schemes.of(mark)
    assert isinstance(scheme, schemes.PassportScheme)
    laid = [model.get_parameter(name).detach().reshape(-1) for name in private.tensors]
    read = scheme.factors(Known.of(mark), torch.cat(laid).double().numpy())
    live = torch.cat([norm.signed().detach() for norm in private.norms]).numpy()
    np.testing.assert_allclose(live[mark.extra["rows"]], read, atol=1e-5)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.GroupNorm])
def test_shipped_passports_fold_into_plain_norms(
    norm: type[nn.Module], inputs: torch.Tensor
) -> None:
    model = normed(norm)
    private = Passports(model, key_for("deepipr", version=1), LAYERS)
    plain = model.eval()(inputs)
    private.install()
    assert any(name.endswith("scale") for name in model.state_dict())  # they ship
    shipped = model.eval()(inputs)
    assert not torch.allclose(plain, shipped, atol=1e-3)
    assert torch.equal(private(inputs), shipped)
    private.plain()
    assert not any(name.endswith("scale") for name in model.state_dict())
    torch.testing.assert_close(model.eval()(inputs), shipped, atol=1e-4, rtol=1e-4)
    private.plain()  # nothing more to do


def test_only_the_first_version_ships() -> None:
    for name in ("deepipr", "passport-aware", "trapdoor"):
        with pytest.raises(ParameterError, match="keeps its passports") as caught:
            Passports(learnt(), key_for(name), LAYERS).install()
        one_line(caught.value)


def test_a_network_without_norms_is_named() -> None:
    with pytest.raises(MissingNormError, match="no batch norm") as caught:
        Passports(normed(None), key_for("deepipr"), LAYERS)
    one_line(caught.value)
    half = nn.Sequential(nn.Conv2d(1, 160, 3), nn.ReLU(), nn.Conv2d(160, 8, 3), nn.BatchNorm2d(8))
    with pytest.raises(MissingNormError, match="'0' has 160 output channels") as caught:
        Passports(half, key_for("deepipr"), ["0"])
    one_line(caught.value)
    bare = nn.Sequential(nn.Conv2d(1, 160, 3), nn.BatchNorm2d(160, affine=False))
    with pytest.raises(MissingNormError, match="affine=False"):
        Passports(bare, key_for("deepipr"), ["0"])


def test_a_norm_elsewhere_can_be_named(inputs: torch.Tensor) -> None:
    class Crossed(nn.Module):
        """Norms stand before their layers in the list of modules."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(160)
            self.conv = nn.Conv2d(1, 160, 3)

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            moved: torch.Tensor = self.norm(self.conv(given))
            return moved

    model, key = Crossed().eval(), key_for("deepipr")
    with pytest.raises(MissingNormError):
        Passports(model, key, ["conv"])
    private = Passports(model, key, ["conv"], norms={"conv": "norm"})
    assert not torch.allclose(private(inputs), model(inputs), atol=1e-3)
    with pytest.raises(MissingNormError, match="did you mean 'norm'"):
        Passports(model, key, ["conv"], norms={"conv": "nrm"})


def test_what_is_no_network_is_named(tmp_path: Path) -> None:
    with pytest.raises(LiveModelError, match="load it into its module") as caught:
        Passports(tmp_path / "m.safetensors", key_for("deepipr"), LAYERS)  # type: ignore[arg-type]
    one_line(caught.value)
    with pytest.raises(ParameterError, match="no passports"):
        Passports(learnt(), Key.new(), LAYERS)
    with pytest.raises(ParameterError, match="name the layers"):
        Passports(learnt(), key_for("deepipr"))
    with pytest.raises(UnknownTensorError):
        Passports(learnt(), key_for("deepipr"), ["99"])


def test_passports_for_other_layers_are_named() -> None:
    made = branched()
    model = made.model()
    wide = nn.Sequential(nn.Conv2d(1, 160, 3), nn.BatchNorm2d(160))
    with pytest.raises(PassportMismatchError, match="no such layer") as caught:
        Passports(wide, made.key, claim=made.claim)
    one_line(caught.value)
    with pytest.raises(PassportMismatchError, match="these layers") as caught:
        Passports(wide, made.key, ["0"]).load_state_dict(made.private)
    one_line(caught.value)
    foreign = Passports(model, key_for("passport-aware", 2), LAYERS)
    with pytest.raises(PassportMismatchError, match="not those that the key makes"):
        foreign.load_state_dict(made.private)
    with pytest.raises(ClaimMismatchError):
        Passports(model, key_for("passport-aware", 2), claim=made.claim)


def test_labels_of_triggers_raise_a_suspicion_with_an_exact_chance() -> None:
    """DeepIPR's third version: triggers get labels that the key draws."""
    model, key = learnt(), key_for("deepipr", version=3)
    triggers = Triggers.of(torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(3)))
    private = Passports(model, key, LAYERS)
    clean = private.suspicion(model, triggers, 10)
    assert clean.matched < 10
    labels = private.labels(triggers, 10)
    other = Triggers.of(np.asarray(triggers.inputs, np.float32) + np.float32(1e-3))
    assert (private.labels(other, 10) != labels).any()  # the triggers are committed to
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    inputs = torch.from_numpy(np.array(triggers.inputs))
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    found = private.suspicion(model, triggers, 10)
    assert found.rate == 1.0
    assert found.luck_log2 == pytest.approx(-24 * np.log2(10))
    with pytest.raises(ParameterError, match="two or more"):
        private.labels(triggers, 1)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(7, 10))
    with pytest.raises(TriggerMismatchError, match=r"of shape \(1, 8, 8\) each") as caught:
        private.suspicion(flat, triggers, 10)
    one_line(caught.value)
    for classes in (3, 100):
        with pytest.raises(TriggerMismatchError, match="as many classes as it has") as caught:
            private.suspicion(model, triggers, classes)
        one_line(caught.value)
