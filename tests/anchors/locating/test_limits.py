"""Suspects made to cost: many tensors, odd values, odd shapes. Work is bounded."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating import assigning, locate, seeking
from neuralmark.anchors.locating.joins import by_joins
from neuralmark.anchors.locating.products import by_products
from neuralmark.anchors.locating.rowsearch import needles_of
from neuralmark.anchors.locating.seeking import Quest
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.structures.structure import Array, Indices
from tests.support.anchored import Table, anchor_of
from tests.support.models import gaussian

ORIGINAL = {
    "a.weight": gaussian(40, 24, seed=1),
    "b.weight": gaussian(24, 40, seed=2),
    "c.weight": gaussian(16, 8, 3, 3, seed=3),
    "d.weight": gaussian(40, 24, seed=4),
    "e.bias": gaussian(40, seed=5),
}


class Counted(TableWeights):
    """Counts how often it is read."""

    def __init__(self, arrays: Table) -> None:
        super().__init__(arrays)
        self.reads = 0

    def __getitem__(self, name: str) -> Array:
        self.reads += 1
        return super().__getitem__(name)

    def read_rows(self, name: str, rows: Indices, axes: int = 1) -> Array:
        self.reads += 1
        return super().read_rows(name, rows, axes)


@pytest.fixture(scope="module")
def anchor() -> Anchor:
    return anchor_of(ORIGINAL)


def many(count: int) -> Iterator[tuple[str, Table]]:
    one, wide = gaussian(40, 24, seed=9), gaussian(80, 24, seed=10)
    yield "same shape", {f"x.{i}.weight": one for i in range(count)}
    yield "namesakes", {"module." * i + "a.weight": one for i in range(count // 10)}
    yield "fused", {f"x.{i}.qkv.weight": wide for i in range(count)}
    yield "pieces", {f"rank{i}.a.weight": one[:5] for i in range(count)}
    yield "factors", {f"x.{i}": one[:, :7] if i % 2 else one[:7] for i in range(count)}
    yield "stacks", {f"x.{i}": gaussian(30, 40, 24) for i in range(count // 30)}
    yield "shapes", {f"x.{i}": gaussian(20 + i % 60, 12 + i % 36) for i in range(count)}


@pytest.mark.parametrize("kind", [name for name, _ in many(10)])
def test_reads_are_bounded_by_the_limit(kind: str, anchor: Anchor) -> None:
    suspect = Counted(dict(many(2000))[kind])
    found = locate(suspect, anchor, limit=20)
    assert not any(each.direct for each in found.values())
    assert suspect.reads < 2000


def test_a_larger_limit_finds_more(anchor: Anchor) -> None:
    suspect = {f"x.{i}": gaussian(40, 24, seed=100 + i) for i in range(60)}
    suspect["y"] = ORIGINAL["a.weight"]
    found = {limit: locate(TableWeights(suspect), anchor, limit=limit) for limit in (20, 100)}
    assert not any(each.direct for each in found[20].values())
    assert found[100]["a.weight"].direct
    assert found[100]["a.weight"].view.describe() == "y"


def test_many_of_one_shape_are_assigned_the_likest_first(
    anchor: Anchor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assigning, "MOST_TOGETHER", 1)
    half = ORIGINAL["a.weight"] + ORIGINAL["d.weight"]
    suspect = {"x": half, "y": ORIGINAL["d.weight"], "z": ORIGINAL["a.weight"]}
    found = locate(TableWeights(suspect), anchor, ["a.weight", "d.weight"])
    assert {n: each.view.describe() for n, each in found.items()} == {
        "a.weight": "z",
        "d.weight": "y",
    }


def test_samples_shrink_until_there_is_room(
    anchor: Anchor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeking, "_ROOM", 4 * 40 * 24)
    renamed = {f"x.{name}": value for name, value in ORIGINAL.items()}
    quest = Quest(TableWeights(renamed), anchor, [])
    sizes = [wanted.sample.size for wanted in seeking.begin(quest, set(ORIGINAL))]
    assert sum(sizes) <= 40 * 24
    found = locate(TableWeights(renamed), anchor)
    assert {each.view.describe() for each in found.values()} == set(renamed)


def _in_factors(decoys: int) -> Table:
    """Factors of one tensor behind many that make nothing."""
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((24, 24)).astype(np.float32)
    table: Table = {}
    for i in range(decoys):
        table[f"x.{i}.left"] = gaussian(40, 24, seed=200 + i)
        table[f"x.{i}.right"] = gaussian(24, 24, seed=900 + i)
    table["y.left"] = ORIGINAL["a.weight"] @ mix
    table["y.right"] = np.linalg.inv(mix).astype(np.float32)
    return table


def test_factors_among_very_many_are_found_beside_each_other(anchor: Anchor) -> None:
    found = locate(TableWeights(_in_factors(300)), anchor, ["a.weight"])
    assert found["a.weight"].view.describe() == "y.left × y.right"
    assert found["a.weight"].direct


def _quest(suspect: Table, anchor: Anchor, limit: int, looks: float = 0.0) -> Quest:
    """One that seeks one tensor, after so many looks."""
    quest = Quest(TableWeights(suspect), anchor, [], 0, limit, [looks * seeking.LOOK])
    quest.wanted.extend(seeking.begin(quest, {"a.weight"}))
    return quest


@pytest.mark.parametrize(("limit", "looks"), [(100, 0), (20, 0), (100, 199.5)])
def test_factors_beyond_the_limit_are_not_multiplied(
    limit: int, looks: float, anchor: Anchor
) -> None:
    quest = _quest(_in_factors(30), anchor, limit, looks)
    found = by_products(quest, quest.wanted, {})
    assert [each.direct for each in found] == ([True] if (limit, looks) == (100, 0) else [])


@pytest.mark.parametrize("looks", [0, 199.5])
def test_pieces_are_not_looked_through_when_no_room_is_left(looks: float, anchor: Anchor) -> None:
    pieces = np.array_split(ORIGINAL["a.weight"], 4)
    quest = _quest({f"rank{i}": piece for i, piece in enumerate(pieces)}, anchor, 100, looks)
    found = by_joins(quest, quest.wanted, {})
    assert [each.direct for each in found] == ([] if looks else [True])


def test_a_piece_of_which_only_a_few_rows_are_right_is_none(anchor: Anchor) -> None:
    right = ORIGINAL["a.weight"]
    decoy = gaussian(20, 24, seed=60)
    some = needles_of(20)[:6]
    decoy[some] = right[some]
    quest = _quest({"one": decoy, "two": right[20:]}, anchor, 100)
    (found,) = by_joins(quest, quest.wanted, {})
    assert list(found.view.stored()) == ["two"]


def test_work_is_bounded_however_short_each_look(anchor: Anchor) -> None:
    quest = Quest(TableWeights(ORIGINAL), anchor, [], 0, 10)
    looks = 0
    while quest.spend(1.0):
        looks += 1
    assert looks == 20
    assert quest.exhausted


ODD: dict[str, Any] = {
    "nothing": {},
    "zeros": {n: np.zeros_like(v) for n, v in ORIGINAL.items()},
    "ones": {n: np.ones_like(v) for n, v in ORIGINAL.items()},
    "nan": {n: np.full_like(v, np.nan) for n, v in ORIGINAL.items()},
    "infinite": {n: np.full_like(v, -np.inf) for n, v in ORIGINAL.items()},
    "huge": {n: np.full_like(v, 3e38) for n, v in ORIGINAL.items()},
    "equal rows": {n: np.broadcast_to(v[:1], v.shape) for n, v in ORIGINAL.items()},
    "scalars": {"a.weight": np.float32(1).reshape(()), "b": np.zeros((0, 7), np.float32)},
    "long": {"a.weight": np.zeros((100_000, 24), np.float32)},
    "many axes": {"a.weight": np.zeros((2,) * 12, np.float32)},
    "one axis": {n: v.reshape(-1)[:-1] for n, v in ORIGINAL.items()},
    "lonely adapter": {"a.lora_A.weight": gaussian(4, 24), "a.lora_B.weight": gaussian(9, 4)},
    "lonely mask": {"a.weight_mask": np.ones((40, 24), np.float32)},
    "mask of another shape": {"a.weight_orig": gaussian(40, 24), "a.weight_mask": gaussian(4)},
    "lengths of another shape": {"a.weight_v": gaussian(40, 24), "a.weight_g": gaussian(3)},
    "adapter of other ranks": {
        "a.weight": gaussian(40, 24),
        "a.lora_A.weight": gaussian(4, 24),
        "a.lora_B.weight": gaussian(40, 5),
    },
    "adapter of other lengths": {
        "a.weight": gaussian(40, 24),
        "a.lora_A.weight": gaussian(4, 23),
        "a.lora_B.weight": gaussian(40, 4),
    },
    "adapter of two kernels": {
        "c.weight": gaussian(16, 8, 3, 3),
        "c.lora_A.weight": gaussian(4, 8, 3, 3),
        "c.lora_B.weight": gaussian(16, 4, 3, 3),
    },
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_suspects_give_no_direct_match(kind: str, anchor: Anchor) -> None:
    found = locate(TableWeights(ODD[kind]), anchor)
    assert not any(each.direct for each in found.values())
    for each in found.values():
        assert each.view.read(TableWeights(ODD[kind])).dtype == np.float32
        assert 0 <= each.cosine < 0.9


def test_a_tensor_with_some_nan_is_still_found(anchor: Anchor) -> None:
    broken = ORIGINAL["a.weight"].copy()
    broken[3, 4:9] = np.nan
    found = locate(TableWeights({"x": broken}), anchor)
    assert found["a.weight"].direct


def test_the_likest_of_several_of_one_name_is_taken(anchor: Anchor) -> None:
    right = ORIGINAL["a.weight"]
    noisy = right + gaussian(40, 24, seed=50)
    for order in (1, -1):
        pairs = [("module.a.weight", noisy), ("a.weight", gaussian(40, 24, seed=51))]
        pairs += [("_orig_mod.a.weight", right)]
        found = locate(TableWeights(dict(pairs[::order])), anchor)
        assert found["a.weight"].view.describe() == "_orig_mod.a.weight"


def test_a_damaged_tensor_under_the_right_name_gives_way_to_a_whole_one(anchor: Anchor) -> None:
    right = ORIGINAL["a.weight"]
    decoy = right + gaussian(40, 24, seed=52)
    found = locate(TableWeights({"a.weight": decoy, "elsewhere": right}), anchor)
    assert found["a.weight"].view.describe() == "elsewhere"
    alone = locate(TableWeights({"a.weight": decoy}), anchor)
    assert alone["a.weight"].view.describe() == "a.weight"
    assert alone["a.weight"].direct


def test_copies_go_to_the_tensor_of_their_name() -> None:
    twin = {"one.weight": gaussian(40, 24, seed=1), "two.weight": gaussian(40, 24, seed=1)}
    found = locate(TableWeights(dict(reversed(twin.items()))), anchor_of(twin))
    assert {name: each.view.describe() for name, each in found.items()} == {n: n for n in twin}


@pytest.mark.parametrize("tied", [False, True])
def test_only_tied_tensors_take_the_same(tied: bool) -> None:
    names = ("wte.weight", "head.weight") if tied else ("h.0.weight", "h.1.weight")
    twin = {name: gaussian(40, 24, seed=1) for name in names}
    suspect = {"x": twin[names[0]], "y": gaussian(40, 24, seed=3)}
    found = locate(TableWeights(suspect), anchor_of(twin))
    views = [each.view.describe() for each in found.values()]
    assert views == ["x", "x"] if tied else sorted(views) == ["x", "y"]


def test_progress_is_told(anchor: Anchor) -> None:
    told: list[tuple[str, int, int]] = []
    locate(TableWeights({}), anchor, progress=lambda *each: told.append(each))
    assert told[0] == (f"finding {next(iter(anchor))}", 0, len(anchor))
    assert {words for words, _, _ in told} >= {"finding tensors by shape"}
