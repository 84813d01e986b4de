"""Tardos' code as the benchmarks use it: the score and its bound, against plain counting."""

import itertools
import math

import numpy as np
from benchmarks._tardos import TardosCode


def naive(code: TardosCode, pirated: list[int], buyer: int) -> float:
    """The score, position by position, as it is written down."""
    total = 0.0
    for y, x, p in zip(pirated, code.words[buyer], code.biases, strict=True):
        if y == x:
            total += math.sqrt((1 - p) / p) if x else math.sqrt(p / (1 - p))
        else:
            total -= math.sqrt((1 - p) / p) if x else math.sqrt(p / (1 - p))
    return total


def test_scores() -> None:
    code = TardosCode.new(6, 40, 3, np.random.default_rng(0))
    pirated = np.random.default_rng(1).integers(0, 2, 40).astype(np.uint8)
    expected = [naive(code, pirated.tolist(), buyer) for buyer in range(6)]
    assert np.allclose(code.scores(pirated), expected)


def test_biases_follow_the_arcsine_law() -> None:
    code = TardosCode.new(400, 2000, 5, np.random.default_rng(0))
    cut = 1 / (300 * 5)
    assert cut <= code.biases.min() < 0.01
    assert 0.99 < code.biases.max() <= 1 - cut
    below = [(code.biases < p).mean() for p in (0.1, 0.25, 0.5, 0.9)]
    law = [2 / math.pi * math.asin(math.sqrt(p)) for p in (0.1, 0.25, 0.5, 0.9)]
    assert np.allclose(below, law, atol=0.04)
    assert np.allclose(code.words.mean(0), code.biases, atol=0.15)


def test_the_bound_holds_exactly() -> None:
    """Every word of twelve bits: the chance of as large a score is at most what is told."""
    length = 12
    code = TardosCode.new(20, length, 2, np.random.default_rng(3))
    pirated = np.random.default_rng(4).integers(0, 2, length).astype(np.uint8)
    words = np.array(list(itertools.product((0, 1), repeat=length)), np.uint8)
    chances = np.where(words == 1, code.biases, 1 - code.biases).prod(axis=1)
    scores = TardosCode(code.biases, words).scores(pirated)
    told = code.bounds_log2(pirated)
    for score, bound in zip(code.scores(pirated), told, strict=True):
        exact = chances[scores >= score - 1e-9].sum()
        assert exact <= 2**bound * (1 + 1e-9)
    assert told.min() < -1


def test_two_colluders_are_named_and_no_innocent() -> None:
    rng = np.random.default_rng(5)
    code = TardosCode.new(50, 4000, 2, rng)
    one, two = code.words[:2]
    pirated = np.where(rng.random(4000) < 0.5, one, two)
    bounds = code.bounds_log2(pirated)
    assert bounds[:2].max() < -128
    assert bounds[2:].min() > -20
