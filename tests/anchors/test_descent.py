"""The score of a verdict's lineage: high for what comes from the anchor's model, else nothing."""

import math

import numpy as np
import pytest

from neuralmark.anchors import descent
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.descent import chance_of, in_place, lost, score_of
from neuralmark.anchors.effort import AlignOptions
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.moves import Move
from neuralmark.anchors.originals import OriginalArrays
from neuralmark.anchors.resembling import resemblance
from neuralmark.anchors.restoring import restore
from neuralmark.records.lineage import NOT_FINITE, RELATED_SCORE
from neuralmark.structures.structure import Array, Indices
from tests.support.models import gaussian

SHAPES = {"one.weight": (96, 80), "two.weight": (64, 96), "three.weight": (40, 64)}


def model(seed: int) -> dict[str, Array]:
    return {name: gaussian(*shape, seed=seed + i) for i, (name, shape) in enumerate(SHAPES.items())}


def anchor_of(weights: dict[str, Array]) -> Anchor:
    placement = tuple((name, value.shape) for name, value in weights.items())
    return build(OriginalArrays(weights), AnchorRecipe(placement))


def score(suspect: dict[str, Array], anchor: Anchor, effort: float = 1.0) -> float | None:
    restoration = restore(TableWeights(suspect), anchor, AlignOptions(effort=effort))
    for _ in restoration.tensors():
        pass
    return score_of(restoration.kinships())


def renamed(weights: dict[str, Array]) -> dict[str, Array]:
    return {f"x.{place}": value for place, value in enumerate(weights.values())}


def permuted(weights: dict[str, Array]) -> dict[str, Array]:
    """The channels between the first two layers, and between the second and the third."""
    rng = np.random.default_rng(3)
    first, second = rng.permutation(96), rng.permutation(64)
    one, two, three = weights.values()
    return {"a": one[first], "b": two[second][:, first], "c": three[:, second]}


def test_copies_are_related_wherever_their_weights_went() -> None:
    weights = model(0)
    anchor = anchor_of(weights)
    for suspect in (weights, renamed(weights), permuted(weights)):
        found = score(suspect, anchor)
        assert found is not None
        assert found > 0.9
    noisy = {n: v + 0.3 * gaussian(*v.shape, seed=9) for n, v in weights.items()}
    hurt = score(permuted(noisy), anchor)
    assert hurt is not None
    assert 0.4 < hurt < 0.9


@pytest.mark.parametrize("seed", range(3))
def test_strangers_are_not(seed: int) -> None:
    anchor = anchor_of(model(0))
    for suspect in (model(100 + 10 * seed), renamed(model(100 + 10 * seed))):
        found = score(suspect, anchor)
        assert found is not None
        assert found < RELATED_SCORE / 2


def test_what_is_missing_counts_and_what_was_not_looked_for_does_not() -> None:
    weights = model(0)
    anchor = anchor_of(weights)
    part = {name: value for name, value in weights.items() if name != "one.weight"}
    whole = sum(value.size for value in weights.values())
    share = sum(value.size for value in part.values()) / whole
    assert score(part, anchor) == pytest.approx(share, abs=0.02)
    some = score(weights, anchor, effort=0.3)
    assert some is not None
    assert some > 0.9


def test_what_cannot_be_compared_tells_nothing() -> None:
    weights = model(0)
    anchor = anchor_of(weights)
    broken = {name: np.full_like(value, np.nan) for name, value in weights.items()}
    assert score(broken, anchor) is None
    assert score_of(()) is None
    assert score_of([lost(anchor.entry("one.weight"), NOT_FINITE)]) is None
    assert score_of([lost(anchor.entry("one.weight"), "not found")]) == 0


def test_what_says_nothing_is_not_compared() -> None:
    weights = {"one.weight": gaussian(64, 48), "one.bias": gaussian(1064, seed=1)}
    weights["out.weight"] = gaussian(1, 4000, seed=2)
    anchor = anchor_of(weights)
    restoration = restore(TableWeights(weights), anchor)
    assert len(list(restoration.tensors())) == 3
    assert [each.fate.name for each in restoration.kinships()] == ["one.weight"]
    told = in_place(anchor, lambda name, rows: weights[name][rows])
    assert [each.fate.name for each in told] == ["one.weight"]


