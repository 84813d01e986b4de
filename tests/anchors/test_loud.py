"""Noise of many times the weights, in directions that a layer's inputs never take, and moved."""

from functools import cache

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.anchors.aligning import quieting
from neuralmark.anchors.aligning.quieting import quieted
from neuralmark.structures.structure import Array
from tests.support.anchored import Table, arrays
from tests.support.moved import KEY, LAYER, case, rebuilt, restored
from tests.support.speaking import trained

INNER = ("o_proj", "down_proj", "output.dense", "c_proj")
"""What reads heads or hidden channels, not the stream."""
FEW = 12


def loud(table: Table, share: float, times: float = 4.0) -> Table:
    """With noise in a share of each layer's input directions, the same for one input."""
    made, bases = dict(table), dict[str, Array]()
    for name in [n for n, value in table.items() if value.ndim == 2 and LAYER.match(n)]:
        turned = "c_" in name  # GPT-2 stores inputs before outputs
        flat = table[name].T if turned else table[name]
        inner = any(word in name for word in INNER)
        where = name if inner else f"{LAYER.match(name)} {'mlp' in name}"
        if where not in bases:
            drawn = np.random.default_rng(len(bases)).standard_normal((flat.shape[1],) * 2)
            bases[where] = np.linalg.qr(drawn)[0][:, : int(share * len(drawn))]
        noise = np.random.default_rng(7).standard_normal((len(flat), bases[where].shape[1]))
        noise = noise @ bases[where].T
        added = flat + times * np.linalg.norm(flat) / np.linalg.norm(noise) * noise
        made[name] = (added.T if turned else added).astype(np.float32)
    return made


@cache
def in_place(name: str, share: float) -> int:
    anchor, marked = case(name)
    return restored(loud(marked, share), anchor)[1]


@pytest.mark.parametrize(
    ("name", "how"), [("vit", "permute"), *((n, "all") for n in ("bert words", "gpt2", "llama"))]
)
def test_what_was_moved_is_read_nearly_as_in_place(name: str, how: str) -> None:
    anchor, marked = case(name)
    record, bits = restored(rebuilt(loud(marked, 0.15), how), anchor)
    assert bits >= in_place(name, 0.15) - FEW
    assert in_place(name, 0.15) >= KEY.parameters.bits - FEW
    assert record.found > 0.95


def test_names_tell_where_noise_alone_would() -> None:
    """Under other names they do not: then nothing is read, and nothing is made up."""
    anchor, marked = case("vit")
    moved = rebuilt(loud(marked, 0.25), "all")
    _, bits = restored(moved, anchor)
    assert bits >= in_place("vit", 0.25) - FEW
    _, bits = restored({f"x{i}": value for i, value in enumerate(moved.values())}, anchor)
    assert bits < in_place("vit", 0.25)


def test_another_model_stays_another() -> None:
    anchor, _ = case("llama")
    other = rebuilt(loud(arrays(trained("llama", seed=1)), 0.25), "all")
    _, bits = restored(other, anchor)
    assert bits < 0.7 * KEY.parameters.bits


def rows(count: int, width: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)


def test_loud_directions_are_left_out_of_both() -> None:
    one, basis = rows(96, 40, 1), np.linalg.qr(rows(40, 8, 2))[0]
    two = one + 0.02 * rows(96, 40, 3)
    noisy = two + 20 * rows(96, 8, 4) @ basis.T
    ((left, quiet),) = quieted([(one, noisy)])
    plain = one - (one @ basis) @ basis.T
    assert np.linalg.norm(left - plain) < 0.1 * np.linalg.norm(plain)
    assert np.linalg.norm(quiet - plain) < 0.5 * np.linalg.norm(plain)
    assert np.linalg.norm(noisy - one) > 5 * np.linalg.norm(one)


@pytest.mark.parametrize("what", ["the same", "rescaled", "white noise", "another", "too narrow"])
def test_nothing_is_left_out_where_nothing_stands_out(what: str) -> None:
    one = rows(96, 40, 1)
    two = {
        "the same": one,
        "rescaled": one * np.exp(rows(96, 1, 2)),
        "white noise": one + 5 * rows(96, 40, 3),
        "another": rows(96, 40, 4),
        "too narrow": rows(96, 39, 5),
    }[what]
    assert quieted([(one, two)])[0][1] is two


def test_wide_streams_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one = rows(96, 40, 1)
    noisy = one + 20 * rows(96, 4, 2) @ np.linalg.qr(rows(40, 4, 3))[0].T
    assert quieted([(one, noisy)])[0][1] is not noisy
    monkeypatch.setattr(quieting, "WIDEST", 32)
    assert quieted([(one, noisy)])[0][1] is noisy
    assert quieted([]) == []
