"""Forged passports: blocks, closed forms, learning and drawing; and what a native key leaves."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import neuralmark
from neuralmark import Key, Parameters, Passports
from neuralmark.attacks.cerb import Cerb
from neuralmark.attacks.contract import Scene
from neuralmark.attacks.deflate import Deflate
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.fold_in import FoldIn
from neuralmark.attacks.forge_learn import ForgeLearn
from neuralmark.attacks.forge_passport import ForgePassport
from neuralmark.attacks.tools.ambiguity import ExpandedNorm
from neuralmark.attacks.tools.forging import best_drawn, ground_at
from neuralmark.core.key import Filter
from neuralmark.errors import AttackError
from tests.support.checks import one_line
from tests.support.learnt import digits
from tests.support.passports import BITS, LAYERS, branched, key_for, learnt, normed, right

TENSORS = [f"{name}.weight" for name in LAYERS]


def test_a_block_gives_another_signature_and_the_weights_stay() -> None:
    """The published break: 10 % of the data, weights frozen, as accurate as before."""
    made = branched()
    model = made.model()
    attack = Cerb(0.1, epochs=30, rate=0.05)
    done = launch(attack, model, made.key, claim=made.claim, data=digits())
    assert done.figures["forged_rate"] == 1.0
    assert done.figures["factors"] == 192
    assert done.accuracy_after is not None
    assert done.accuracy_before is not None
    assert done.accuracy_after > done.accuracy_before - 0.05
    assert done.model is not None
    for name, weight in model.named_parameters():
        if "weight" in name and weight.dim() > 1:
            assert torch.equal(done.model.get_parameter(name), weight)
    assert done.after is not None
    assert done.after.verified  # the owner's bits are in the weights
    blocks = [part for part in done.model.modules() if isinstance(part, ExpandedNorm)]
    signs = np.sign(torch.cat([block.gamma.detach() for block in blocks]).numpy())
    mark = made.key.at(made.claim.placement)
    assert 0.3 < (signs[mark.extra["rows"]] == mark.signs).mean() < 0.7
    # The same block, but not one that moves: without the signature the signs stay at 1.
    free = launch(Cerb(0.1, epochs=2, signature="free"), model, made.key, claim=made.claim,
                  data=digits())  # fmt: skip
    assert 0.3 < free.figures["forged_rate"] < 0.7


def test_a_block_is_trained_until_the_signature_is_whole_or_the_attack_says_so() -> None:
    made = branched()
    few = launch(
        Cerb(0.1, epochs=1, limit=3), made.model(), made.key, claim=made.claim, data=digits()
    )
    assert few.figures["forged_rate"] < 1.0
    assert few.steps == 3
    assert "the signature is not whole" in few.note
    assert "of 192 signs after 3 steps" in few.note
    enough = launch(Cerb(0.1, epochs=1), made.model(), made.key, claim=made.claim, data=digits())
    assert enough.figures["forged_rate"] == 1.0
    assert few.steps < enough.steps < 2000
    assert not enough.note


def test_blocks_go_behind_shipped_passports_and_all_norms() -> None:
    model = normed()
    private = Passports(model, key_for("deepipr", version=1), LAYERS)
    private.install()
    done = launch(Cerb(0.1, epochs=1, where="all"), model.eval(), data=digits())
    assert done.figures["factors"] == 16 + 192
    with pytest.raises(AttackError, match="no factors to expand") as caught:
        launch(Cerb(), normed(None).eval(), data=digits())
    one_line(caught.value)


@pytest.mark.parametrize(
    ("name", "how"), [("deepipr", "none"), ("passport-aware", "none"), ("passport-aware", "stream")]
)
def test_free_passports_are_solved_for(name: Any, how: Filter) -> None:
    """Not one image, not one step: every bit, and the accuracy of the network itself."""
    owner, model = key_for(name, 3, how), learnt()
    neuralmark.imprint(model, owner, tensors=TENSORS, strength=2.0)
    options = LaunchOptions(demand=False)
    claim = neuralmark.imprint(learnt(), owner, tensors=TENSORS, strength=2.0).claim
    done = launch(ForgePassport(name), model, owner, options, claim=claim, data=digits())
    assert done.figures["best_rate"] == 1.0
    assert done.figures["private_accuracy"] == done.figures["public_accuracy"] > 0.8
    assert done.after is not None
    assert (done.after.status, done.after.matched) == ("matches-unproven", BITS)
    assert done.key is not None
    forged = done.key.at(done.after.placement).bits
    if name == "passport-aware":  # any signature
        assert 0.3 < forged.mean() < 0.7
    else:  # without an MLP, the network's own factors are called the signature
        assert forged.mean() > 0.9
    # The owner's native key is not touched by it.
    assert neuralmark.verify(model, owner, claim=claim).verified


def test_hashed_and_derived_passports_leave_drawing_only() -> None:
    for attack in (ForgePassport("trapdoor"), ForgePassport(against="native")):
        done = launch(attack, learnt(), data=digits())
        assert done.queries == 200
        assert abs(done.figures["mean_rate"] - 0.5) < 0.03
        assert done.figures["best_rate"] < done.figures["expected_best_rate"] + 0.1
        # The accuracy is no obstacle: with an MLP of one's own every passport has it.
        assert done.figures["private_accuracy"] == done.figures["public_accuracy"]


@pytest.mark.parametrize(("name", "forged"), [("deepipr", True), ("trapdoor", False)])
def test_free_passports_are_learnt_and_hashed_ones_are_not(name: str, forged: bool) -> None:
    model, key = learnt(), key_for(name)
    weights = {n: v.detach().numpy() for n, v in model.state_dict().items() if v.dim() > 1}
    placement = tuple((layer, weights[layer].shape) for layer in TENSORS)
    scene = Scene(
        weights,
        tuple(TENSORS),
        np.random.default_rng(0),
        placement=placement,
        parameters=key.parameters,
    )
    done = ForgeLearn().run(scene)
    assert (done.figures["best_rate"] == 1.0) == forged
    assert forged or 0.3 < done.figures["best_rate"] < 0.7
    assert done.key is not None
    verdict = neuralmark.verify(model, done.key, tensors=TENSORS)
    assert verdict.status == ("matches-unproven" if forged else "not-verified")


def test_grinding_follows_the_binomial() -> None:
    weights = {n: v.detach().numpy() for n, v in learnt().state_dict().items() if v.dim() > 1}
    placement = tuple((layer, weights[layer].shape) for layer in TENSORS)
    scene = Scene(weights, tuple(TENSORS), np.random.default_rng(0))
    for name in ("deepipr", "trapdoor"):
        ground = ground_at(scene, placement, key_for(name).parameters)
        _, counts = best_drawn(scene, ground, 400)
        assert abs(counts.mean() - BITS / 2) < 4 * np.sqrt(BITS / 4 / 400)
        assert abs(counts.var() / (BITS / 4) - 1) < 4 * np.sqrt(2 / 400)


def test_a_trained_passport_shows_itself_and_is_taken_out() -> None:
    """All bits of a layer are products with one vector: the main direction of the layer."""
    made = branched()
    model = made.model()
    options = LaunchOptions(tensors=TENSORS)
    done = launch(Deflate(1), model, made.key, options, claim=made.claim)
    assert done.after is not None
    assert done.after.rate < 0.65
    # A mark over many directions does not notice.
    key = Key(Parameters(160, 320, 1), b"", salt=bytes(32), secret=bytes([5]) * 32)
    claim = neuralmark.imprint(model, key, tensors=TENSORS, strength=2.0).claim
    kept = launch(Deflate(1), model, key, options, claim=claim)
    assert kept.after is not None
    assert kept.after.matched > 155


def test_main_directions_are_those_of_the_decomposition() -> None:
    rng = np.random.default_rng(0)
    spectrum = np.array([9.0, 5.0, 3.0, *np.linspace(1, 0.1, 21)])
    left = np.linalg.qr(rng.standard_normal((40, 24)))[0]
    right = np.linalg.qr(rng.standard_normal((36, 24)))[0]
    weights = ((left * spectrum) @ right.T).astype(np.float32).reshape(40, 4, 3, 3)
    scene = Scene({"w": weights}, ("w",), rng)
    for count in (1, 2):
        made = Deflate(count).run(scene).weights
        assert made is not None
        twin = ((left[:, count:] * spectrum[count:]) @ right[:, count:].T).reshape(weights.shape)
        np.testing.assert_allclose(made["w"], twin, atol=1e-5)
    half = Deflate(1, times=0.5).run(scene).weights
    assert half is not None
    assert np.linalg.norm(half["w"].reshape(40, -1), 2) == pytest.approx(5.0, rel=1e-4)


def test_shipped_passports_are_folded_away() -> None:
    model = normed()
    key = key_for("deepipr", version=1)
    private = Passports(model, key, LAYERS)
    private.install()
    claim = neuralmark.imprint(model.eval(), key, tensors=TENSORS, strength=2.0).claim
    done = launch(FoldIn(), model, key, claim=claim, data=digits())
    assert done.figures["passports"] == 2
    assert isinstance(done.model, nn.Sequential)
    assert [type(part) for part in done.model] == [type(part) for part in normed()]
    assert right(done.model) == right(model)
    assert done.after is not None
    assert done.after.verified  # the bits do not need them


def test_files_without_norms_are_forged_too(tmp_path: Any) -> None:
    """A checkpoint alone: passports for any signature, nothing said of an accuracy."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    save_file({"a.weight": rng.standard_normal((160, 64)).astype("f4")}, tmp_path / "m.safetensors")
    done = launch(ForgePassport("deepipr"), tmp_path / "m.safetensors")
    assert done.figures["best_rate"] > 0.7  # 64 numbers for 160 signs: not all of them
