"""Passports in a live network: a second branch over its weights, which never ships."""

import copy
from pathlib import Path
from typing import Any

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
    NonFiniteError,
    ParameterError,
    PassportMismatchError,
    TriggerMismatchError,
    UnknownTensorError,
)
from neuralmark.training.norms import PassportNorm
from neuralmark.training.suspecting import suspicion_of
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
    for classes in (1, "10", 10.0, True, None, 2**40):
        with pytest.raises(ParameterError, match="two or more") as refused:
            private.labels(triggers, classes)  # type: ignore[arg-type]
        one_line(refused.value)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(7, 10))
    with pytest.raises(TriggerMismatchError, match=r"of shape \(1, 8, 8\) each") as caught:
        private.suspicion(flat, triggers, 10)
    one_line(caught.value)
    for number in (3, 100):
        with pytest.raises(TriggerMismatchError, match="as many classes as it has") as caught:
            private.suspicion(model, triggers, number)
        one_line(caught.value)


class Answering(nn.Module):
    """Gives a score for each of ten classes, or whatever it was told."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, given: torch.Tensor) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, float):
            return torch.full((len(given), 10), self.answer)
        return self.answer


def third() -> tuple[Passports, Triggers]:
    private = Passports(learnt(), key_for("deepipr", version=3), LAYERS)
    return private, Triggers.of(torch.rand(8, 1, 8, 8))


def test_a_suspicion_takes_the_path_of_its_triggers(tmp_path: Path) -> None:
    private, triggers = third()
    path = tmp_path / "v3.triggers"
    triggers.save(path, key_for("deepipr", version=3))
    wanted = private.suspicion(learnt(), triggers, 10)
    assert private.suspicion(learnt(), path, 10) == wanted
    assert private.suspicion(learnt(), str(path), np.int64(10)) == wanted  # type: ignore[arg-type]
    assert torch.equal(private.labels(path, 10), private.labels(triggers, 10))
    claimed = suspicion_of(learnt(), key_for("deepipr", version=3), path, 10, tensors=LAYERS)
    assert claimed == wanted
    for wrong in (torch.rand(8, 1, 8, 8), 3):
        with pytest.raises(ParameterError, match="triggers must be Triggers or the path") as caught:
            private.suspicion(learnt(), wrong, 10)  # type: ignore[arg-type]
        one_line(caught.value)
    with pytest.raises(TriggerMismatchError, match="none are given"):
        private.suspicion(learnt(), None, 10)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["model.safetensors", learnt().state_dict(), None])
def test_a_suspicion_needs_a_network_that_runs(model: Any) -> None:
    private, triggers = third()
    with pytest.raises(LiveModelError, match="load it into its module") as caught:
        private.suspicion(model, triggers, 10)
    one_line(caught.value)


def test_what_a_network_answers_and_raises_is_named() -> None:
    private, triggers = third()
    for number in (np.nan, np.inf):
        with pytest.raises(NonFiniteError, match="answers the triggers with NaN"):
            private.suspicion(Answering(float(number)), triggers, 10)
    assert private.suspicion(Answering(-1.0), triggers, 10).triggers == 8
    wrongs = (AssertionError("shape"), KeyError("x"), StopIteration(), RuntimeError("no"))
    for wrong in wrongs:
        with pytest.raises(TriggerMismatchError, match=type(wrong).__name__) as caught:
            private.suspicion(Answering(wrong), triggers, 10)
        one_line(caught.value)
    complexes = torch.ones(8, 10, dtype=torch.complex64)
    for answer in (None, {"logits": torch.ones(8, 10)}, torch.ones(8), complexes):
        with pytest.raises(TriggerMismatchError, match="a score for each") as caught:
            private.suspicion(Answering(answer), triggers, 10)
        one_line(caught.value)


def test_only_keys_of_the_third_version_draw_labels() -> None:
    _, triggers = third()
    others = [key_for(name) for name in ("deepipr", "passport-aware", "trapdoor")]
    for key in (key_for("deepipr", version=1), *others):
        private = Passports(learnt(), key, LAYERS)
        with pytest.raises(ParameterError, match=r"own=\{'version': 3\}") as caught:
            private.labels(triggers, 10)
        one_line(caught.value)
        with pytest.raises(ParameterError, match=r"own=\{'version': 3\}"):
            private.suspicion(learnt(), triggers, 10)


def test_a_part_of_a_private_branch_is_named(tmp_path: Path) -> None:
    private = Passports(learnt(), key_for("passport-aware"), LAYERS)
    state = dict(private.state_dict())
    first = next(iter(state))
    for part in ({}, {first: state[first]}):
        with pytest.raises(PassportMismatchError, match="are missing, such as") as caught:
            private.load_state_dict(part)
        one_line(caught.value)
    assert private.load_state_dict({first: state[first]}, strict=False).missing_keys
    for wrong in ("private.pt", tmp_path / "private.pt", None, {first: "x"}, {first: None}):
        with pytest.raises(ParameterError, match=r"private\.state_dict\(\) gave") as refused:
            private.load_state_dict(wrong)  # type: ignore[arg-type]
        one_line(refused.value)


def test_a_path_is_no_key() -> None:
    with pytest.raises(ParameterError, match="expected a Key, not str"):
        Passports(learnt(), "acme.nmkey", LAYERS)  # type: ignore[arg-type]


def test_norms_are_told_for_marked_layers_only() -> None:
    key = key_for("deepipr")
    for norms, said in (
        ({"0": "1"}, "'0', which is none of the layers"),
        ({"4.weight": "5"}, "'4.weight', which is none of the layers"),
        (["5"], "name the norm behind each layer"),
        ("5", "name the norm behind each layer"),
        ({"4": 5}, "name the norm behind each layer"),
        ({"4": "8"}, "'8' is named as the norm behind two layers"),
    ):
        with pytest.raises(ParameterError, match=said) as caught:
            Passports(learnt(), key, LAYERS, norms=norms)  # type: ignore[arg-type]
        one_line(caught.value)
    assert Passports(learnt(), key, LAYERS, norms={"4": "5"}).tensors == ["4.weight", "7.weight"]


@pytest.mark.parametrize("part", [4, 5])
def test_a_layer_or_norm_that_was_replaced_is_noticed(part: int, inputs: torch.Tensor) -> None:
    model = learnt()
    private = Passports(model, key_for("deepipr", version=1), LAYERS)
    before, model[part] = model[part], copy.deepcopy(model[part])
    for use in (lambda: private(inputs), private.install):
        with pytest.raises(PassportMismatchError, match=f"'{part}' was replaced") as caught:
            use()
        one_line(caught.value)
    model[part] = before
    private(inputs)
    private.install()
    model[part] = copy.deepcopy(model[part])
    for use in (lambda: private(inputs), private.plain):
        with pytest.raises(PassportMismatchError, match=f"'{part}' was replaced"):
            use()
    model[part] = nn.Identity()
    del model[8:]
    with pytest.raises(PassportMismatchError, match="was replaced"):
        private(inputs)
