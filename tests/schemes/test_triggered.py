"""Schemes that read a live model at its triggers: formulas, chance, training, attacks, forging."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.utils import prune

import neuralmark
from neuralmark import AttachOptions, Claim, Key, Triggers, schemes
from neuralmark.core.key import Terms
from neuralmark.core.readout import Known
from neuralmark.errors import (
    LiveModelError,
    NonFiniteError,
    ParameterError,
    TooFewCarriersError,
    TriggerMismatchError,
    UnknownTensorError,
    UnsuitableTensorError,
)
from neuralmark.marking.rechecking import Recheck
from neuralmark.schemes import TriggerScheme
from neuralmark.training.activations import LayerAtTriggers
from tests.support.checks import one_line
from tests.support.learnt import accuracy, digits, fit
from tests.support.triggered import LAYER, TRIGGERED, drawn, everything, fresh, key_for, marked


def scheme_of(name: str) -> TriggerScheme:
    scheme = schemes.get(name)
    assert isinstance(scheme, TriggerScheme)
    return scheme


def held_out(name: str, model: Any) -> float:
    """The share of bits that test images of the same classes give."""
    made = marked(name)
    data = digits()
    kept = [np.flatnonzero(data.test_labels.numpy() == label)[:30] for label in range(10)]
    places = np.concatenate(kept)
    others = Triggers.of(data.test_inputs.numpy()[places], data.test_labels.numpy()[places])
    values = LayerAtTriggers(model, LAYER[name], made.key, others).values().detach().double()
    mark = made.key.at(made.claim.placement, triggers=made.triggers.digest)
    pooled = values.reshape(30, -1).mean(0).numpy()
    known = Known.of(mark)
    return float((scheme_of(name).logits(known, pooled) * known.signs > 0).mean())


@pytest.mark.parametrize("name", TRIGGERED)
def test_bits_are_projections_of_the_mean_features_by_loops(name: str) -> None:
    scheme, rng = scheme_of(name), np.random.default_rng(0)
    each, groups, width = (3, 4, 6) if name == "deepsigns" else (1, 4, 6)
    terms = Terms(scheme.parameters(bits=8), (("a", (each, groups, width)),), triggers=bytes(64))
    mark = scheme.derive(bytes(32), terms)
    values = rng.standard_normal((each, groups, width))
    carriers = scheme.carriers(mark, terms.placement)
    pooled = values.reshape(-1)[carriers.positions()].reshape(-1, carriers.pools).mean(0)
    logits = scheme.logits(Known.of(mark), pooled)
    for group in range(groups):
        for bit in range(2):
            total = 0.0
            for feature in range(width):
                mean = sum(values[i, group, feature] for i in range(each)) / each
                total += mean * float(mark.matrix[feature, 2 * group + bit])
            assert logits[2 * group + bit] == pytest.approx(total)
    tensor = torch.from_numpy(pooled)
    theirs = scheme.logits(Known.of(mark, tensor), tensor)
    np.testing.assert_allclose(theirs.numpy(), logits, rtol=1e-6)


def test_the_released_loss_is_its_formula() -> None:
    scheme = scheme_of("deepsigns")
    terms = Terms(scheme.parameters(bits=6), (("a", (2, 3, 5)),), triggers=bytes(64))
    mark = scheme.derive(bytes(32), terms)
    f = np.random.default_rng(1).standard_normal((2, 3, 5))
    mu = mark.extra["centres"].astype(np.float64)
    assert ((mu >= 0) & (mu < 1)).all()
    pulled = sum(0.5 * ((f[i, k] - mu[k]) ** 2).sum() for i in range(2) for k in range(3))
    apart = 0.0
    for k in range(3):
        near = min((j for j in range(3) if j != k), key=lambda j: ((mu[k] - mu[j]) ** 2).sum())
        distance = ((mu[k] - mu[near]) ** 2).sum()
        apart += (mu[k] @ mu[near] * distance - distance) / 3
    length = sum(abs(1 - mu[k] @ mu[k]) for k in range(3))
    bits = 0.0
    for j, bit in enumerate(mark.bits):
        share = 1 / (1 + math.exp(-float(mu[j // 2] @ mark.matrix[:, j])))
        bits -= math.log(share if bit else 1 - share)
    known = Known.of(mark)
    known = replace(known, extra={"centres": mu})
    given = f.reshape(2, -1)
    want = 0.01 * (pulled + apart + length + bits)
    assert float(scheme.loss(known, given)) == pytest.approx(want)

    paper = scheme.derive(
        bytes(32), replace(terms, parameters=scheme.parameters(6, own={"form": "paper"}))
    )
    means = given.mean(0)
    gathered = sum(((row - means) ** 2).sum() for row in given)
    told = float(scheme.loss(Known.of(paper), given))
    assert told == pytest.approx(0.01 * (gathered + float(scheme.summed(Known.of(paper), means))))


def test_the_feature_map_is_read_from_its_corner_channel_after_channel() -> None:
    scheme = scheme_of("featuremap")
    parameters = scheme.parameters(own={"channels": 2, "side": 2})
    maps = np.arange(3 * 4 * 3 * 5).reshape(3, 4, 3, 5)
    read = scheme.features(parameters, maps)
    assert read[1].tolist() == [maps[1, c, y, x] for c in (0, 1) for y in (0, 1) for x in (0, 1)]
    for wrong in (np.zeros((3, 1, 3, 5)), np.zeros((3, 4, 1, 5)), np.zeros((3, 40))):
        with pytest.raises(TriggerMismatchError, match="name a convolution"):
            scheme.features(parameters, wrong)


@pytest.mark.parametrize("name", TRIGGERED)
def test_everything_shapes_the_mark(name: str) -> None:
    key = key_for(name)
    placement = (("a", (4, 10, 16)),)
    bits = key.at(placement, triggers=bytes(64)).bits
    others = (
        key.at(placement, triggers=b"1" * 64),
        key.at((("b", (4, 10, 16)),), triggers=bytes(64)),
        key.at((("a", (5, 10, 16)),), triggers=bytes(64)),
        key_for(name, 2).at(placement, triggers=bytes(64)),
        Key(key.parameters, b"x", salt=bytes(32), secret=key.secret).at(
            placement, triggers=bytes(64)
        ),
    )
    for other in others:
        assert 0.3 < (bits == other.bits).mean() < 0.7


@pytest.mark.parametrize("name", TRIGGERED)
def test_a_trained_mark_verifies_and_others_do_not(name: str) -> None:
    made = marked(name)
    model = made.model()
    verdict = made.read(model)
    assert (verdict.matched, verdict.status) == (160, "verified")
    assert accuracy(model) > 0.93
    assert verdict.trigger_digest == made.triggers.digest.hex() == made.claim.triggers
    assert neuralmark.Verdict.from_dict(verdict.to_dict()) == verdict
    named = neuralmark.verify(model, made.key, tensors=[LAYER[name]], triggers=made.triggers)
    assert named.verified
    stranger = neuralmark.verify(
        model, key_for(name, 2), tensors=[LAYER[name]], triggers=made.triggers
    )
    assert 0.3 < stranger.rate < 0.7
    assert not made.read(fresh(name)).verified


def test_the_form_of_the_paper_trains_too() -> None:
    made = marked("deepsigns", "paper")
    assert made.read(made.model()).verified


def test_deepsigns_sits_in_the_class_mean() -> None:
    assert held_out("deepsigns", marked("deepsigns").model()) > 0.9


@pytest.mark.parametrize("name", TRIGGERED)
def test_fine_tuning_and_pruning(name: str) -> None:
    made = marked(name)
    model = made.model()
    fit(model, torch.optim.SGD(model.parameters(), 0.001, momentum=0.9), 1)
    assert made.read(model).rate > 0.9
    model = made.model()
    for module in list(model.modules()):
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
            prune.l1_unstructured(module, "weight", amount=0.5)
            prune.remove(module, "weight")
    assert made.read(model).verified


@pytest.mark.parametrize("name", TRIGGERED)
def test_permuted_channels_fall_to_chance(name: str) -> None:
    made = marked(name)
    model = made.model()
    before = model(digits().test_inputs)
    state = model.state_dict()
    order = torch.randperm(128 if name == "deepsigns" else 96)
    if name == "deepsigns":
        for each in ("3.weight", "3.bias"):
            state[each] = state[each][order]
        state["5.weight"] = state["5.weight"][:, order]
    else:
        for each in ("conv2.weight", *(f"bn2.{part}" for part in ("weight", "bias"))):
            state[each] = state[each][order]
        for each in ("bn2.running_mean", "bn2.running_var"):
            state[each] = state[each][order]
        state["fc.weight"] = state["fc.weight"].reshape(10, 96, 4)[:, order].reshape(10, -1)
    model.load_state_dict(state)
    torch.testing.assert_close(model(digits().test_inputs), before, rtol=1e-3, atol=1e-3)
    verdict = made.read(model)
    assert not verdict.verified
    assert 0.25 < verdict.rate < 0.75


@pytest.mark.parametrize("name", TRIGGERED)
def test_a_matrix_that_is_learnt_matches_and_proves_nothing(name: str) -> None:
    """No weight is touched: for any bits, a matrix that fits is found in closed form."""
    victim, key = fresh(name), key_for(name, 3)
    triggers = drawn(key)
    layer = LayerAtTriggers(victim, LAYER[name], key, triggers)
    ((_, (each, groups, width)),) = layer.placement()
    values = layer.values().detach().double().numpy()
    means = values.reshape(each, groups, width).mean(0)
    wanted = np.random.default_rng(0).integers(0, 2, key.parameters.bits)
    signs = 2.0 * wanted - 1.0
    back = np.linalg.pinv(means)
    columns = [back[:, [j // (len(signs) // groups)]] * signs[j] for j in range(len(signs))]
    matrix = np.concatenate(columns, axis=1).astype(np.float32)
    raw = Key.chosen(key.parameters, matrix, bits=wanted.astype(np.uint8))
    verdict = neuralmark.verify(victim, raw, tensors=[LAYER[name]], triggers=triggers)
    assert (verdict.matched, verdict.status) == (160, "matches-unproven")
    assert schemes.get(name).theory in verdict.reason


@pytest.mark.parametrize("name", TRIGGERED)
def test_a_file_without_model_code_says_what_to_give(name: str, tmp_path: Path) -> None:
    made = marked(name)
    path = tmp_path / "m.safetensors"
    save_file(made.model().state_dict(), path)
    for suspect in (path, made.model().state_dict()):
        with pytest.raises(
            LiveModelError, match="the live module in the place of the file, and triggers="
        ):
            neuralmark.verify(suspect, made.key, claim=made.claim, triggers=made.triggers)
    with pytest.raises(ParameterError, match=name):
        neuralmark.embed(path, made.key, tmp_path / "o.safetensors")
    with pytest.raises(LiveModelError):
        neuralmark.rebuild_claim(path, made.key)


@pytest.mark.parametrize("claimed", [True, False])
def test_a_verdict_on_activations_is_rechecked(claimed: bool) -> None:
    made = marked("deepsigns")
    verdict, claim = made.read(made.model()), made.claim if claimed else None

    def again(model: Any, triggers: Triggers | None = made.triggers) -> Recheck:
        return neuralmark.recheck(verdict, model, made.key, claim=claim, triggers=triggers)

    found = again(made.model())
    assert found.holds, found
    assert found.again is not None
    assert found.again.matched == 160
    other = again(fresh("deepsigns"))
    assert not other.holds
    assert "bits matched" in [point.name for point in other.broken]
    with pytest.raises(TriggerMismatchError):
        again(made.model(), None)
    with pytest.raises(LiveModelError):
        again(made.model().state_dict())


def test_triggers_are_changed_at_every_step() -> None:
    made, model, seen = marked("deepsigns"), fresh("deepsigns"), []

    def augment(batch: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(batch.shape))
        return batch + 0.1

    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    options = AttachOptions(tensors=["3"], triggers=made.triggers, augment=augment)
    neuralmark.attach(model, optimizer, made.key, options)
    optimizer.step()
    assert seen == [(80, 1, 8, 8)]
    wrong = AttachOptions(tensors=["3"], triggers=made.triggers, augment=lambda batch: batch[:1])
    second = torch.optim.SGD(model.parameters(), 0.01)
    with pytest.warns(neuralmark.errors.NeuralMarkWarning, match="takes its place"):
        neuralmark.attach(model, second, made.key, wrong)
    with pytest.raises(TriggerMismatchError, match="same shape"):
        second.step()


def test_what_does_not_fit_is_named() -> None:
    made = marked("deepsigns")
    model, key, claim = made.model(), made.key, made.claim
    with pytest.raises(TriggerMismatchError, match="none are given"):
        neuralmark.verify(model, key, claim=claim)
    other = Triggers.draw(everything(), key, count=4)
    with pytest.raises(TriggerMismatchError, match="digests differ"):
        neuralmark.verify(model, key, claim=claim, triggers=other)
    flat = Triggers.of(np.zeros((20, 63), np.float32), np.arange(20) % 10)
    with pytest.raises(TriggerMismatchError, match="does not take these triggers"):
        neuralmark.verify(model, key, tensors=["3"], triggers=flat)
    with pytest.raises(UnknownTensorError, match="no layer 'hidden'"):
        neuralmark.verify(model, key, tensors=["hidden"], triggers=made.triggers)
    with pytest.raises(ParameterError, match="one layer"):
        neuralmark.verify(model, key, triggers=made.triggers)
    with pytest.raises(ParameterError, match="one layer"):
        neuralmark.verify(model, key, tensors=["1", "3"], triggers=made.triggers)
    wide = torch.nn.Sequential(*model[:3], torch.nn.Linear(128, 64), *[torch.nn.ReLU()])
    with pytest.raises(TriggerMismatchError, match="the mark was made for"):
        neuralmark.verify(wide, key, claim=claim, triggers=made.triggers)
    with pytest.raises(TriggerMismatchError, match="evenly among 3 classes"):
        Triggers.draw(everything(), key, count=4, classes=[0, 1, 2])
    known = everything()
    chosen = np.concatenate([np.flatnonzero(known.labels == label)[:4] for label in range(3)])
    three = Triggers.of(known.inputs[chosen], known.labels[chosen])
    with pytest.raises(ParameterError, match="multiple of 3"):
        neuralmark.verify(model, key, tensors=["3"], triggers=three)
    bare = Triggers.of(made.triggers.inputs)
    with pytest.raises(TriggerMismatchError, match="no labels"):
        neuralmark.verify(model, key, tensors=["3"], triggers=bare)
    with torch.no_grad():
        model[3].bias[0] = math.nan
    with pytest.raises(NonFiniteError):
        made.read(model)


def test_attaching_refuses_what_cannot_be_trained() -> None:
    key = key_for("deepsigns")
    triggers, model = drawn(key), fresh("deepsigns")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TriggerMismatchError, match="none are given"):
        neuralmark.attach(model, optimizer, key, AttachOptions(tensors=["3"]))
    with pytest.raises(ParameterError, match="one layer"):
        neuralmark.attach(model, optimizer, key, AttachOptions(triggers=triggers))
    options = AttachOptions(tensors=["3"], triggers=triggers, mode="projection")
    with pytest.raises(ParameterError, match="projected"):
        neuralmark.attach(model, optimizer, key, options)
    with pytest.raises(ParameterError, match="triggers must be"):
        AttachOptions(triggers=3)  # type: ignore[arg-type]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(UnsuitableTensorError, match="frozen"):
        neuralmark.attach(model, optimizer, key, AttachOptions(tensors=["3"], triggers=triggers))


def test_a_layer_with_too_few_features_for_the_bits_is_refused() -> None:
    """40 signs of 10 numbers: hardly any pattern can be reached."""
    key, model = key_for("deepsigns"), fresh("deepsigns")
    triggers = Triggers.draw(everything(), key, count=8, classes=[0, 1, 2, 3])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TooFewCarriersError, match="10 features, too few for 40 bits") as caught:
        neuralmark.attach(model, optimizer, key, AttachOptions(["5"], triggers=triggers))
    one_line(caught.value)
    neuralmark.attach(model, optimizer, key, AttachOptions(["3"], triggers=triggers)).detach()


def test_the_hook_adds_the_gradient_of_the_loss_and_changes_no_statistics() -> None:
    key = key_for("featuremap")
    slopes = []
    for mode in ("gradient", "loss"):
        model, triggers = fresh("featuremap").train(), drawn(key)
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        options = AttachOptions(tensors=["conv2"], triggers=triggers, mode=mode, strength=3.0)
        mark = neuralmark.attach(model, optimizer, key, options)
        before = model.conv2.weight.detach().clone()
        if mode == "loss":
            mark.loss_term().backward()
        optimizer.step()
        slopes.append(before - model.conv2.weight.detach())
        assert float(model.bn1.running_mean.abs().max()) == 0.0
        assert model.training
        assert mark.placement == (("conv2", (1, 5, 512)),)
    assert float(slopes[0].abs().max()) > 0
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-3, atol=1e-8)


def test_claims_keep_the_digest(tmp_path: Path) -> None:
    claim = marked("featuremap").claim
    claim.save(tmp_path / "c.json")
    assert Claim.load(tmp_path / "c.json") == claim
    with pytest.raises(neuralmark.errors.RecordError):
        Claim.from_dict({**claim.to_dict(), "triggers": "ff"})
