"""Feng and Zhang: the transform against scipy's, binarised coefficients, attacks, compensation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from scipy.fft import dct as scipy_dct
from scipy.fft import idct as scipy_idct
from torch import nn

import neuralmark
from neuralmark import AttachOptions, EmbedOptions, Key, schemes
from neuralmark.attacks.contract import Attack, Scene
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.finetune import Finetune
from neuralmark.attacks.forge_learn import ForgeLearn
from neuralmark.attacks.forge_random import ForgeRandom
from neuralmark.attacks.prune import Prune
from neuralmark.attacks.restructure import Restructure
from neuralmark.attacks.rewrite import Rewrite
from neuralmark.core.imprint import goal_of
from neuralmark.core.key import Mark
from neuralmark.core.readout import Known
from neuralmark.errors import InfeasibleError, ParameterError, TooFewCarriersError
from neuralmark.schemes.feng import dct, haar, selected
from tests.support.checks import one_line
from tests.support.learnt import digits, learnt, weights_of
from tests.support.models import gaussian, saved

SCHEME = schemes.get("feng")
LAYER = "conv2.weight"
PLACEMENT = (("a.weight", (40, 60)), ("b.weight", (30, 50)))
TABLE = {"a.weight": gaussian(40, 60), "b.weight": gaussian(30, 50, seed=1)}


def some_key(number: int = 1, bits: int = 160, **own: int | str) -> Key:
    parameters = schemes.parameters("feng", bits=bits, own=own)
    return Key(parameters, b"", salt=bytes(32), secret=bytes([number]) * 32)


def flat(table: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([table[name].reshape(-1) for name, _ in PLACEMENT]).astype(np.float64)


def recovered(mark: Mark) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Blocks of positions, noise signs, coefficient and chip of each bit, found by a transform.

    The waves of a bit, turned by their weights' signs, are one cosine: it is found by trying.
    """
    positions, blocks = mark.extra["filter"], mark.extra["blocks"]
    waves = mark.extra["waves"][:, 0].astype(np.float64)
    signs, index, chips = np.zeros(blocks.shape), [], []
    size = blocks.shape[1]
    basis = scipy_dct(np.eye(size), type=2, norm="ortho", axis=0)
    for j, wave in enumerate(waves):
        fits = [k for k in range(size) if np.allclose(np.abs(basis[k]), np.abs(wave), atol=1e-6)]
        index.append(fits[0])
        chips.append(1.0)
        signs[j] = np.sign(wave * basis[fits[0]])
    return positions[blocks], signs, np.array(index), np.array(chips)


def test_positions_are_distinct_rising_and_everywhere() -> None:
    rng = np.random.default_rng(0)
    seen = np.zeros(50)
    for _ in range(2000):
        found = selected(rng.bytes(16 * 10), 50, 10)
        assert (np.diff(found) > 0).all()
        assert found[0] >= 0
        assert found[-1] < 50
        seen[found] += 1
    assert np.abs(seen / 2000 - 0.2).max() < 0.05
    assert selected(rng.bytes(16 * 50), 50, 50).tolist() == list(range(50))


def test_transforms_are_orthonormal_and_the_cosines_are_scipys() -> None:
    for size in (8, 16, 31):
        expected = scipy_dct(np.eye(size), type=2, norm="ortho", axis=0)
        np.testing.assert_allclose(dct(size), expected, atol=1e-12)
        turned = haar(b"seed", size)
        np.testing.assert_allclose(turned @ turned.T, np.eye(size), atol=1e-12)
        assert not np.allclose(turned, haar(b"other", size))


def test_bits_are_read_as_by_scipy() -> None:
    mark = some_key().at(PLACEMENT)
    weights = flat(TABLE)
    places, signs, index, chips = recovered(mark)
    coefficients = scipy_dct(signs * weights[places], type=2, norm="ortho", axis=1)
    plain = chips * coefficients[np.arange(160), index]
    carriers = SCHEME.carriers(mark, PLACEMENT)
    assert (carriers.per_pool, carriers.pools) == (1, 2560)
    pooled = weights[carriers.positions()]
    logits = SCHEME.logits(Known.of(mark), pooled)
    np.testing.assert_allclose(logits, np.sqrt(2560) * plain, rtol=1e-4, atol=1e-4)


