"""Tensors that a thief adds: of the shapes of what is sought, under any name."""

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.anchors import spares
from tests.support.anchored import Table
from tests.support.moved import NEARLY_ALL, case, fused, rebuilt, restored

PART = re.compile(r"layers\.(\d)\..*(gate|up|q|k|v)_proj\.weight")
FUSED = ("fuse-gate-up", "fuse-qkv")


def decoys(table: Table, kind: str) -> Table:
    """Two for each part of what is fused: random ones, or copies of another layer's."""
    made: Table = {}
    rng = np.random.default_rng(9)
    for name, value in table.items():
        match = PART.search(name)
        if match:
            other = name.replace(f"layers.{match[1]}.", f"layers.{1 - int(match[1])}.")
            noise = (rng.standard_normal(value.shape) * value.std()).astype(np.float32)
            copy = table[other] if kind == "copies" else noise
            made |= {f"more.{name}s": copy, f"most.{name}s": copy[::-1].copy()}
    return made


@pytest.mark.parametrize("hows", [FUSED, (), ("stack-layers",)])
@pytest.mark.parametrize("kind", ["random", "copies"])
@pytest.mark.parametrize("how", ["rotate", "all"])
def test_decoys_hide_nothing(how: str, kind: str, hows: tuple[str, ...]) -> None:
    anchor, marked = case("llama")
    moved = rebuilt(marked, how)
    record, bits = restored({**decoys(moved, kind), **fused(moved, *hows)}, anchor)
    assert bits >= NEARLY_ALL
    assert record.found > 0.97


@pytest.mark.parametrize("how", ["channels", "all"])
def test_decoys_under_the_names_of_what_was_fused(how: str) -> None:
    anchor, marked = case("llama")
    moved = rebuilt(marked, how)
    named = {name[5:-1]: x for name, x in decoys(moved, "random").items() if name[:5] == "more."}
    record, bits = restored({**fused(moved, *FUSED), **named}, anchor)
    assert bits >= NEARLY_ALL
    assert record.found > 0.99


@pytest.mark.parametrize("hows", [FUSED, ()])
def test_decoys_of_the_very_shapes_hide_no_channels_that_were_added(hows: tuple[str, ...]) -> None:
    anchor, marked = case("llama")
    moved = rebuilt(marked, "all")
    record, bits = restored({**decoys(marked, "random"), **fused(moved, *hows)}, anchor)
    assert bits >= NEARLY_ALL
    assert record.found > 0.99


def blurred(table: Table, noise: float, prefix: str = "", layers: str = "01") -> Table:
    """The matrices of these layers with noise of so many deviations, and all else as it is."""
    rng = np.random.default_rng(4)
    made = dict(table)
    for name, value in table.items():
        if value.ndim == 2 and any(f".{each}." in name for each in layers):
            added = noise * value.std() * rng.standard_normal(value.shape)
            made[name] = np.asarray(value + added, np.float32)
    return {prefix + name: value for name, value in made.items()}


def under(prefix: str, table: Table) -> Table:
    return {prefix + name: value for name, value in table.items()}


@pytest.mark.parametrize("noise", [0.6, 1.3, 3.0])
@pytest.mark.parametrize(
    ("name", "how"), [("llama", "permute"), ("llama", "all"), ("gpt2", "permute"), ("vit", "all")]
)
def test_noisy_copies_under_the_old_names(name: str, how: str, noise: float) -> None:
    """What the code uses lies, rearranged, under other names."""
    anchor, marked = case(name)
    real = under("net.", rebuilt(marked, how))
    record, bits = restored({**real, **blurred(marked, noise)}, anchor)
    assert bits >= NEARLY_ALL
    assert min(fate.restored for fate in record.tensors) > 0.9


def test_noisy_copies_of_some_layers_or_twice() -> None:
    anchor, marked = case("llama")
    real = rebuilt(marked, "permute")
    some = {n: v for n, v in real.items() if ".1." not in n}
    rest = under("net.", {n: v for n, v in real.items() if ".1." in n})
    noisy = {n: v for n, v in blurred(marked, 1.0, layers="1").items() if ".1." in n}
    twice = {**blurred(marked, 1.0), **blurred(marked, 1.2, "also.")}
    for suspect in ({**some, **noisy, **rest}, {**twice, **under("net.", real)}):
        record, bits = restored(suspect, anchor)
        assert bits >= NEARLY_ALL
        assert min(fate.restored for fate in record.tensors) > 0.97


def test_nothing_is_looked_for_again_where_nothing_is_left_or_all_is_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    anchor, marked = case("llama")

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("looked again")

    monkeypatch.setattr(spares, "locate", never)
    restored(blurred(marked, 1.0), anchor)
    restored({**rebuilt(marked, "permute"), **decoys(marked, "random")}, anchor)


def test_strangers_that_are_left_do_not_replace_what_lies_behind_an_addition() -> None:
    anchor, marked = case("llama")
    rng, suspect = np.random.default_rng(6), dict(marked)
    for name, value in marked.items():
        if value.ndim == 2:
            update = rng.standard_normal((len(value), 2)) @ rng.standard_normal((2, value.shape[1]))
            suspect[name] = np.asarray(value + 20 * value.std() * update, np.float32)
    alone, bits = restored(suspect, anchor)
    record, among = restored({**suspect, **decoys(marked, "random")}, anchor)
    assert among == bits
    assert [fate.source for fate in record.tensors] == [fate.source for fate in alone.tensors]
