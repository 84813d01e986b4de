"""Forgers: those that must succeed against what is published, and fail against native keys."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import Claim, EmbedOptions, Key, Parameters, embed, schemes
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.engine.result import Result
from neuralmark.attacks.forge_fit import ForgeFit
from neuralmark.attacks.forge_identity import ForgeIdentity
from neuralmark.attacks.forge_learn import ForgeLearn
from neuralmark.attacks.forge_order import ForgeOrder
from neuralmark.attacks.forge_random import ForgeRandom
from neuralmark.attacks.rewrite import Rewrite
from neuralmark.attacks.tools.forging import balanced, expected_best
from neuralmark.core.key import Filter
from neuralmark.errors import AttackError, ParameterError
from tests.support.commands import call
from tests.support.models import gaussian

LAYER = {"conv.weight": gaussian(256, 128, 3, 3)}
"""One unmarked layer."""


def raw_claims(scheme: str) -> Key:
    """A key whose scheme and parameters the attacker knows."""
    return Key(schemes.parameters(scheme), b"", salt=bytes(32), secret=bytes([3]) * 32)


def unmarked(scheme: str) -> tuple[dict[str, np.ndarray], Key]:
    """Weights that carry the owner's mark, so that the forger's knowledge is complete."""
    from neuralmark.attacks.contract import Scene

    key = raw_claims(scheme)
    scene = Scene(LAYER, ("conv.weight",), np.random.default_rng(0), parameters=key.parameters)
    made = Rewrite(8.0).run(scene)
    assert made.weights is not None
    assert made.key is not None
    return dict(made.weights), made.key


def passes(result: Result) -> bool:
    """Whether the published check, which takes any matrix, would be fooled."""
    assert result.after is not None
    assert result.after.boundary is not None
    return result.after.matched >= result.after.boundary


def test_the_best_of_many_is_what_theory_expects() -> None:
    rng = np.random.default_rng(0)
    simulated = rng.binomial(256, 0.5, (4000, 100)).max(1).mean()
    assert abs(expected_best(256, 100) - simulated) < 0.3


def test_random_keys_match_like_coins() -> None:
    result = launch(ForgeRandom(200, pools=64), LAYER)
    assert result.after is not None
    assert not result.after.verified
    assert result.queries == 200
    assert abs(result.figures["mean_rate"] - 0.5) < 0.01
    assert abs(result.figures["best_rate"] - result.figures["expected_best_rate"]) < 0.05
    assert result.after.matched == round(256 * result.figures["best_rate"])


@pytest.mark.parametrize("scheme", ["vanillamark", "votemark"])
def test_a_secret_is_learnt_for_any_bits(scheme: str) -> None:
    weights, key = unmarked(scheme)
    result = launch(ForgeLearn(steps=5000), weights, key)
    assert result.after is not None
    assert result.after.rate == 1.0
    assert result.after.status == "matches-unproven"
    assert scheme in result.after.reason
    assert result.change == 0.0


def test_learning_meets_the_hash() -> None:
    weights, key = unmarked("neuralmark")
    result = launch(ForgeLearn(), weights, key)
    assert result.after is not None
    assert 0.35 < result.after.rate < 0.65


@pytest.mark.parametrize(
    ("scheme", "how"),
    [
        ("vanillamark", "private"),
        ("votemark", "private"),
        ("votemark", "tiled"),
        ("votemark", "stream"),
    ],
)
def test_a_private_filter_does_not_stop_learning_and_a_hashed_one_does(
    scheme: str, how: Filter
) -> None:
    chosen = schemes.parameters(scheme, rounds=2, filter=how)
    key = Key(chosen, b"", salt=bytes(32), secret=bytes([3]) * 32)
    from neuralmark.attacks.contract import Scene
    from neuralmark.attacks.rewrite import Rewrite

    scene = Scene(LAYER, ("conv.weight",), np.random.default_rng(0), parameters=key.parameters)
    made = Rewrite(8.0).run(scene)
    assert made.weights is not None
    result = launch(ForgeLearn(steps=5000), dict(made.weights), made.key)
    assert result.after is not None
    assert not result.after.verified
    assert (result.after.rate == 1.0) == (how == "private")


def test_native_keys_leave_nothing_to_learn() -> None:
    weights, key = unmarked("vanillamark")
    result = launch(
        ForgeLearn(steps=100, against="native"), weights, key, options=LaunchOptions(seed=5)
    )
    assert not passes(result)


def test_the_identity_fools_a_private_filter_only() -> None:
    private = launch(ForgeIdentity(), LAYER)
    assert private.after is not None
    assert (private.after.matched, private.after.status) == (256, "matches-unproven")
    for how in ("tiled", "stream"):
        hashed = launch(ForgeIdentity(filter=how), LAYER)
        assert not passes(hashed)
        assert abs(hashed.figures["best_rate"] - 0.5) < 0.15


def test_a_one_sided_tensor_has_no_list_to_choose() -> None:
    with pytest.raises(AttackError, match="one-sided"):
        launch(ForgeIdentity(), {"conv.weight": np.abs(gaussian(256, 512))})


def test_a_matrix_is_fitted_to_a_model_without_a_mark() -> None:
    result = launch(ForgeFit(samples=2000, tries=50), LAYER)
    assert passes(result)
    assert result.after is not None
    assert result.after.status == "matches-unproven"
    assert result.figures["mean_rate"] > 0.95


def test_nothing_fits_a_native_key() -> None:
    result = launch(ForgeFit(against="native", tries=50), LAYER)
    assert not passes(result)


def test_an_order_is_chosen_for_a_raw_key_but_not_for_a_native_one() -> None:
    tensors = {f"layers.{i}.weight": gaussian(64, 64, seed=i) for i in range(128)}
    result = launch(ForgeOrder(), tensors)
    assert passes(result)
    assert result.after is not None
    assert result.after.status == "matches-unproven"
    assert result.figures["tensors"] == 128
    native = launch(ForgeOrder(sweeps=10, against="native"), tensors)
    assert not passes(native)


def test_one_tensor_has_no_order() -> None:
    with pytest.raises(AttackError, match="no two tensors"):
        launch(ForgeOrder(), LAYER)


def test_balanced_marks_have_half_their_bits() -> None:
    rows = balanced(np.random.default_rng(0), 256, 10)
    assert (rows.sum(1) == 128).all()
    assert len({row.tobytes() for row in rows}) == 10


def test_settings_are_checked() -> None:
    with pytest.raises(ParameterError, match="tries"):
        ForgeRandom(0)
    slip: Any = "nativ"
    with pytest.raises(ParameterError, match="did you mean 'native'"):
        ForgeFit(against=slip)


def test_a_forged_key_can_be_saved_and_shown_to_the_judge(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file(LAYER, tmp_path / "m.safetensors")
    model, forged = str(tmp_path / "m.safetensors"), str(tmp_path / "forged.nmkey")
    made = call("attack", "forge-identity", model, "-o", forged)
    assert made.code == 0, made
    seen = call("verify", model, "--key", forged, "--tensor", "conv.weight", "--json")
    assert seen.code == 1
    assert seen.json["status"] == "matches-unproven"
    assert seen.json["matched"] == 256


def test_parameters_follow_the_owner() -> None:
    weights, key = unmarked("vanillamark")
    result = launch(ForgeRandom(3), weights, key)
    assert result.key is not None
    assert result.key.parameters == key.parameters
    assert Parameters() != key.parameters


def test_an_order_is_handed_in_as_a_claim(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    tensors = {f"layers.{i}.weight": gaussian(64, 64, seed=i) for i in range(128)}
    save_file(tensors, tmp_path / "m.safetensors")
    model, forged = str(tmp_path / "m.safetensors"), str(tmp_path / "forged.nmkey")
    made = call("attack", "forge-order", model, "-o", forged)
    assert made.code == 0, made
    assert "PASSES THE PUBLISHED CHECK" in made.out
    seen = call("verify", model, "--key", forged, "--claim", f"{forged}.claim.json", "--json")
    assert seen.code == 1
    assert seen.json["status"] == "matches-unproven"
    assert seen.json["bound_holds"] is False
    shown = call("verify", model, "--key", forged, "--claim", f"{forged}.claim.json")
    assert "no bound" in shown.out


def test_rewriting_writes_the_model_and_not_the_key(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    save_file(LAYER, tmp_path / "m.safetensors")
    out = tmp_path / "rewritten.safetensors"
    made = call("attack", "rewrite", str(tmp_path / "m.safetensors"), "-o", str(out))
    assert made.code == 0, made
    assert "change" in made.out
    assert (load_file(out)["conv.weight"] != LAYER["conv.weight"]).any()


PREFIXES = ("", "wrapped.")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_mark_is_attacked_under_the_names_that_its_model_has_now(
    prefix: str, tmp_path: Path
) -> None:
    key, name = raw_claims("neuralmark"), "conv.weight"
    save_file(LAYER, tmp_path / "m.safetensors")
    options = EmbedOptions(anchor=False)
    made = embed(tmp_path / "m.safetensors", key, tmp_path / "o.safetensors", options)
    marked = load_file(tmp_path / "o.safetensors")[name]
    claim = Claim.load(str(made.claim_file))
    result = launch(Rewrite(1.0), {prefix + name: marked}, key, claim=claim)
    assert result.before is not None
    assert result.before.verified
    assert result.weights is not None
    assert not np.array_equal(result.weights[prefix + name], marked)


def test_a_model_without_the_mark_is_attacked_where_marks_would_lie() -> None:
    names = [f"model.layers.{i}.weight" for i in range(2)]
    table = {name: gaussian(256, 256, seed=i) for i, name in enumerate(names)}
    for number in range(4):  # by luck the best reading is under another prefix
        key = Key(Parameters(), b"", salt=bytes(32), secret=bytes([number]) * 32)
        result = launch(ForgeRandom(3), table, key, options=LaunchOptions(demand=False))
        assert result.after is not None
        assert result.after.matched < 180


@pytest.mark.parametrize("attack", [ForgeLearn(steps=50), ForgeRandom(3)])
def test_a_forger_works_on_the_tensors_that_are_named(attack: Any) -> None:
    table = {name: gaussian(256, 128, 3, 3, seed=i) for i, name in enumerate("abc")}
    result = launch(attack, table, options=LaunchOptions(tensors=["b"]))
    assert result.after is not None
    assert [name for name, _ in result.after.placement] == ["b"]
