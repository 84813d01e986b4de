"""2,000 secrets of every scheme on weights that a network learnt: matches must be coin flips."""

import numpy as np
import pytest

from neuralmark import Key, schemes
from neuralmark.core.key import Filter
from neuralmark.core.readout import Known
from neuralmark.training.activations import LayerAtTriggers
from tests.support.coins import KEYS, chi_square, require_coins
from tests.support.learnt import weights_of
from tests.support.schemes import ALL
from tests.support.triggered import LAYER, TRIGGERED, marked

BITS = 64
SIZES = {
    "neuralmark": {"pools": 128, "rounds": 1},
    "clean": {"pools": 128, "rounds": 1},
    "greedymark": {"own": {"row": 31}},
    "deepipr": {"own": {"side": 4}},
    "passport-aware": {"own": {"side": 4}},
    "trapdoor": {"own": {"side": 4}},
}


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    return weights_of("digits")["conv2.weight"][:BITS, :48, :, :]


HASHED_FILTER = [
    (name, "stream") for name in ALL if isinstance(schemes.get(name), schemes.PassportScheme)
]
"""Passports that read what the hashed filter leaves: the signs depend on the bits."""


@pytest.mark.parametrize(("name", "how"), [*((name, None) for name in ALL), *HASHED_FILTER])
def test_matches_follow_the_binomial_law(
    name: str, how: Filter | None, weights: np.ndarray
) -> None:
    sizes = SIZES.get(name, {})
    parameters = schemes.parameters(name, bits=BITS, filter=how, **sizes)  # type: ignore[arg-type]
    scheme, flat = schemes.get(name), weights.astype(np.float64).reshape(-1)
    placement = (("conv2.weight", weights.shape),)
    counts = np.zeros(BITS + 1, np.int64)
    for number in range(KEYS):
        secret = number.to_bytes(32, "little")
        mark = Key(parameters, b"", salt=bytes(32), secret=secret).at(placement)
        carriers = scheme.carriers(mark, placement)
        pooled = flat[carriers.positions()].reshape(-1, carriers.pools).mean(0)
        known = Known.of(mark)
        counts[int((scheme.logits(known, pooled) * known.signs > 0).sum())] += 1

    require_coins(counts)


@pytest.mark.parametrize("name", TRIGGERED)
def test_activations_of_a_learnt_network_match_by_the_same_law(name: str) -> None:
    """A network with a mark of another key in it, its layer, and triggers of its own."""
    made = marked(name)
    scheme = schemes.get(name)
    layer = LayerAtTriggers(made.model(), LAYER[name], made.key, made.triggers)
    bits = BITS // 4 * 5 if name == "featuremap" else BITS // 8 * 10
    own = dict(made.key.parameters.own)
    parameters = schemes.parameters(name, bits=bits, own=own)
    placement = layer.placement()
    values = layer.values().detach().double().numpy()
    counts = np.zeros(bits + 1, np.int64)
    for number in range(KEYS):
        key = Key(parameters, b"", salt=bytes(32), secret=number.to_bytes(32, "little"))
        mark = key.at(placement, triggers=made.triggers.digest)
        pooled = values.reshape(-1, scheme.carriers(mark, placement).pools).mean(0)
        known = Known.of(mark)
        counts[int((scheme.logits(known, pooled) * known.signs > 0).sum())] += 1
    require_coins(counts)


def test_the_check_sees_coins_that_are_not_fair() -> None:
    rng = np.random.default_rng(0)
    fair = np.bincount(rng.binomial(BITS, 0.5, KEYS), minlength=BITS + 1)
    shared = np.bincount(2 * rng.binomial(BITS // 2, 0.5, KEYS), minlength=BITS + 1)
    bent = np.bincount(rng.binomial(BITS, 0.52, KEYS), minlength=BITS + 1)
    assert chi_square(fair) > 1e-4
    assert chi_square(shared) < 1e-4
    assert chi_square(bent) < 1e-4
