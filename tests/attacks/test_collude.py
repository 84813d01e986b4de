"""Mixtures of copies: each way does what it says, and all of them need other copies."""

import numpy as np
import pytest

from neuralmark.attacks import launch
from neuralmark.attacks.collude import MIXINGS, Collude, Mixing, mixed
from neuralmark.attacks.contract import Scene
from neuralmark.errors import DataMismatchError, MissingDataError, ParameterError
from tests.support.models import gaussian

COPIES = [gaussian(40, 30, seed=seed) for seed in range(5)]
TOGETHER = np.stack(COPIES)


def made(how: Mixing) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return mixed(COPIES, how, np.random.default_rng(0))


def test_what_each_weight_becomes() -> None:
    assert np.allclose(made("average"), TOGETHER.mean(0), atol=1e-7)
    assert np.array_equal(made("median"), np.sort(TOGETHER, 0)[2])
    assert np.array_equal(made("minimum"), TOGETHER.min(0))
    assert np.array_equal(made("maximum"), TOGETHER.max(0))


def test_what_most_agree_on() -> None:
    three = [np.array(row, np.float32) for row in ([1, 1, 3, 5], [2, 1, 3, 6], [1, 2, 3, 7])]
    for seed in range(5):
        *agreed, other = mixed(three, "majority", np.random.default_rng(seed)).tolist()
        assert agreed == [1, 1, 3]
        assert other in (5, 6, 7)


def test_chance_takes_from_all() -> None:
    drawn, ends = made("draw"), made("extremes")
    shares = [(drawn == copy).mean() for copy in COPIES]
    assert min(shares) > 0.15
    assert sum(shares) == pytest.approx(1)
    low, high = TOGETHER.min(0), TOGETHER.max(0)
    assert ((ends == low) | (ends == high)).all()
    assert 0.4 < (ends == low).mean() < 0.6


@pytest.mark.parametrize("how", MIXINGS)
def test_copies_that_are_the_same_stay_it(how: Mixing) -> None:
    same = mixed(COPIES[:1] * 3, how, np.random.default_rng(0))
    assert np.array_equal(same, COPIES[0])
    assert same.dtype == np.float32


def scene(*others: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]) -> Scene:
    return Scene({"w": COPIES[0]}, ("w",), np.random.default_rng(0), others=others)


def test_all_other_checkpoints_are_mixed_in() -> None:
    outcome = Collude("maximum").run(scene({"w": COPIES[1]}, {"w": COPIES[2]}))
    assert outcome.weights is not None
    assert np.array_equal(outcome.weights["w"], TOGETHER[:3].max(0))
    assert outcome.note == "3 copies were mixed"


def test_what_cannot_be_mixed() -> None:
    for other in ({}, {"w": COPIES[1][:3]}):
        with pytest.raises(DataMismatchError, match="other checkpoint 1"):
            Collude().run(scene(other))
    with pytest.raises(MissingDataError):
        launch(Collude(), {"w": COPIES[0]})
    with pytest.raises(ParameterError, match="how must be one of"):
        Collude("stirred")  # type: ignore[arg-type]
