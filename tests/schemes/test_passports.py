"""Bits from passports: what is read, what it takes, and who may choose."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import neuralmark
from neuralmark import Key, schemes
from neuralmark.core.key import Filter, Mark, Placement
from neuralmark.core.readout import Known
from neuralmark.errors import (
    ParameterError,
    PassportMismatchError,
    TooFewCarriersError,
    UnsuitableTensorError,
)
from neuralmark.schemes import PassportScheme
from tests.support.checks import one_line

NAMES = ("deepipr", "passport-aware", "trapdoor")
PLACEMENT: Placement = (("a.weight", (64, 16, 3, 3)), ("b.weight", (128, 64, 3, 3)))
LINEAR = [name for name in NAMES if schemes.get(name).linear]


def key_of(name: str, bits: int = 160, how: Filter = "none", number: int = 1, **own: Any) -> Key:
    chosen = schemes.parameters(name, bits=bits, filter=how, own={"side": 4, **own})
    return Key(chosen, b"", salt=bytes(32), secret=bytes([number]) * 32)


def weights_of(placement: Placement = PLACEMENT, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype("f4") * 0.05 for name, shape in placement}


def laid(weights: dict[str, np.ndarray], mark: Mark, placement: Placement) -> np.ndarray:
    flat = np.concatenate([weights[name].reshape(-1) for name, _ in placement]).astype(np.float64)
    return flat[schemes.of(mark).carriers(mark, placement).positions()]


@pytest.mark.parametrize(("name", "how"), list(product(NAMES, ("none", "stream"))))
def test_a_bit_is_what_a_convolution_makes_of_a_passport(name: str, how: Filter) -> None:
    """Against torch's own convolution, layer by layer, with what the filter leaves."""
    key, weights = key_of(name, how=how), weights_of()
    mark = key.at(PLACEMENT)
    scheme = schemes.of(mark)
    assert isinstance(scheme, PassportScheme)
    naive = []
    for part, (layer, shape) in zip(scheme.passports_of(mark, PLACEMENT), PLACEMENT, strict=True):
        kept = np.ones(shape, bool) if part.mask is None else part.mask.reshape(shape)
        weight = torch.from_numpy(weights[layer] * kept)
        passport = torch.from_numpy(part.scale.reshape(1, shape[1], 4, 4))
        answer = functional.conv2d(passport, weight, padding=1)[0]
        naive.append(answer.amax((1, 2)) if name == "trapdoor" else answer.mean((1, 2)))
    every = torch.cat(naive).numpy()
    read = scheme.factors(Known.of(mark), laid(weights, mark, PLACEMENT))
    np.testing.assert_allclose(read, every[mark.extra["rows"]], atol=1e-6)
    assert (np.diff(mark.extra["rows"]) > 0).all()
    if how == "stream":
        masks = [part.mask for part in scheme.passports_of(mark, PLACEMENT)]
        share = np.mean(np.concatenate([mask for mask in masks if mask is not None]))
        assert 0.48 < share < 0.52


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("how", ["none", "stream"])
def test_the_smallest_change_writes_every_bit(name: str, how: Filter) -> None:
    mark = key_of(name, how=how).at(PLACEMENT)
    scheme = schemes.of(mark)
    before = laid(weights_of(), mark, PLACEMENT)
    solver, known = scheme.solver(mark), Known.of(mark)
    margins = scheme.logits(known, before) * known.signs
    np.testing.assert_allclose(solver.margins(before), margins, atol=1e-4)
    goal = 2.0 * float(np.linalg.norm(before - before.mean()))
    change = solver.change(before, goal)
    after = scheme.logits(known, before + change) * known.signs
    assert after.min() >= goal * 0.9999
    # Smallest: rows are apart, so each costs its own distance, and those that hold do not move.
    lacking = np.maximum(goal - margins, 0) / scheme.steepest(mark)
    assert np.linalg.norm(change) == pytest.approx(np.linalg.norm(lacking), rel=1e-4)


@pytest.mark.parametrize("name", LINEAR)
def test_the_radius_is_certified_against_who_knows_the_key(name: str) -> None:
    key, model = key_of(name), {n: torch.from_numpy(w) for n, w in weights_of().items()}
    host = torch.nn.ModuleDict()
    for layer, weight in model.items():
        part = torch.nn.Conv2d(weight.shape[1], weight.shape[0], 3, bias=False)
        part.weight.data = weight.clone()
        host[layer.partition(".")[0]] = part
    tensors = [layer for layer, _ in PLACEMENT]
    neuralmark.imprint(host, key, tensors=tensors, strength=2.0)
    verdict = neuralmark.verify(host, key, tensors=tensors)
    assert verdict.verified
    assert verdict.certified_radius is not None
    assert verdict.boundary is not None
    mark = key.at(PLACEMENT)
    scheme, known = schemes.of(mark), Known.of(mark)
    state = {n: v.numpy() for n, v in host.state_dict().items()}
    pooled = laid(state, mark, PLACEMENT)
    margins = scheme.logits(known, pooled) * known.signs
    cheapest = np.sort(margins)[: 160 - verdict.boundary + 1]
    exact = np.linalg.norm(cheapest) / scheme.steepest(mark)
    assert verdict.certified_radius == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("name", LINEAR)
