"""One tensor, nothing known of its network."""

import numpy as np
import pytest

from neuralmark.anchors.aligning import fitting
from neuralmark.anchors.aligning.single import align_single
from neuralmark.anchors.effort import ALIGN_LIMIT
from neuralmark.anchors.factors import rescaled
from neuralmark.anchors.moves import MISSING, Move, moved
from neuralmark.errors import AlignLimitError
from tests.support.models import gaussian
from tests.support.rebuilt import coarse, trained

RNG = np.random.default_rng(0)


def shuffled(values: np.ndarray, seed: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
    """Rows and columns in another order, turned and scaled; and where each of them went."""
    rng = np.random.default_rng(seed)
    places = []
    for axis in (0, 1):
        size = values.shape[axis]
        order = rng.permutation(size)
        factors = rng.choice([-1, 1], size) * np.exp(rng.uniform(-1, 1, size))
        shape = [1] * values.ndim
        shape[axis] = -1
        values = np.take(values, order, axis) * factors.reshape(shape)
        places.append(np.argsort(order))
    return values.astype(np.float32), places


@pytest.mark.parametrize(
    "values",
    [
        trained("residual")["layer2.0.conv2.weight"],
        trained("chain")["features.4.weight"],
        gaussian(300, 500),
        gaussian(48, 40, 5, 5),
    ],
    ids=["trained", "chain", "Gaussian matrix", "large kernels"],
)
def test_order_and_signs_are_found(values: np.ndarray) -> None:
    suspect, places = shuffled(values)
    found = align_single(suspect, coarse(values), ALIGN_LIMIT)
    for move, place in zip(found.moves, places, strict=True):
        np.testing.assert_array_equal(move.index, place)
    assert found.changes == ("permuted", "flipped")
    back, changes = rescaled(moved(suspect, found.moves), coarse(values))
    assert np.linalg.norm(back - values) < 0.05 * np.linalg.norm(values)
    assert changes == ("rescaled",)


def test_more_channels_than_a_full_assignment_takes() -> None:
    values = gaussian(2300, 400)
    suspect, places = shuffled(values)
    known = Move(places[1])
    found = align_single(suspect, coarse(values), ALIGN_LIMIT, (None, known))
    np.testing.assert_array_equal(found.moves[0].index, places[0])
    np.testing.assert_array_equal(found.moves[1].index, places[1])


@pytest.mark.parametrize("axis", [0, 1])
def test_one_axis_lies_where_it_lay(axis: int) -> None:
    values = gaussian(120, 100)
    order = np.random.default_rng(0).permutation(values.shape[axis])
    found = align_single(np.take(values, order, axis), coarse(values), ALIGN_LIMIT)
    np.testing.assert_array_equal(found.moves[axis].index, np.argsort(order))
    assert found.moves[1 - axis].is_same
    assert found.changes == ("permuted",)


def test_a_kernel_of_very_many_positions() -> None:
    values = gaussian(24, 3, 36, 36)
    suspect, places = shuffled(values)
    found = align_single(suspect, coarse(values), ALIGN_LIMIT)
    np.testing.assert_array_equal(found.moves[0].index, places[0])


def test_strangers_among_the_channels() -> None:
    values = trained("residual")["layer2.0.conv2.weight"]
    suspect, places = shuffled(values)
    more = np.concatenate([suspect[:20], RNG.choice(suspect.reshape(-1), (9, *suspect.shape[1:]))])
    found = align_single(more.astype(np.float32), coarse(values), ALIGN_LIMIT)
    np.testing.assert_array_equal(
        found.moves[0].index, np.where(places[0] < 20, places[0], MISSING)
    )
    assert found.changes == ("permuted", "flipped", "9 dummies dropped", "12 channels missing")


@pytest.mark.parametrize(
    "fill", [0.0, 1.0, np.nan, np.inf], ids=["zeros", "equal", "NaN", "infinite"]
)
@pytest.mark.parametrize("kernel", [(), (3, 3)], ids=["matrix", "kernels"])
def test_nothing_to_go_by(kernel: tuple[int, ...], fill: float) -> None:
    anchor = gaussian(48, 64, *kernel)
    suspect = np.full((60, 64, *kernel), fill, np.float32)
    found = align_single(suspect, anchor, ALIGN_LIMIT)
    assert found.cosine < 0.1
    back, _ = rescaled(moved(suspect, found.moves), anchor)
    assert np.isfinite(back).all()


def test_a_spoilt_channel_spoils_no_other() -> None:
    values = trained("residual")["layer2.0.conv2.weight"]
    suspect, places = shuffled(values)
    suspect[3] = np.nan
    found = align_single(suspect, coarse(values), ALIGN_LIMIT)
    np.testing.assert_array_equal(
        found.moves[0].index, np.where(places[0] == 3, MISSING, places[0])
    )


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_sizes_do_not_matter(size: float) -> None:
    values = trained("residual")["layer1.0.conv1.weight"]
    suspect, places = shuffled(values)
    found = align_single((suspect * size).astype(np.float32), coarse(values), ALIGN_LIMIT)
    np.testing.assert_array_equal(found.moves[0].index, places[0])


def test_many_equal_rows_are_within_bounds() -> None:
    found = align_single(np.ones((30_000, 32), np.float32), gaussian(64, 32), ALIGN_LIMIT)
    told = "32 channels not matched", "30,000 dummies dropped", "64 channels missing"
    assert found.changes == told


def test_beyond_the_limit() -> None:
    with pytest.raises(AlignLimitError, match=r"raise align_limit to 12,800 or more"):
        align_single(gaussian(200, 32), gaussian(64, 32), 10_000)


def test_an_axis_of_which_nothing_is_left_tells_nothing() -> None:
    nothing = Move(np.full(32, MISSING, np.intp))
    values = gaussian(48, 32)
    found = align_single(values, values, ALIGN_LIMIT, (None, nothing))
    assert found.cosine == 0
    assert not found.moves[1].found.any()


def test_a_sample_of_the_columns_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_WORK", 1)
    monkeypatch.setattr(fitting, "_FEWEST", 200)
    values = gaussian(48, 400)
    suspect, places = shuffled(values)
    found = align_single(suspect, coarse(values), ALIGN_LIMIT, (None, Move(places[1])))
    np.testing.assert_array_equal(found.moves[0].index, places[0])


def test_the_last_sweep_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_SWEEPS", 1)
    values = trained("residual")["layer2.0.conv2.weight"]
    suspect, places = shuffled(values)
    found = align_single(suspect, coarse(values), ALIGN_LIMIT)
    index = found.moves[0].index
    assert index is not None
    assert (index == places[0]).mean() > 0.9


def test_a_tensor_that_cannot_be_the_other_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be one of"):
        align_single(gaussian(8, 8, 3, 3), gaussian(8, 8), ALIGN_LIMIT)


def test_a_known_move_is_an_order() -> None:
    turn = Move(matrix=np.eye(8, dtype=np.float32))
    with pytest.raises(ValueError, match="must be a gather"):
        align_single(gaussian(8, 8), gaussian(8, 8), ALIGN_LIMIT, (turn, None))


def test_channels_that_cannot_be_told_apart_are_neither_dropped_nor_missing() -> None:
    values = gaussian(64, 96)
    values[5:7] = 0.0  # dead where the owner marked it, and noise where it is read
    suspect, _ = shuffled(values)
    dead = np.abs(suspect).sum(axis=1) == 0
    suspect[dead] = 0.05 * np.random.default_rng(1).standard_normal((2, 96))
    values[5:7] = 0.05 * np.random.default_rng(2).standard_normal((2, 96))
    found = align_single(suspect.astype(np.float32), values, ALIGN_LIMIT)
    assert found.changes == ("permuted", "flipped", "2 channels not matched")