def test_embedding_binarises_one_coefficient_of_each_block(tmp_path: Path) -> None:
    """The same file as by scipy: transform, set ±δ, transform back; all else stays."""
    key = some_key()
    options = EmbedOptions(tensors=["a.weight", "b.weight"], strength=1.0, anchor=False)
    made = neuralmark.embed(
        saved(tmp_path / "m.safetensors", **TABLE), key, tmp_path / "o.safetensors", options
    )
    assert made.verdict is not None
    assert made.verdict.verified
    assert not any("carriers per pool" in warning for warning in made.warnings)
    mark, old = key.at(PLACEMENT), flat(TABLE)
    places, signs, index, chips = recovered(mark)
    coefficients = scipy_dct(signs * old[places], type=2, norm="ortho", axis=1)
    delta = old[places].std()
    coefficients[np.arange(160), index] = chips * mark.signs * delta
    expected = old.copy()
    expected[places] = signs * scipy_idct(coefficients, type=2, norm="ortho", axis=1)
    new = flat(load_file(tmp_path / "o.safetensors"))
    # No weight grows beyond the largest of its tensor; blocks that want it are met another way.
    limit = min(np.abs(value).max() for value in TABLE.values())
    within = (np.maximum(np.abs(expected), np.abs(old))[places] < limit).all(1)
    assert within.mean() > 0.95
    at = places[within]
    np.testing.assert_allclose(new[at], expected[at], atol=0.01 * delta)  # 0.8 % is overshoot
    others = np.setdiff1d(np.arange(len(old)), places)
    assert (new[others] == old[others]).all()
    assert made.verdict.certified_radius is not None
    assert made.verdict.certified_radius > 0


def test_the_certified_radius_holds_against_the_key(tmp_path: Path) -> None:
    key = some_key()
    options = EmbedOptions(tensors=["a.weight", "b.weight"], strength=2.0, anchor=False)
    made = neuralmark.embed(
        saved(tmp_path / "m.safetensors", **TABLE), key, tmp_path / "o.safetensors", options
    )
    assert made.verdict is not None
    radius = made.verdict.certified_radius
    assert radius is not None
    mark, weights = key.at(PLACEMENT), flat(load_file(tmp_path / "o.safetensors"))
    carriers = SCHEME.carriers(mark, PLACEMENT)
    at = carriers.positions()
    margins = weights[at] @ mark.matrix * mark.signs
    flips = 160 - made.verdict.boundary + 1  # type: ignore[operator]
    cheapest = np.argsort(margins)[:flips]
    matrix = mark.matrix.astype(np.float64)[:, cheapest] * mark.signs[cheapest]
    push = -np.linalg.pinv(matrix.T) @ margins[cheapest]
    assert np.linalg.norm(push) == pytest.approx(radius, rel=1e-3)
    for factor, wanted in ((0.99, 160), (1.01, 160 - flips)):
        moved = (weights[at] + factor * push) @ mark.matrix * mark.signs
        assert int((moved > 0).sum()) == wanted


@pytest.mark.parametrize("transform", ["dct", "haar"])
def test_several_coefficients_are_binarised_one_by_one(transform: str) -> None:
    mark = some_key(bits=40, block=32, coefficients=4, transform=transform).at(PLACEMENT)
    pooled = flat(TABLE)[mark.extra["filter"]]
    solver, goal = SCHEME.solver(mark), goal_of(pooled, 1.5)
    new = pooled + solver.change(pooled, goal)
    each = np.einsum("jrl,jl->jr", mark.extra["waves"], new[mark.extra["blocks"]])
    delta = 1.5 * pooled.std()
    np.testing.assert_allclose(each, np.repeat(mark.signs * delta, 4).reshape(40, 4), rtol=1e-4)
    z = SCHEME.logits(Known.of(mark), new)
    np.testing.assert_allclose(z * mark.signs, 2 * goal, rtol=1e-4)  # √r goals


def test_weights_that_stay_are_worked_around_or_named() -> None:
    mark = some_key(bits=20).at(PLACEMENT)
    pooled = flat(TABLE)[mark.extra["filter"]]
    effort = np.ones(len(pooled))
    effort[mark.extra["blocks"][3, :10]] = np.inf
    change = SCHEME.solver(mark, effort).change(pooled, 1.0)
    assert not change[np.isinf(effort)].any()
    assert SCHEME.solver(mark).margins(pooled + change).min() == pytest.approx(1.0, rel=1e-4)
    effort[mark.extra["blocks"][3]] = np.inf
    with pytest.raises(InfeasibleError, match="cannot move"):
        SCHEME.solver(mark, effort).change(pooled, 1.0)


@pytest.mark.parametrize(("own", "most"), [({}, 4), ({"block": 32, "coefficients": 2}, 4)])
def test_a_strength_at_which_the_mark_would_grow_with_every_step_is_named(
    own: dict[str, int], most: float
) -> None:
    """δ is a multiple of what the coefficients are on average, and they are the mark's own."""
    key, layer = some_key(**own), nn.Linear(64, 128)
    model = nn.Sequential(layer)
    assert SCHEME.strongest(key.parameters) == most
    before = layer.weight.detach().clone()
    for strength in (most, 2 * most):
        options = AttachOptions(tensors=["0.weight"], strength=strength)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with pytest.raises(InfeasibleError, match=r"too large .* stay below 4") as caught:
            neuralmark.attach(model, optimizer, key, options)
        one_line(caught.value)
        assert torch.equal(layer.weight, before)
    options = AttachOptions(tensors=["0.weight"], strength=most - 0.5)
    assert neuralmark.attach(model, optimizer, key, options).rate == 1


