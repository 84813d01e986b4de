"""Whether a model is like an anchor at all."""

import math

import numpy as np

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.scanning.kin import FAR, AnchorSketch, spectrum
from tests.support.anchored import anchor_of
from tests.support.models import gaussian

Weights = dict[str, np.ndarray]


def trained(seed: int, rank: int = 12) -> Weights:
    """Layers with a few strong directions, as training gives them."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in (("a.weight", (128, 96)), ("b.weight", (96, 128)), ("c.weight", (64, 96))):
        low = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
        made[name] = (0.05 * low + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    return made


def moved(weights: Weights, noise: float = 0.0) -> Weights:
    """Other names, orders, signs and scales; noise in deviations."""
    rng = np.random.default_rng(7)
    made = {}
    for number, values in enumerate(weights.values()):
        turned = values[rng.permutation(len(values))][:, rng.permutation(values.shape[1])]
        turned = turned * rng.choice([-2.0, 0.5, 1.0], (len(values), 1))
        turned = turned + noise * turned.std() * rng.standard_normal(turned.shape)
        made[f"other.{number}"] = turned.astype(np.float32)
    return made


def distance(suspect: Weights, anchor: Anchor) -> float:
    return AnchorSketch(anchor).distance(TableWeights(suspect))


def test_a_copy_is_near_wherever_it_went() -> None:
    weights = trained(0)
    anchor = anchor_of(weights)
    assert distance(weights, anchor) == 0.0
    assert distance({f"model.{name}": value for name, value in weights.items()}, anchor) == 0.0
    for noise in (0.0, 0.1, 0.3):
        assert 0 < distance(moved(weights, noise), anchor) < FAR


def test_something_else_is_far() -> None:
    anchor = anchor_of(trained(0))
    random = {name: gaussian(*value.shape, seed=3) for name, value in trained(1).items()}
    assert distance(random, anchor) > FAR
    assert distance({"a.weight": gaussian(700, 8)}, anchor) == math.inf
    assert distance({name: np.full_like(v, np.nan) for name, v in trained(0).items()}, anchor) > FAR
    assert distance({name: np.zeros_like(v) for name, v in trained(0).items()}, anchor) > FAR


def test_a_narrowed_copy_is_near() -> None:
    weights = trained(0)
    narrowed = {name: value[: len(value) * 4 // 5] for name, value in moved(weights).items()}
    assert distance(narrowed, anchor_of(weights)) < FAR


def test_a_spectrum_is_that_of_any_order() -> None:
    values = trained(0)["a.weight"]
    (turned, *_) = moved(trained(0)).values()
    np.testing.assert_allclose(spectrum(values), spectrum(turned), atol=1e-3)
    np.testing.assert_allclose(spectrum(values), spectrum(values.T.copy()), atol=1e-3)
