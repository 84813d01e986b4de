"""Layers that were rearranged and then taken apart: into factors, or into queries, keys, values."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.anchors import regrouping
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating import runs
from neuralmark.anchors.locating.runs import NeighbourRun, named_order, tiled
from neuralmark.anchors.locating.views import View
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.restructure import Restructure
from tests.support import rebuilt as digits
from tests.support import speaking
from tests.support.anchored import Table, anchor_of, arrays
from tests.support.marks import marked_with
from tests.support.moved import KEY, NEARLY_ALL, case, restored
from tests.support.moved import rebuilt as moved_words

Factors = list[Any]
Split = Callable[[Any, np.random.Generator], Factors]
OTHERS = ("embed", "norm", "lm_head", "wte", "wpe", "ln_")


@cache
def moved(name: str, how: str = "all") -> tuple[Anchor, Table]:
    """The anchor of a trained network, and the marked network, rearranged."""
    if name in ("gpt2", "llama"):
        anchor, marked = case(name)
        return anchor, moved_words(marked, how)
    weights = dict(digits.trained(name))
    anchor = anchor_of(weights)
    return anchor, shuffled(marked_with(weights, anchor, KEY, 1.5), how)


def shuffled(table: Table, how: str = "all") -> Table:
    made = launch(Restructure(cast("Any", how), 3.0 if how == "all" else 1.0), table).weights
    assert made is not None
    return dict(made)


def turns(places: Sequence[int], wide: bool = False) -> Split:
    """Rotations (or wider maps) to the left of a layer (0) and to its right (1), in this order."""

    def parts(value: Any, rng: np.random.Generator) -> Factors:
        inner = value.astype(np.float64)
        left: Factors = []
        right: Factors = []
        ones = (1,) * (value.ndim - 2)
        for side in places:
            size = inner.shape[side]
            out = np.linalg.qr(rng.standard_normal((size, size)))[0]
            back = out.T
            if wide:
                out = rng.standard_normal((size, size + size // 2))
                back = np.linalg.pinv(out)
            if side:
                inner = np.moveaxis(np.tensordot(inner, out, (1, 0)), -1, 1)
                right.insert(0, back.reshape(*back.shape, *ones))
            else:
                inner = np.tensordot(back, inner, (1, 0))
                left.append(out.reshape(*out.shape, *ones))
        return [*left, inner, *right]

    return parts


def spectral(value: Any, rng: np.random.Generator) -> Factors:
    """Directions, singular values, directions."""
    ones = (1,) * (value.ndim - 2)
    flat = value.reshape(len(value), -1).astype(np.float64)
    left, sizes, right = np.linalg.svd(flat, full_matrices=False)
    middle = np.diag(sizes).reshape(len(sizes), len(sizes), *ones)
    return [left.reshape(*left.shape, *ones), middle, right.reshape(len(sizes), *value.shape[1:])]


SPLITS: dict[str, Split] = {
    "around": turns((0, 1)),
    "behind": turns((1, 1)),
    "before": turns((0, 0)),
    "wider": turns((0, 1), wide=True),
    "spectral": spectral,
    "two": turns((0,)),
    "four": turns((0, 1, 0)),
}


def factored(table: Table, split: str, names: str) -> Table:
    """Every layer as a product, under these names; each reads what lies before it in the file."""
    rng, made = np.random.default_rng(3), Table()
    for name, value in table.items():
        layer = value.ndim > 1 and name.endswith(".weight") and min(value.shape[:2]) > 3
        if not layer or any(word in name for word in OTHERS):
            made[name] = value
            continue
        parts = SPLITS[split](value, rng)[::-1]
        if names == "mixed":
            parts = [parts[place] for place in rng.permutation(len(parts))]
        stem = name.removesuffix(".weight")
        for number, part in enumerate(parts):
            leaf = f"_{'abcd'[number]}" if names == "letters" else f".{number}"
            made[f"{stem}{leaf}.weight"] = np.asarray(part, np.float32)
    return nameless(made) if names in ("none", "mixed") else made


def nameless(table: Table) -> Table:
    """Names that say nothing, in the order of the file."""
    return {f"x{i}.{n.rpartition('.')[2]}": v for i, (n, v) in enumerate(table.items())}


def cut_apart(table: Table, words: Sequence[str], order: Sequence[int] = (0, 1, 2)) -> Table:
    """GPT-2 with queries, keys and values in tensors of these names, in this order."""
    made = Table()
    for name, value in table.items():
        found = re.fullmatch(r"(.*attn)\.c_attn\.(weight|bias)", name)
        if found is None:
            made[name] = value
            continue
        parts = np.split(value, 3, axis=-1)
        made |= {f"{found[1]}.{w}.{found[2]}": parts[p] for w, p in zip(words, order, strict=True)}
    return made


FACTORED = [
    *(("chain", split, "none") for split in SPLITS),
    ("chain", "around", "letters"),
    ("chain", "behind", "numbers"),
    ("chain", "around", "mixed"),
    ("residual", "spectral", "none"),
    ("residual", "before", "mixed"),
    ("gpt2", "around", "none"),
    ("llama", "around", "none"),
    ("llama", "behind", "numbers"),
]


@pytest.mark.parametrize(("name", "split", "names"), FACTORED)
def test_factors_of_rearranged_layers_are_found(name: str, split: str, names: str) -> None:
    anchor, suspect = moved(name)
    record, bits = restored(factored(suspect, split, names), anchor)
    assert bits >= NEARLY_ALL
    assert record.found > 0.97


CUTS: dict[str, Callable[[Table], Table]] = {
    "usual": lambda table: cut_apart(table, ("q_proj", "k_proj", "v_proj")),
    "other order": lambda table: cut_apart(table, ("value", "query", "key"), (2, 0, 1)),
    "odd": lambda table: cut_apart(table, ("one", "two", "three"), (1, 2, 0)),
    "nameless": lambda table: nameless(cut_apart(table, ("a", "b", "c"))),
    "linear": lambda table: {
        n: v.T if v.ndim == 2 and ".h." in n else v
        for n, v in cut_apart(table, ("q", "k", "v")).items()
    },
}


@pytest.mark.parametrize(("how", "cut"), [("permute", "usual"), *(("all", cut) for cut in CUTS)])
def test_attention_cut_in_three_and_rearranged_is_found(how: str, cut: str) -> None:
    anchor, suspect = moved("gpt2", how)
    record, bits = restored(CUTS[cut](suspect), anchor)
    assert bits >= NEARLY_ALL
    assert record.found > 0.99
    assert min(fate.restored for fate in record.tensors) > 0.97


def test_no_way_is_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    anchor, suspect = moved("chain")
    rng = np.random.default_rng(5)
    noisy = {n: v + 0.7 * v.std() * rng.standard_normal(v.shape) for n, v in suspect.items()}
    tried: list[dict[str, View]] = []
    cosines = regrouping._Trials._cosines

    def counted(self: Any, made: Any, names: Any) -> dict[str, float]:
        tried.append({name: each.view for name, each in made.items()})
        return cosines(self, made, names)

    monkeypatch.setattr(regrouping._Trials, "_cosines", counted)
    restored(factored(noisy, "around", "none"), anchor)
    assert len(tried) > 1
    assert all(one != two for one, two in combinations(tried, 2))


def test_another_model_stays_another() -> None:
    anchor, _ = case("llama")
    other = moved_words(arrays(speaking.trained("llama", seed=1)), "all")
    record, bits = restored(factored(other, "around", "none"), anchor)
    assert max(fate.restored for fate in record.tensors) < 0.6
    assert bits < 0.75 * KEY.parameters.bits


def test_attention_of_another_model_is_not_joined() -> None:
    anchor, _ = case("gpt2")
    other = CUTS["usual"](moved_words(arrays(speaking.trained("gpt2", seed=1)), "all"))
    record, _ = restored(other, anchor)
    told = [change for fate in record.tensors for change in fate.changes]
    assert "3 pieces joined" not in told


def test_runs_are_seen_only_in_ways_that_fit() -> None:
    shapes = {"a": (4, 6), "b": (6, 6), "c": (6, 5), "d": (5, 3, 3, 3)}
    run = NeighbourRun(0, ("a", "b", "c"))
    assert {way.order for way in run.ways(shapes, (4, 5), fused=False)} == {(0, 1, 2)}
    assert not run.ways(shapes, (4, 5, 3, 3), fused=False)
    assert not NeighbourRun(1, ("b", "c", "d")).ways(shapes, (6, 3), fused=False)
    three = NeighbourRun(0, ("p", "q", "r"))
    ways = three.ways(dict.fromkeys("pqr", (8, 8)), (8, 24), fused=True)
    joined = [way for way in ways if way.axis is not None]
    assert {(way.axis, way.turned) for way in joined} == {(1, False), (0, True)}
    assert len(joined) == 12


def test_many_runs_are_bounded() -> None:
    names = [f"x{i}.weight" for i in range(50)]
    found = list(runs.runs_of(names, set(names[:10]), 3))
    assert [run.start for run in found] == list(range(8))
    assert [run.start for run in tiled(50, dict.fromkeys(found, 0.5), 1.0)] == [0, 3, 6]


def test_names_of_queries_keys_and_values_tell_their_order() -> None:
    assert named_order(["h.q.weight", "h.k.weight", "h.v.weight"]) == (0, 1, 2)
    assert named_order(["h.one.weight", "h.two.weight", "h.three.weight"]) is None