def test_a_strength_beyond_the_range_of_the_weights_says_so(tmp_path: Path) -> None:
    """Nothing was converted: the values may not leave those of their tensor."""
    weights = np.random.default_rng(0).uniform(-0.1, 0.1, (128, 64)).astype(np.float32)
    file = saved(tmp_path / "m.safetensors", **{"a.weight": weights})
    options = EmbedOptions(strength=16)
    with pytest.raises(InfeasibleError, match=r"as far as this strength asks.*lower") as caught:
        neuralmark.embed(file, some_key(), tmp_path / "o.safetensors", options)
    one_line(caught.value)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"block": 4}, "block must be a whole number from 8"),
        ({"block": 16.0}, "block must be a whole number"),
        ({"coefficients": 3}, "coefficients must be a whole number from 1 to 2"),
        ({"transform": "fft"}, "transform must be dct or haar"),
        ({"blocks": 8}, "no setting 'blocks'"),
    ],
)
def test_settings_are_checked(own: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        schemes.parameters("feng", own=own)


def test_sizes_are_checked() -> None:
    with pytest.raises(ParameterError, match="neither pools nor rounds"):
        schemes.parameters("feng", pools=64)
    with pytest.raises(ParameterError, match="too many"):
        schemes.parameters("feng", bits=1024, own={"coefficients": 2})
    with pytest.raises(TooFewCarriersError, match="needs 2,560"):
        some_key().at((("a.weight", (10, 10)),))
    matrix, bits = np.ones((2560, 160), np.float32), np.ones(160, np.uint8)
    parameters = some_key().parameters
    with pytest.raises(ParameterError, match="needs the positions"):
        Key.chosen(parameters, matrix, bits=bits)
    with pytest.raises(ParameterError, match="2,560 positions"):
        Key.chosen(parameters, matrix, bits=bits, positions=np.arange(9))
    with pytest.raises(ParameterError, match="fewer bits, or smaller blocks"):
        schemes.parameters("feng", bits=1024, own={"block": 256})


ATTACKS: list[Attack] = [
    Prune(0.5),
    Finetune(0.001, epochs=1, classifier="keep"),
    Rewrite(4.0),
    Rewrite(4.0, keys=8),
]


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Key, Path]:
    """The digits network with a mark; claim and anchor lie beside its file."""
    folder = tmp_path_factory.mktemp("feng")
    table = {name: value for name, value in weights_of("digits").items() if value.ndim}
    save_file(table, folder / "model.safetensors")
    key, out = some_key(), folder / "marked.safetensors"
    options = EmbedOptions(tensors=[LAYER], strength=2.0)
    made = neuralmark.embed(folder / "model.safetensors", key, out, options)
    assert made.verdict is not None
    assert made.verdict.verified
    from safetensors.torch import load_file as load_torch

    model = learnt("digits")
    model.load_state_dict(load_torch(out), strict=False)
    return model, key, out


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
def test_bits_after_attacks(marked: tuple[Any, Key, Path], attack: Attack) -> None:
    model, key, out = marked
    done = launch(attack, model, key, claim=f"{out}.claim.json", data=digits())
    assert done.after is not None
    assert done.after.matched >= 158
    assert done.after.verified


def test_a_permutation_needs_the_anchor(marked: tuple[Any, Key, Path]) -> None:
    model, key, out = marked
    options = LaunchOptions(anchor=f"{out}.anchor")
    done = launch(Restructure("permute", 1.0), model, key, options, claim=f"{out}.claim.json")
    assert done.after is not None
    assert 0.3 < done.after.rate < 0.7
    assert done.aligned is not None
    assert done.aligned.matched == 160


def test_a_free_matrix_is_learnt_and_proves_nothing() -> None:
    layer = {LAYER: gaussian(96, 64, 3, 3)}
    scene = Scene(
        layer, (LAYER,), np.random.default_rng(0), parameters=some_key(bits=256).parameters
    )
    made = Rewrite(4.0).run(scene)
    assert made.weights is not None
    result = launch(ForgeLearn(steps=5000), dict(made.weights), made.key)
    assert result.after is not None
    assert (result.after.rate, result.after.status) == (1.0, "matches-unproven")
    tried = launch(ForgeRandom(100), dict(made.weights), made.key, LaunchOptions(seed=5))
    assert abs(tried.figures["mean_rate"] - 0.5) < 0.015
    assert abs(tried.figures["best_rate"] - tried.figures["expected_best_rate"]) < 0.05
