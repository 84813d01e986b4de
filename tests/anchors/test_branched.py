"""Layers that became several, side by side or in a row, and kernels padded with zeros."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating import locate
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.restoring import restore
from tests.support import rebuilt, speaking
from tests.support.anchored import Table, anchor_of, arrays
from tests.support.moved import KEY, NEARLY_ALL, case, moved, restored
from tests.support.moved import rebuilt as moved_words

Change = Callable[[Table], Table]


@cache
def images(name: str, how: str) -> tuple[Anchor, Table]:
    """The anchor of a trained network, and the network: as it is, or with everything rebuilt."""
    if how == "all":
        return moved(name)
    weights = dict(rebuilt.trained(name))
    return anchor_of(weights), weights


def told(suspect: Table, anchor: Anchor) -> tuple[float, set[str]]:
    """The share of the marked weights that is found, and what was done to them."""
    restoration = restore(TableWeights(suspect), anchor)
    for _ in restoration.tensors():
        pass
    record = restoration.record()
    return record.found, {change for each in record.tensors for change in each.changes}


def padded(*sides: tuple[int, int]) -> Change:
    """Zeros around every kernel."""

    def change(table: Table) -> Table:
        widths = ((0, 0), (0, 0), *sides)
        return {n: np.pad(v, widths) if v.ndim == 4 else v for n, v in table.items()}

    return change


def apart(parts: Callable[[str, Any, np.random.Generator], Table]) -> Change:
    """Every layer as several."""

    def change(table: Table) -> Table:
        rng = np.random.default_rng(3)
        made: Table = {}
        for name, value in table.items():
            layer = value.ndim > 1 and name.endswith(".weight") and min(value.shape[:2]) > 3
            layer = layer and not any(word in name for word in ("embed", "norm", "lm_head"))
            made |= parts(name.removesuffix(".weight"), value, rng) if layer else {name: value}
        return {name: np.asarray(value, np.float32) for name, value in made.items()}

    return change


def branches(*leaves: str, size: float = 2.0) -> Change:
    """As sums: all but the last are mostly noise."""

    def parts(stem: str, value: Any, rng: np.random.Generator) -> Table:
        noise = [rng.standard_normal(value.shape) * value.std() * size for _ in leaves[1:]]
        terms = [value / len(leaves) + each for each in noise]
        return {stem + n: v for n, v in zip(leaves, [*terms, value - sum(terms)], strict=True)}

    return apart(parts)


def chain(*leaves: str) -> Change:
    """As products: rotations behind the layer."""

    def parts(stem: str, value: Any, rng: np.random.Generator) -> Table:
        inner, made = value.reshape(len(value), -1).astype(np.float64), {}
        ones = (1,) * (value.ndim - 2)
        for leaf in leaves[:0:-1]:
            turn = np.linalg.qr(rng.standard_normal((len(inner), len(inner))))[0]
            inner, made[stem + leaf] = turn.T @ inner, turn.reshape(*turn.shape, *ones)
        return {stem + leaves[0]: inner.reshape(value.shape)} | made

    return apart(parts)


def adapter(rank: int, scale: float = 1.0) -> Change:
    """As a layer and a large adapter beside it."""

    def parts(stem: str, value: Any, rng: np.random.Generator) -> Table:
        down = rng.standard_normal((rank, value.shape[1])) / np.sqrt(value.shape[1])
        up = rng.standard_normal((value.shape[0], rank)) * value.std() * 10
        base = value - scale * (up @ down)
        return {f"{stem}.weight": base, f"{stem}.down": down, f"{stem}.up": up}

    return apart(parts)


PADDED = [
    padded((1, 1), (1, 1)),
    padded((2, 2), (2, 2)),
    padded((0, 1), (2, 0)),
    padded((0, 0), (1, 1)),
]


@pytest.mark.parametrize("how", ["plain", "all"])
@pytest.mark.parametrize("name", ["chain", "residual"])
@pytest.mark.parametrize("change", PADDED, ids=["5x5", "7x7", "one-sided", "3x5"])
def test_padded_kernels_are_found(name: str, how: str, change: Change) -> None:
    anchor, table = images(name, how)
    share, changes = told(change(table), anchor)
    assert share > 0.99 * told(table, anchor)[0]
    assert "kernel padded" in changes


def test_kernels_of_another_layout_are_found_without_padding() -> None:
    anchor, table = images("chain", "plain")
    suspect = {n: v.transpose(2, 3, 1, 0) if v.ndim == 4 else v for n, v in table.items()}
    suspect = {
        n: np.pad(v, ((1, 1), (1, 1), (0, 0), (0, 0))) if v.ndim == 4 else v
        for n, v in suspect.items()
    }
    assert told(suspect, anchor)[0] > 0.99


def test_kernels_padded_with_next_to_nothing_are_found() -> None:
    anchor, table = images("chain", "plain")
    suspect = {
        n: np.pad(v, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=1e-9) if v.ndim == 4 else v
        for n, v in table.items()
    }
    assert told(suspect, anchor)[0] > 0.99


def test_kernels_that_are_larger_are_not_cut() -> None:
    anchor, table = images("chain", "plain")
    suspect = {
        n: np.pad(v, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=0.1) if v.ndim == 4 else v
        for n, v in table.items()
    }
    assert "kernel padded" not in told(suspect, anchor)[1]


SPLIT = {
    "two": (branches(".a.weight", ".b.weight"), "parallel branches added"),
    "three": (branches(".0.weight", ".1.weight", ".2.weight"), "parallel branches added"),
    "old name": (branches(".weight", ".b.weight"), "parallel branches added"),
    "huge": (branches(".a.weight", ".b.weight", size=50.0), "parallel branches added"),
    "chain": (chain(".0.weight", ".1.weight", ".2.weight"), "factored into three"),
    "old chain": (chain(".weight", ".p1.weight", ".p2.weight"), "factored into three"),
}


SUMS = ["two", "three", "old name", "huge"]
CASES = [
    *((name, "plain", split) for name in ("chain", "residual") for split in SPLIT),
    *((name, "all", split) for name in ("chain", "residual") for split in SUMS),
    ("residual", "all", "chain"),
]


@pytest.mark.parametrize(("name", "how", "split"), CASES)
def test_layers_that_became_several_are_found(name: str, how: str, split: str) -> None:
    anchor, table = images(name, how)
    change, words = SPLIT[split]
    share, changes = told(change(table), anchor)
    assert share > 0.95 * told(table, anchor)[0]
    assert words in changes


@pytest.mark.parametrize("how", ["plain", "all"])
def test_branches_that_were_padded_are_found(how: str) -> None:
    anchor, table = images("chain", how)
    suspect = padded((1, 1), (1, 1))(branches(".a.weight", ".b.weight")(table))
    assert told(suspect, anchor)[0] > 0.95 * told(table, anchor)[0]


@pytest.mark.parametrize(
    ("how", "split"),
    [*(("plain", s) for s in (*SPLIT, "adapter")), ("all", "two"), ("all", "adapter")],
)
def test_transformers_are_read(how: str, split: str) -> None:
    anchor, marked = case("llama")
    table = dict(marked) if how == "plain" else moved_words(marked, how)
    change = adapter(32) if split == "adapter" else SPLIT[split][0]
    record, bits = restored(change(table), anchor)
    assert bits >= NEARLY_ALL
    assert record.found > 0.95


def test_adapters_of_other_names_are_found_at_their_scale() -> None:
    anchor, marked = case("llama")
    _, bits = restored(adapter(32, 0.25)(dict(marked)), anchor)
    assert bits >= NEARLY_ALL


def test_another_model_stays_another() -> None:
    anchor, _ = case("llama")
    other = moved_words(arrays(speaking.trained("llama", seed=1)), "all")
    record, bits = restored(SPLIT["chain"][0](other), anchor)
    assert max(fate.restored for fate in record.tensors) < 0.6
    assert bits < 0.75 * KEY.parameters.bits


def test_many_branches_and_paddings_are_bounded() -> None:
    anchor, table = images("chain", "plain")
    rng = np.random.default_rng(0)
    stems = [n.removesuffix(".weight") for n, v in table.items() if v.ndim == 4]
    shape = max((v.shape for v in table.values() if v.ndim == 4), key=lambda s: s[1])
    noise = rng.standard_normal((*shape[:2], 7, 7)).astype(np.float32)
    noise[..., 0] = noise[..., -1] = noise[..., 0, :] = noise[..., -1, :] = 0
    suspect = {f"p{i}.{s}.{k}.weight": noise for i in range(300) for s in stems for k in "abc"}
    found = locate(TableWeights(suspect), anchor, limit=20)
    assert not any(each.direct for each in found.values())
