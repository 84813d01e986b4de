"""Related and unrelated models told apart, in little time."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

import neuralmark
from neuralmark.anchors import descent, lineage
from neuralmark.anchors.aligning import align_apart
from neuralmark.anchors.aligning.contract import Aligned
from neuralmark.anchors.effort import AlignOptions
from neuralmark.anchors.lineage import kinships
from neuralmark.anchors.locating import Located
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.locating.views import Stored
from neuralmark.anchors.moves import Move
from neuralmark.errors import RecordError
from neuralmark.records import Lineage
from neuralmark.records.alignment import TensorFate
from neuralmark.records.lineage import Kinship
from neuralmark.structures.structure import Array
from tests.support.models import gaussian
from tests.support.rebuilt import anchor_of

Table = dict[str, Array]


def model(seed: int) -> Table:
    """Embeddings that have more than half of their energy in a mean vector, and square layers."""
    rng = np.random.default_rng(seed)

    def random(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    table = {"embed.weight": random(240, 48) + 1.4 * random(1, 48)}
    for number in range(3):
        table[f"layer{number}.weight"] = random(48, 48) + 0.5 * random(48, 1) * random(1, 48)
    return table | {"head.weight": random(240, 48) + 1.4 * random(1, 48)}


def rearranged(table: Table) -> Table:
    """Every axis of every tensor in another order."""
    rng = np.random.default_rng(9)
    return {n: v[rng.permutation(len(v))][:, rng.permutation(v.shape[1])] for n, v in table.items()}


def test_strangers_with_one_leading_direction_are_no_relatives() -> None:
    for seed in (1, 2):
        found = neuralmark.lineage(model(0), model(seed))
        assert found.score < 0.03, found


def test_a_damaged_and_rearranged_copy_is_a_relative() -> None:
    rng = np.random.default_rng(3)
    hurt = {
        n: (v + 0.3 * v.std() * rng.standard_normal(v.shape)).astype(np.float32)
        for n, v in model(0).items()
    }
    found = neuralmark.lineage(model(0), rearranged(hurt))
    assert found.score > 0.3, found
    assert all(0 < each.chance < 0.6 for each in found.tensors)


def test_what_was_not_looked_for_does_not_count() -> None:
    found = neuralmark.lineage(model(0), model(0), options=AlignOptions(effort=0.05))
    assert found.related
    assert found.score > 0.99
    assert 0 < found.looked_at < 0.5
    left = [each for each in found.tensors if not each.looked_for]
    assert left
    assert all(each.fate.changes == ("not looked for",) for each in left)
    assert "of the weights looked for" in str(found)
    assert Lineage.from_dict(found.to_dict()) == found


def test_one_broken_tensor_costs_no_search() -> None:
    said: list[str] = []
    hurt = model(0)
    hurt["layer1.weight"] = hurt["layer1.weight"].copy()
    hurt["layer1.weight"][2, 3] = np.nan
    found = neuralmark.lineage(model(0), hurt, progress=lambda what, *_: said.append(what))
    fates = {each.fate.name: each for each in found.tensors}
    assert fates["layer1.weight"].fate.changes == ("it holds NaN or infinity",)
    assert fates["layer1.weight"].score == 0
    assert found.score > 0.99
    assert 0.8 < found.compared < 1
    assert found.least_score < found.score
    assert not any("in order" in what for what in said)


def test_progress_names_what_is_done() -> None:
    said: list[str] = []

    def tell(what: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        said.append(what)

    neuralmark.lineage(model(0), model(1), progress=tell)
    for part in ("finding tensors", "in order", "comparing", "in products", "what chance gives"):
        assert any(part in what for what in said), part


def test_searches_in_vain_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, ...]] = []

    def counted(values: Array, coarse: Array, limit: int) -> Aligned:
        tried.append(coarse.shape)
        return align_apart(values, coarse, limit)

    monkeypatch.setattr(lineage, "align_apart", counted)
    monkeypatch.setattr(lineage, "IN_VAIN", 0)
    rng = np.random.default_rng(0)
    one, two = (
        {f"a{i}.weight": rng.standard_normal((40, 40)).astype(np.float32) for i in range(9)}
        for _ in range(2)
    )
    assert neuralmark.lineage(one, two).score < 0.05
    assert len(tried) == lineage.PROBED + 1  # and one stranger
    tried.clear()
    assert neuralmark.lineage(one, rearranged(one)).score > 0.95
    assert len(tried) > 9


def test_a_rearranged_layer_that_was_cut_in_two_is_found() -> None:
    rng = np.random.default_rng(0)
    names = [f"layer{i}.weight" for i in range(3)]
    one = {n: rng.standard_normal((24, 24, 3, 3)).astype(np.float32) for n in names}
    two = {}
    for name, value in one.items():
        moved = value[rng.permutation(24)][:, rng.permutation(24)]
        mix = np.linalg.qr(rng.standard_normal((24, 24)))[0].astype(np.float32)
        two[name.replace("weight", "0.weight")] = np.einsum("ro,oikl->rikl", mix, moved)
        two[name.replace("weight", "1.weight")] = mix.T[:, :, None, None].copy()
    found = neuralmark.lineage(one, two)
    assert found.score > 0.9, found
    assert all("factored into two" in each.fate.changes for each in found.tensors)


def test_what_the_same_data_teach_is_no_relation() -> None:
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    rotated = Move(matrix=rotation.astype(np.float32))
    assert descent.taught((Move.same(9), rotated)) == descent.TAUGHT
    assert descent.taught((Move.same(9), Move(np.arange(6)[::-1].copy()))) == 0


TABLE: dict[str, Array] = {"a.weight": gaussian(64, 48), "b.weight": gaussian(40, 64, seed=1)}


def test_a_model_under_a_wrapper_is_compared_all_the_same() -> None:
    skeleton = anchor_of(TABLE).skeleton
    wrapped = TableWeights({f"module.{name}": value for name, value in TABLE.items()})
    found, _ = kinships(wrapped, skeleton, TableWeights(TABLE))
    assert [(each.fate.name, each.score) for each in found] == [("a.weight", 1), ("b.weight", 1)]


def test_tensors_that_the_first_model_lacks_are_left_out() -> None:
    skeleton = anchor_of(TABLE).skeleton
    less = TableWeights({"a.weight": TABLE["a.weight"]})
    found, _ = kinships(less, skeleton, TableWeights(TABLE))
    assert [each.fate.name for each in found] == ["a.weight"]


def test_moves_that_do_not_fit_are_no_likeness() -> None:
    value = gaussian(24, 16)
    for moves in (
        (Move(np.arange(24) + 8), Move.same(16)),
        (Move.same(24), Move(matrix=np.eye(16, 12, dtype=np.float32))),
    ):
        located = Located(Stored("a"), 0.0, direct=False)
        found = lineage._Placed.of(value, value, located, Aligned(moves, (), 1.0))
        assert (found.likeness, found.found) == (0.0, 0.0)


def test_what_is_too_large_to_align_is_not_unlike() -> None:
    rng = np.random.default_rng(0)
    one = {f"a{i}.weight": rng.standard_normal((40, 40)).astype(np.float32) for i in range(9)}
    one["head.weight"] = rng.standard_normal((30, 40)).astype(np.float32)
    other = rearranged(one) | {"head.weight": one["head.weight"]}
    found = neuralmark.lineage(one, other, options=AlignOptions(limit=100))
    large = [each for each in found.tensors if not each.compared]
    assert len(large) == 9  # not only those that are tried before searches are given up
    for each in large:
        assert each.fate.changes == ("too large to align: raise align_limit to 1600",)
    assert 0 < found.compared < 0.1
    assert (found.related, found.decided) == (False, False)
    assert "9 too large to align (raise align_limit to 1600)" in str(found)
    assert Lineage.from_dict(found.to_dict()) == found
    raised = neuralmark.lineage(one, other, options=AlignOptions(limit=1600))
    assert raised.related
    assert raised.compared == 1


@pytest.mark.parametrize("prefix", ["", "other."])
def test_a_model_full_of_nan_is_not_unlike(prefix: str) -> None:
    table = model(0)
    broken = {prefix + n: np.full_like(v, np.nan) for n, v in table.items()}
    for one, two in ((table, broken), (broken, table)):
        found = neuralmark.lineage(one, two)
        assert (found.compared, found.related, found.decided) == (0, False, False)
        assert "5 with NaN or infinity" in found.hindrance


def test_zeros_are_not_compared() -> None:
    zeros = {n: np.zeros_like(v) for n, v in model(0).items()}
    found = neuralmark.lineage(zeros, zeros)
    assert [each.fate.changes for each in found.tensors] == [("it is all zeros",)] * 5
    assert not found.decided
    assert neuralmark.lineage(
        model(0), zeros
    ).decided  # other weights, and nothing like the first's


CHANGES: dict[str, Callable[[Array, np.random.Generator], npt.NDArray[np.floating]]] = {
    "shifted": lambda w, _: w + 5,
    "noise": lambda w, rng: w + 2 * w.std() * rng.standard_normal(w.shape),
    "low rank": lambda w, rng: (
        w + rng.standard_normal((len(w), 8)) @ rng.standard_normal((8, w.shape[1]))
    ),
    "outliers": lambda w, rng: np.where(rng.random(w.shape) < 0.01, 50, w),
}


@pytest.mark.parametrize("how", CHANGES)
def test_what_lies_where_it_was_is_compared_there(how: str) -> None:
    """However large the change in place: no order of its channels is likelier."""
    model = {f"{n}.weight": gaussian(160, 128, seed=n) for n in range(2)}
    stranger = {f"{n}.weight": gaussian(160, 128, seed=50 + n) for n in range(2)}
    rng = np.random.default_rng(4)
    hurt, other = (
        {n: CHANGES[how](w, rng).astype(np.float32) for n, w in weights.items()}
        for weights in (model, stranger)
    )
    found = neuralmark.lineage(model, hurt)
    assert found.related
    assert found.score > 0.2
    assert all(each.fate.found == 1 for each in found.tensors)
    assert not neuralmark.lineage(model, other).related
    assert Lineage.from_dict(found.to_dict()) == found


def test_what_was_set_aside_is_not_compared() -> None:
    fate = TensorFate("a", "a", 0.9, 0.9, 1.0)
    whole, half = Kinship(fate, 100), Kinship(fate, 100, 0.0, 0.5)
    assert half.held == 50
    both = Lineage("", "", (whole, half))
    assert (both.score, both.compared) == (0.9, 0.75)
    most = Lineage("", "", (Kinship(fate, 100, 0.0, 0.95),))
    assert most.score == pytest.approx(0.045)
    assert not most.decided
    assert "1 behind changes that were set aside" in str(most)
    told = half.fate.name, Lineage.from_dict(both.to_dict()).tensors[1].set_aside
    assert told == ("a", 0.5)
    broken = both.to_dict()
    broken["tensors"][1]["set_aside"] = 1.5
    with pytest.raises(RecordError):
        Lineage.from_dict(broken)
