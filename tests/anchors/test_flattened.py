"""A model, or each of its layers, as one long vector."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating import flattened
from tests.support import rebuilt as digits
from tests.support.anchored import Table, anchor_of, arrays
from tests.support.marks import marked_with
from tests.support.moved import KEY, NEARLY_ALL, case, restored
from tests.support.speaking import trained

RNG = np.random.default_rng


@cache
def marked(name: str) -> tuple[Anchor, Table]:
    if name in ("gpt2", "llama"):
        return case(name)
    weights = dict(digits.trained(name))
    anchor = anchor_of(weights)
    return anchor, marked_with(weights, anchor, KEY, 1.5)


def joined(table: Table) -> Table:
    return {"flat": np.concatenate([value.reshape(-1) for value in table.values()])}


def shuffled(table: Table) -> Table:
    names = list(table)
    RNG(3).shuffle(names)
    return {name: table[name] for name in names}


def spaced(table: Table) -> Table:
    """With a few numbers between any two, and of half precision."""
    made = Table()
    for number, (name, value) in enumerate(shuffled(table).items()):
        made |= {name: value.astype(np.float16), f"gap{number}": np.full(7 + number, 0.5)}
    return joined(made)


def by_layers(table: Table) -> Table:
    groups: dict[str, Table] = {}
    for name, value in table.items():
        groups.setdefault(".".join(name.split(".")[:3]), Table())[name] = value
    return {f"unit{i}": joined(group)["flat"] for i, group in enumerate(groups.values())}


def turned(table: Table) -> Table:
    """Inputs before outputs in each of them."""
    return joined({n: v.swapaxes(0, 1) if v.ndim > 1 else v for n, v in shuffled(table).items()})


def folded(table: Table) -> Table:
    """The vector as a matrix, its end filled."""
    flat = joined(shuffled(table))["flat"]
    return {"flat": np.resize(flat, (-(-flat.size // 100), 100))}


def noisy(table: Table) -> Table:
    flat = joined(shuffled(table))["flat"]
    return {"flat": flat + 0.1 * flat.std() * RNG(5).standard_normal(flat.shape)}


WAYS: dict[str, Callable[[Table], Table]] = {
    "joined": joined,
    "sorted": lambda table: joined(dict(sorted(table.items()))),
    "shuffled": lambda table: joined(shuffled(table)),
    "spaced": spaced,
    "layers": by_layers,
    "turned": turned,
    "folded": folded,
    "noisy": noisy,
    "negative": lambda table: {"flat": -joined(shuffled(table))["flat"]},
    "large only": lambda table: joined({n: v for n, v in table.items() if v.ndim > 1}),
}
CASES = [
    *(("residual", how) for how in WAYS),
    *(("llama", how) for how in ("joined", "sorted", "layers", "turned")),
    ("gpt2", "spaced"),
]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_tensors_are_found_in_vectors(name: str, how: str) -> None:
    anchor, table = marked(name)
    record, bits = restored(WAYS[how](table), anchor)
    assert bits >= NEARLY_ALL
    assert record.found > 0.97


def test_another_model_stays_another() -> None:
    anchor, _ = marked("llama")
    record, bits = restored(joined(shuffled(arrays(trained("llama", seed=1)))), anchor)
    assert record.found == 0
    assert bits < 0.75 * KEY.parameters.bits


def test_vectors_longer_than_a_block_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flattened, "_BLOCK", 1 << 12)
    anchor, table = marked("residual")
    record, _ = restored(spaced(table), anchor)
    assert record.found > 0.97


def test_the_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies where the original's tensors would lie is found all the same."""
    anchor, table = marked("residual")
    monkeypatch.setattr(flattened, "MOST_WORK", 3 * sum(value.size for value in table.values()))
    looked: list[int] = []
    places = flattened._places

    def counted(quest: Any, vector: Any, pieces: Any) -> list[tuple[int, float]]:
        looked.append(len(pieces))
        return places(quest, vector, pieces)

    monkeypatch.setattr(flattened, "_places", counted)
    record, _ = restored(spaced(table), anchor)
    assert sum(looked) == 2  # the gaps make it longer
    assert 0 < record.found < 0.5
    record, bits = restored(joined(dict(sorted(table.items()))), anchor)
    assert bits >= NEARLY_ALL


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 1.0])
def test_what_is_no_model_is_not_found(value: float) -> None:
    anchor, _ = marked("residual")
    size = sum(int(np.prod(shape)) for _, shape in anchor.skeleton.shapes)
    record, _ = restored({"flat": np.full(size, value, np.float32)}, anchor)
    assert record.found == 0


def test_holes_in_a_vector_do_no_harm() -> None:
    anchor, table = marked("residual")
    flat = joined(shuffled(table))["flat"]
    flat[::1000] = np.nan
    record, bits = restored({"flat": flat}, anchor)
    assert record.found < 0.05  # a tensor with NaN is not read
    assert bits < 0.75 * KEY.parameters.bits