def test_a_constant_moves_no_bit(name: str) -> None:
    mark = key_of(name).at(PLACEMENT)
    total = sum(int(np.prod(shape)) for _, shape in PLACEMENT)
    scheme = schemes.of(mark)
    assert isinstance(scheme, PassportScheme)
    assert np.abs(scheme.factors(Known.of(mark), np.ones(total))).max() < 1e-5


def test_linear_layers_take_passports_too() -> None:
    placement: Placement = (("fc.weight", (192, 48)),)
    mark = key_of("deepipr").at(placement)
    weights = weights_of(placement)
    scheme = schemes.of(mark)
    assert isinstance(scheme, PassportScheme)
    passport = scheme.passports_of(mark, placement)[0].scale
    assert passport.shape == (48,)
    read = scheme.factors(Known.of(mark), laid(weights, mark, placement))
    naive = (weights["fc.weight"] @ passport)[mark.extra["rows"]]
    np.testing.assert_allclose(read, naive, atol=1e-6)


def test_trapdoor_hashes_its_passports() -> None:
    """Bits of one's own choice are not listened to; a passport that is bent has other bits."""
    key = key_of("trapdoor")
    mark = key.at(PLACEMENT)
    ones = np.ones(160, np.uint8)
    raw = Key.chosen(key.parameters, mark.matrix, bits=ones).at(PLACEMENT)
    assert 0.3 < raw.bits.mean() < 0.7
    bent = mark.matrix.copy()
    bent[0, 0] += 1e-3
    other = Key.chosen(key.parameters, bent, bits=ones).at(PLACEMENT)
    assert 0.3 < (other.bits == raw.bits).mean() < 0.7
    free = Key.chosen(key_of("deepipr").parameters, mark.matrix, bits=ones).at(PLACEMENT)
    assert free.bits.all()


def test_passports_of_other_layers_are_named(tmp_path: Any) -> None:
    from safetensors.numpy import save_file

    key = key_of("deepipr")
    raw = Key.chosen(key.parameters, key.at(PLACEMENT).matrix, bits=np.ones(160, np.uint8))
    elsewhere: Placement = (("a.weight", (192, 16, 3, 3)),)
    save_file(weights_of(elsewhere), tmp_path / "m.safetensors")
    with pytest.raises(PassportMismatchError, match="name the layers") as caught:
        neuralmark.verify(tmp_path / "m.safetensors", raw, tensors=["a.weight"])
    one_line(caught.value)


def test_what_takes_no_passports_is_named() -> None:
    with pytest.raises(TooFewCarriersError, match="192 output channels, too few") as caught:
        key_of("deepipr", bits=200).at(PLACEMENT)
    one_line(caught.value)
    with pytest.raises(UnsuitableTensorError, match="takes no passport") as refused:
        key_of("deepipr").at((("w", (200, 4, 3, 3, 3)),))
    one_line(refused.value)
    with pytest.raises(UnsuitableTensorError, match="cap"):
        key_of("deepipr").at((("w", (4096, 8192)),))
    with pytest.raises(TooFewCarriersError, match="smaller side") as caught:
        key_of("trapdoor", side=8).at((("w", (200, 3, 3, 3)),))
    one_line(caught.value)


@pytest.mark.parametrize(("name", "rounds"), list(product(NAMES, (9, 16, 40))))
def test_a_filter_that_leaves_a_bit_no_weight_is_refused(name: str, rounds: int) -> None:
    chosen = schemes.parameters(name, bits=160, filter="stream", rounds=rounds, own={"side": 4})
    key = Key(chosen, b"", salt=bytes(32), secret=bytes([1]) * 32)
    with pytest.raises(TooFewCarriersError, match="fewer rounds") as caught:
        key.at(PLACEMENT)
    one_line(caught.value)
    key_of(name, how="stream").at(PLACEMENT)


def test_parameters_that_do_not_fit_are_refused() -> None:
    for wrong in ({"side": 0}, {"side": 2.5}, {"version": 4}):
        with pytest.raises(ParameterError):
            schemes.parameters("deepipr", own=wrong)
    with pytest.raises(ParameterError, match="no pools"):
        schemes.parameters("deepipr", pools=512)
    with pytest.raises(ParameterError, match="rounds with a filter"):
        schemes.parameters("deepipr", rounds=2)
    for name in NAMES:
        with pytest.raises(
            ParameterError, match="rounds must be at least 1 with the filter stream"
        ):
            schemes.parameters(name, filter="stream", rounds=0)
    with pytest.raises(ParameterError, match="filter of deepipr"):
        schemes.parameters("deepipr", filter="tiled")
    assert schemes.parameters("deepipr", filter="stream", rounds=3).rounds == 3


@pytest.mark.parametrize("name", NAMES)
def test_versions_sides_and_filters_make_other_marks(name: str) -> None:
    bits = key_of(name).at(PLACEMENT).bits
    others = [key_of(name, side=3), key_of(name, how="stream"), key_of(name, number=2)]
    for other in others:
        assert 0.3 < (other.at(PLACEMENT).bits == bits).mean() < 0.7
