"""Statistics that might betray a mark: right on what is known, blind where there is nothing."""

from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from neuralmark import Key
from neuralmark.attacks.detect import (
    STATISTICS,
    Detect,
    auc,
    edge,
    excess_kurtosis,
    ks_between,
    ks_gaussian,
    marchenko_pastur,
    spectral_between,
    study,
    update,
)
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.checkpoints.readers.memory import MemoryCheckpoint
from neuralmark.errors import AttackError, DataMismatchError, MissingDataError, ParameterError
from neuralmark.marking.drafting import draft, plan
from tests.support.models import QUICK, gaussian

Weights = npt.NDArray[np.float32]


def marked(tensor: Weights, strength: float) -> Weights:
    """A real mark, written as `embed` does."""
    key = Key(QUICK, b"", salt=bytes(32), secret=bytes([1]) * 32)
    kept = tensor.copy()
    kept.flags.writeable = False
    made = draft(plan(MemoryCheckpoint({"w": kept}), key, ["w"]), strength=strength)
    return np.frombuffer(b"".join(made.edits()["w"]()), "<f4").reshape(tensor.shape).copy()


def test_auc_counts_pairs() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.integers(0, 6, 13), rng.integers(0, 6, 17)
    naive = np.mean([(a > b) + 0.5 * (a == b) for a, b in product(ours, theirs)])
    assert auc(ours.astype(float), theirs.astype(float)) == pytest.approx(naive)
    assert auc([2.0, 3.0], [0.0, 1.0]) == 1
    assert auc([0.0], [1.0, 2.0]) == 0
    assert auc([1.0, 1.0], [1.0]) == 0.5


def test_auc_of_one_distribution_is_about_a_half() -> None:
    rng = np.random.default_rng(0)
    assert auc(rng.standard_normal(4000), rng.standard_normal(4000)) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("scores", [([], [1.0]), ([1.0], []), ([float("nan")], [1.0])])
def test_auc_needs_scores(scores: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ParameterError):
        auc(*scores)


def test_statistics_against_scipy_and_known_laws() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    one, two = rng.standard_normal(3000), rng.laplace(size=2000)
    assert excess_kurtosis(one) == pytest.approx(stats.kurtosis(one))
    plain, other = (stats.zscore(values) for values in (one, two))
    assert ks_between(one, 5 * two + 3) == pytest.approx(stats.ks_2samp(plain, other).statistic)
    assert ks_gaussian(two) == pytest.approx(stats.kstest(other, "norm").statistic)


@pytest.mark.parametrize("shape", [(200, 200), (64, 512), (512, 64)])
def test_noise_follows_the_law_of_noise(shape: tuple[int, int]) -> None:
    noise = gaussian(*shape)
    assert marchenko_pastur(noise) < 3 / min(shape)
    assert edge(noise) == pytest.approx(1, abs=0.05)
    spiked = noise + 0.05 * np.outer(np.ones(shape[0]), np.sign(gaussian(shape[1], seed=1)))
    assert edge(spiked.astype(np.float32)) > 1.5
    assert marchenko_pastur(np.sqrt(np.abs(noise)) * np.sign(noise[:, :1])) > 6 / min(shape)
    assert spectral_between(noise, gaussian(*shape, seed=2)) < 0.1


def test_an_update_of_a_mark_moves_in_unison() -> None:
    tensor = gaussian(128, 288)
    made = marked(tensor, 1.0)
    found = update(tensor, made)
    plain = update(tensor, tensor + gaussian(128, 288, seed=9) * np.float32(0.1))
    assert found["unison"] > 20
    assert found["duplicated"] > 0.9
    assert found["changed"] < 0.8
    assert plain["unison"] < 3
    assert plain["changed"] > 0.99
    assert plain["distinct"] > 10 * found["distinct"]
    assert update(tensor, tensor)["changed"] == 0
    with pytest.raises(ParameterError):
        update(tensor, made[:3])


def test_study_sees_nothing_where_there_is_nothing() -> None:
    tensors = [gaussian(32, 128, seed=s) for s in range(12)]
    found = study({"nothing": lambda tensor, rng: tensor}, tensors, np.random.default_rng(0))
    assert set(found["nothing"]) == {*STATISTICS, "unison", "sparse"}
    assert all(value == 0.5 for value in found["nothing"].values())


def test_study_sees_what_is_plain_to_see_and_not_what_is_faint() -> None:
    tensors = [gaussian(64, 288, seed=s) for s in range(16)]
    rng = np.random.default_rng(0)
    references = [gaussian(64, 288, seed=s) for s in range(100, 106)]
    makers = {
        "faint": lambda tensor, _: marked(tensor, 0.25),
        "crude": lambda tensor, _: marked(tensor, 8.0),
    }
    found = study(makers, tensors, rng, references=references)
    assert found["crude"]["kurtosis"] > 0.7
    assert found["crude"]["ks"] > 0.95
    assert all(0.2 < found["faint"][name] < 0.8 for name in STATISTICS)
    assert all(scores["unison"] == scores["sparse"] == 1 for scores in found.values())


def test_study_keeps_makers_from_marking_the_clean_tensors() -> None:
    def careless(tensor: Weights, rng: np.random.Generator) -> Weights:
        tensor += 1
        return tensor

    tensor = gaussian(16, 16)
    kept = tensor.copy()
    with pytest.raises(ValueError, match="read-only"):
        study({"careless": careless}, [tensor], np.random.default_rng(0))
    assert np.array_equal(tensor, kept)
    assert tensor.flags.writeable
    with pytest.raises(ParameterError):
        study({}, [], np.random.default_rng(0))


def test_one_checkpoint_alone_and_beside_clean_ones() -> None:
    table = {"a.weight": gaussian(64, 128), "a.bias": gaussian(64)}
    alone = launch(Detect(), table)
    assert set(alone.figures) == set(STATISTICS)
    assert alone.change == 0
    clean = [{"module.a.weight": gaussian(64, 128, seed=s)} for s in (5, 6, 7)]
    beside = launch(Detect(), table, options=LaunchOptions(others=clean))
    assert set(beside.figures) == {*STATISTICS, *(f"clean_{name}" for name in STATISTICS)}
    assert beside.figures["ks"] < 0.05
    odd = {"a.weight": np.sign(table["a.weight"])}
    assert launch(Detect(), odd, options=LaunchOptions(others=clean)).figures["ks"] > 0.2


def test_before_and_after() -> None:
    before = gaussian(128, 288)
    table = {"a.weight": marked(before, 1.0)}
    found = launch(
        Detect("before"), table, options=LaunchOptions(others=[{"a.weight": before}])
    ).figures
    assert found["update_unison"] > 20
    assert 0 < found["update_changed"] < 0.8
    with pytest.raises(MissingDataError):
        launch(Detect("before"), table)


def test_what_does_not_fit_is_said() -> None:
    table = {"a.weight": gaussian(64, 128)}
    for other in ({"a.weight": gaussian(64, 64)}, {"b.weight": gaussian(64, 128)}):
        with pytest.raises(DataMismatchError):
            launch(Detect(), table, options=LaunchOptions(others=[other]))
    with pytest.raises(AttackError):
        launch(Detect(), {"a.bias": gaussian(64)})
