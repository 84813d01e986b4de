"""ST-DM: the lattice against plain formulas, writing into cells, scaling, forging."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch

from neuralmark import Claim, EmbedOptions, Key, VerifyOptions, embed, schemes, verify
from neuralmark.attacks.contract import Scene
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.forge_learn import ForgeLearn
from neuralmark.attacks.forge_random import ForgeRandom
from neuralmark.attacks.restructure import Restructure
from neuralmark.attacks.rewrite import Rewrite
from neuralmark.core.imprint import goal_of
from neuralmark.core.readout import Known
from neuralmark.errors import InfeasibleError, ParameterError
from neuralmark.schemes.stdm import lattice_distance
from tests.support.learnt import learnt, weights_of
from tests.support.models import gaussian

SCHEME = schemes.get("stdm")
LAYER = "conv2.weight"
PLACEMENT = ((LAYER, (24, 8, 3, 3)),)


def some_key(number: int = 1, bits: int = 16, **own: float | str) -> Key:
    parameters = schemes.parameters("stdm", bits=bits, own=own)
    return Key(parameters, b"", salt=bytes(32), secret=bytes([number]) * 32)


def averaged(weights: np.ndarray) -> np.ndarray:
    """By loops over the output channels."""
    total = np.zeros(weights[0].size)
    for channel in weights.astype(np.float64):
        total += channel.reshape(-1)
    return total / len(weights)


def test_bits_are_those_of_the_published_formula() -> None:
    weights = gaussian(24, 8, 3, 3)
    mark = some_key().at(PLACEMENT)
    known = Known.of(mark)
    pooled = averaged(weights)
    carriers = SCHEME.carriers(mark, PLACEMENT)
    flat = weights.astype(np.float64).reshape(-1)
    np.testing.assert_allclose(
        flat[carriers.positions()].reshape(-1, carriers.pools).mean(0), pooled
    )
    logits = SCHEME.logits(known, pooled)
    for j in range(16):
        z = sum(float(mark.matrix[i, j]) * pooled[i] for i in range(72))
        theta = 1 / (1 + math.exp(-10 * math.sin(10 * z)))
        assert (logits[j] > 0) == (theta > 0.5)
        boundaries = [k * math.pi / 10 for k in range(-200, 200)]
        assert abs(logits[j]) == pytest.approx(min(abs(z - at) for at in boundaries), rel=1e-9)


@pytest.mark.parametrize("name", ["bce", "absolute"])
def test_the_loss_is_the_formula_and_descends(name: str) -> None:
    mark = some_key(loss=name).at(PLACEMENT)
    pooled = averaged(gaussian(24, 8, 3, 3))
    total = 0.0
    for j, bit in enumerate(mark.bits):
        theta = 1 / (1 + math.exp(-10 * math.sin(10 * float(pooled @ mark.matrix[:, j]))))
        if name == "bce":
            total -= math.log(theta if bit else 1 - theta) / 16
        else:
            total += abs(theta - bit)
    assert float(SCHEME.loss(Known.of(mark), pooled)) == pytest.approx(total, rel=1e-6)

    given = torch.from_numpy(pooled).requires_grad_()
    known = Known.of(mark, given)
    (slope,) = torch.autograd.grad(SCHEME.loss(known, given), given)
    step = 1e-9 * slope / slope.norm()
    ahead = SCHEME.loss(known, given.detach() - step)
    assert float(ahead) < float(SCHEME.loss(known, given.detach()))


def test_distance_and_sine_agree() -> None:
    z = np.linspace(-3, 3, 10_001)
    for beta in (0.5, 10.0, 77.0):
        assert (np.sign(lattice_distance(z, beta)) == np.sign(np.sin(beta * z))).all()
        assert np.abs(lattice_distance(z, beta)).max() <= math.pi / (2 * beta) + 1e-12


def test_norm_fixes_the_length_of_columns() -> None:
    drawn = some_key().at(PLACEMENT).matrix
    fixed = some_key(norm=3.0).at(PLACEMENT).matrix
    np.testing.assert_allclose(np.linalg.norm(fixed, axis=0), 3.0, rtol=1e-6)
    assert 0.5 < np.linalg.norm(drawn, axis=0).mean() / math.sqrt(72) < 1.5
    raw = Key.chosen(some_key(norm=3.0).parameters, drawn, bits=np.ones(16, np.uint8))
    assert (raw.at(PLACEMENT).matrix == drawn).all()  # as its maker has it


@pytest.mark.parametrize("norm", [0.0, 1.0, 200.0])
@pytest.mark.parametrize("strength", [0.2, 2.0, 50.0])
def test_written_numbers_lie_in_the_nearest_cell_of_the_right_kind(
    norm: float, strength: float
) -> None:
    mark = some_key(bits=32, norm=norm).at(PLACEMENT)
    pooled = 3 * averaged(gaussian(24, 8, 3, 3))
    solver = SCHEME.solver(mark)
    change = solver.change(pooled, goal_of(pooled, strength))
    before, after = pooled @ mark.matrix, (pooled + change) @ mark.matrix
    width, found = math.pi / 10, SCHEME.logits(Known.of(mark), pooled + change)
    assert (found * mark.signs > 0).all()
    assert (np.abs(before - after) <= 1.5 * width + 1e-9).all()
    # Least squares: what moves is in the span of the columns, and nothing else is.
    beside = change - mark.matrix @ np.linalg.lstsq(mark.matrix, change, rcond=None)[0]
    assert np.linalg.norm(beside) < 1e-6 * np.linalg.norm(change)
    assert (solver.margins(pooled + change) > 0).all()


def test_more_bits_than_weights_cannot_be_written() -> None:
    mark = some_key(bits=80).at(PLACEMENT)
    with pytest.raises(InfeasibleError, match="80 numbers of stdm cannot be met in 72 pools"):
        SCHEME.solver(mark)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"alpha": 0.0}, "alpha must be above 0"),
        ({"beta": -1.0}, "beta must be above 0"),
        ({"norm": -1.0}, "norm must be from 0"),
        ({"loss": "hinge"}, "loss must be bce or absolute"),
        ({"loss": 3}, "loss must be like 'bce'"),
    ],
)
def test_settings_are_checked(own: dict[str, float | str], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        schemes.parameters("stdm", own=own)


def test_a_scaled_sine_keeps_turns_over_and_is_set_right() -> None:
    """α = β = 10 in a fresh layer of 256·256·3·3: the published setting."""
    limit = math.sqrt(6 / (2 * 256 * 9))
    weights = np.random.default_rng(0).uniform(-limit, limit, (256, 256, 3, 3))
    mark = some_key(bits=128).at((("conv.weight", weights.shape),))
    pooled = torch.from_numpy(averaged(weights)).requires_grad_()
    known = Known.of(mark, pooled)

    def margins(factor: float) -> torch.Tensor:
        found: torch.Tensor = SCHEME.logits(known, pooled.detach() * factor) * known.signs
        return found

    for _ in range(1000):
        if float(margins(1.0).min()) >= 0.03:
            break
        (slope,) = torch.autograd.grad(SCHEME.loss(known, pooled), pooled)
        with torch.no_grad():
            pooled.sub_(1e-6 * slope)
    rates = {f: float((margins(f) > 0).double().mean()) for f in (0.5, 1.0, 1.5, 3.0, 10.0)}
    assert rates[1.0] == 1.0
    assert rates[0.5] >= 0.99  # a bit may lie one cell further out
    assert rates[1.5] >= 0.99
    assert 0.9 < rates[3.0] < 1.0
    assert rates[10.0] < 0.25


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Key]:
    """The digits network with a mark in its file; claim and anchor lie beside it."""
    folder = tmp_path_factory.mktemp("stdm")
    table = {name: value for name, value in weights_of("digits").items() if value.ndim}
    save_file(table, folder / "model.safetensors")
    key = some_key(bits=160)
    made = embed(
        folder / "model.safetensors",
        key,
        folder / "marked.safetensors",
        EmbedOptions(tensors=[LAYER], strength=2.0),
    )
    assert made.verdict is not None
    assert made.verdict.verified
    assert made.verdict.certified_radius is None
    assert made.verdict.margin_unit == "logit"
    assert 0 < made.verdict.smallest_margin <= math.pi / 20
    return folder / "marked.safetensors", key


@pytest.mark.parametrize("factor", [3.0, 4.0])
def test_the_anchor_sets_the_scale_right(
    written: tuple[Path, Key], tmp_path: Path, factor: float
) -> None:
    path, key = written
    weights = load_file(path)
    weights[LAYER] = weights[LAYER] * np.float32(factor)
    save_file(weights, tmp_path / "scaled.safetensors")
    claim = Claim.load(f"{path}.claim.json")
    anchor = VerifyOptions(anchor=f"{path}.anchor")
    mark = key.at(((LAYER, (96, 96, 3, 3)),), claim.anchor_digest)
    z = averaged(weights[LAYER]) @ mark.matrix
    assert (lattice_distance(z, 10.0) * mark.signs > 0).mean() < 0.5
    found = verify(tmp_path / "scaled.safetensors", key, claim=claim, options=anchor)
    assert (found.matched, found.verified) == (160, True)


def test_a_permutation_needs_the_anchor(written: tuple[Path, Key]) -> None:
    path, key = written
    model = learnt("digits")
    model.load_state_dict(load_torch(path), strict=False)
    options = LaunchOptions(anchor=f"{path}.anchor")
    claim = f"{path}.claim.json"
    done = launch(Restructure("permute", 1.0), model, key, options, claim=claim)
    assert done.after is not None
    assert 0.3 < done.after.rate < 0.7
    assert done.aligned is not None
    assert done.aligned.matched == 160


def test_a_free_matrix_is_learnt_and_proves_nothing() -> None:
    weights, key = marked_table()
    result = launch(ForgeLearn(steps=5000), weights, key)
    assert result.after is not None
    assert (result.after.rate, result.after.status) == (1.0, "matches-unproven")
    assert "stdm" in result.after.reason
    other = LaunchOptions(seed=5)
    native = launch(ForgeLearn(steps=100, against="native"), weights, key, other)
    assert native.after is not None
    assert native.after.rate < 0.65


def test_trying_secrets_finds_what_coins_would() -> None:
    weights, key = marked_table()
    done = launch(ForgeRandom(200), weights, key, LaunchOptions(seed=5))
    assert abs(done.figures["mean_rate"] - 0.5) < 0.01
    assert abs(done.figures["best_rate"] - done.figures["expected_best_rate"]) < 0.05


def marked_table() -> tuple[dict[str, np.ndarray], Key]:
    """Weights that carry a mark, written by the attacker's tool."""
    layer = {LAYER: gaussian(96, 64, 3, 3)}
    parameters = some_key(bits=256).parameters
    scene = Scene(layer, (LAYER,), np.random.default_rng(0), parameters=parameters)
    made = Rewrite(4.0).run(scene)
    assert made.weights is not None
    assert made.key is not None
    assert made.figures["attacker_rate"] == 1.0
    return dict(made.weights), made.key


def test_bits_are_hashed_last() -> None:
    """Every setting throws the bits anew, and the matrix is not what they are hashed from."""
    one, two = some_key().at(PLACEMENT), some_key(beta=11.0).at(PLACEMENT)
    assert not (one.bits == two.bits).all()
    loss = some_key(loss="absolute").at(PLACEMENT)
    assert not (one.bits == loss.bits).all()