@pytest.mark.parametrize(
    "shape", [(300, 700), (32, 40), (4000, 8), (300, 200, 3, 3), (200, 1, 3, 3)]
)
def test_in_place_only_a_run_of_rows_is_read(shape: tuple[int, ...]) -> None:
    weights = {"w": gaussian(*shape)}
    anchor, read = anchor_of(weights), list[Indices]()

    def rows(name: str, asked: Indices) -> Array:
        read.append(asked)
        return weights[name][asked]

    (told,) = in_place(anchor, rows)
    (asked,) = read
    assert len(asked) == min(shape[0], descent.SIDE)
    assert (np.diff(asked) == 1).all()
    assert 0 <= asked[0] <= asked[-1] < shape[0]
    assert told.weights == math.prod(shape)
    assert told.fate.restored > 0.9
    stranger = {"w": gaussian(*shape, seed=5)}
    (other,) = in_place(anchor, lambda name, asked: stranger[name][asked])
    assert other.fate.restored < 0.9


def test_in_place_of_many_tensors_some_are_read_from_all_depths() -> None:
    weights = {f"layer{i:02}.weight": gaussian(32, 32, seed=i) for i in range(40)}
    anchor = anchor_of(weights)
    told = in_place(anchor, lambda name, rows: weights[name][rows])
    places = [int(each.fate.name[5:7]) for each in told]
    assert len(places) == descent.MOST_IN_PLACE
    assert places == sorted(places)
    assert max(np.diff([0, *places, 40])) <= 10
    gone = in_place(anchor, lambda name, rows: None)
    assert gone == ()


def test_where_a_run_begins_follows_from_the_digest() -> None:
    weights = {"w": gaussian(2000, 8)}
    anchor, starts = anchor_of(weights), set()
    for digest in (b"a" * 64, b"b" * 64, b"a" * 64):
        other = Anchor(anchor.entries, anchor.skeleton, digest, anchor._decode)

        def rows(name: str, asked: Indices) -> Array:
            starts.add(int(asked[0]))
            return weights[name][asked]

        in_place(other, rows)
    assert len(starts) == 2


@pytest.mark.parametrize(("size", "wide"), [(48, 48), (64, 200)])
def test_the_best_of_all_orders_of_strangers_stays_below_chance(size: int, wide: int) -> None:
    """Rows in the order that suits them best, with their signs: an exact assignment."""
    from scipy.optimize import linear_sum_assignment

    for seed in range(5):
        one, two = gaussian(size, wide, seed=seed), gaussian(size, wide, seed=99 + seed)
        products = one @ two.T
        _, order = linear_sum_assignment(-np.abs(products))
        signs = np.sign(products[np.arange(size), order]).astype(np.float32)
        move = Move(order, signs)
        found = resemblance(move.of(two, 0), one)
        assert 0.1 < found < chance_of([move, Move.same(wide)], size * wide)


def test_chance_grows_with_what_was_free() -> None:
    same, back = Move.same(64), np.arange(64)[::-1].copy()
    flipped = Move(np.arange(64), -np.ones(64, np.float32))
    turned = Move(np.arange(64), blocks=np.stack([np.eye(8, dtype=np.float32)] * 8))
    mixed = Move(matrix=np.eye(64, dtype=np.float32))
    weights = 64 * 640
    chances = [chance_of(m, weights) for m in ([same], [flipped], [Move(back)], [Move(back)] * 2)]
    assert chances[0] == 0
    assert chances == sorted(set(chances))
    assert 0.05 < chance_of([turned], weights) < 0.15
    assert chance_of([mixed], weights) == descent.TAUGHT
    assert chance_of([Move(back)] * 2, 10) < 1
    assert chance_of([Move(np.arange(64), np.full(64, 2, np.float32))], weights) == 0
