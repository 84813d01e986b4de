"""Views: read whole, read in part, told in words."""

import numpy as np
import pytest

from neuralmark.anchors.locating.combined import (
    Absent,
    Adapted,
    Joined,
    Masked,
    Product,
    StackItem,
    WeightNormed,
)
from neuralmark.anchors.locating.shapes import groups_of
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.locating.views import Shaped, Spaced, Stored, Taken, Turned, Unrotated, View

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


TABLE = {
    "m": drawn(12, 8),
    "mask": (drawn(12, 8) > 0).astype(np.float32),
    "kernel": drawn(6, 4, 3, 3),
    "ohwi": drawn(6, 3, 3, 4),
    "flat": drawn(6, 36),
    "stack": drawn(5, 12, 8),
    "heads": drawn(8, 3, 4),
    "left": drawn(12, 5),
    "right": drawn(5, 8),
    "point": drawn(7, 6, 1, 1),
    "after": drawn(7, 6, 3, 3),
    "before": drawn(6, 5, 1, 1),
    "gain": drawn(12, 1),
}
SUSPECT = TableWeights(TABLE)
M = Stored("m")


def normed() -> np.ndarray:
    rows = TABLE["m"]
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True) * TABLE["gain"])


CASES: dict[str, tuple[View, np.ndarray, str]] = {
    "stored": (M, TABLE["m"], "m"),
    "transposed": (Turned(M, (1, 0)), TABLE["m"].T, "m, transposed"),
    "kernel": (
        Turned(Stored("ohwi"), (0, 3, 1, 2)),
        TABLE["ohwi"].transpose(0, 3, 1, 2),
        "ohwi, axes (0, 3, 1, 2)",
    ),
    "reshaped": (
        Shaped(Stored("flat"), (6, 4, 3, 3)),
        TABLE["flat"].reshape(6, 4, 3, 3),
        "flat as 6·4·3·3",
    ),
    "merged": (
        Shaped(Stored("heads"), (8, 12)),
        TABLE["heads"].reshape(8, 12),
        "heads as 8·12",
    ),
    "units": (
        Shaped(Stored("point"), (7, 6)),
        TABLE["point"].reshape(7, 6),
        "point as 7·6",
    ),
    "rows": (Taken(M, 0, 2, 5), TABLE["m"][2:7], "m, rows 2–6"),
    "interleaved": (
        Taken(M, 0, 1, 2, 6, 2),
        TABLE["m"][[1, 2, 7, 8]],
        "m, rows 1–8 (2 of every 6)",
    ),
    "columns": (Taken(M, 1, 1, 1, 2, 4), TABLE["m"][:, 1::2], "m, columns 1–7 (1 of every 2)"),
    "from pairs": (
        Unrotated(M, 6, True),
        TABLE["m"].reshape(2, 3, 2, 8).swapaxes(1, 2).reshape(12, 8),
        "m, heads of 6 rows from pairs",
    ),
    "from halves": (
        Unrotated(M, 6, False),
        TABLE["m"].reshape(2, 2, 3, 8).swapaxes(1, 2).reshape(12, 8),
        "m, heads of 6 rows from halves",
    ),
    "kept rows": (Spaced(M, 12, 3), TABLE["m"][[0, 4, 8]], "m, 3 rows"),
    "one of a stack": (StackItem(Stored("stack"), 3), TABLE["stack"][3], "stack[3]"),
    "joined": (
        Joined((Taken(M, 0, 6, 6), Absent((1, 8)), Taken(M, 0, 0, 6)), 0),
        np.concatenate([TABLE["m"][6:], np.zeros((1, 8), np.float32), TABLE["m"][:6]]),
        "m, rows 6–11 + a part that is missing + m, rows 0–5",
    ),
    "product": (
        Product(Stored("left"), Stored("right")),
        TABLE["left"] @ TABLE["right"],
        "left × right",
    ),
    "1x1 then 3x3": (
        Product(Stored("after"), Stored("before")),
        np.einsum("orhw,rixy->oihw", TABLE["after"], TABLE["before"]),
        "after × before",
    ),
    "3x3 then 1x1": (
        Product(Stored("point"), Stored("kernel")),
        np.einsum("orxy,rihw->oihw", TABLE["point"], TABLE["kernel"]),
        "point × kernel",
    ),
    "masked": (Masked(M, Stored("mask")), TABLE["m"] * TABLE["mask"], "m · mask"),
    "weight norm": (WeightNormed(M, Stored("gain")), normed(), "m of lengths gain"),
    "adapter": (
        Adapted(M, Product(Stored("left"), Stored("right")), 0.5),
        TABLE["m"] + 0.5 * TABLE["left"] @ TABLE["right"],
        "m + 0.5 · (left × right)",
    ),
    "nested": (
        Taken(Turned(StackItem(Stored("stack"), 1), (1, 0)), 0, 2, 4),
        TABLE["stack"][1].T[2:6],
        "stack[1], transposed, rows 2–5",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_read_whole(name: str) -> None:
    view, wanted, _ = CASES[name]
    np.testing.assert_allclose(view.read(SUSPECT), wanted, rtol=1e-5, atol=1e-6)
    assert view.shape(SUSPECT.shapes) == wanted.shape
    assert view.read(SUSPECT).dtype == np.float32


@pytest.mark.parametrize("name", CASES)
def test_a_part_is_a_part_of_the_whole(name: str) -> None:
    view, wanted, _ = CASES[name]
    rng = np.random.default_rng(1)
    for _ in range(8):
        index = tuple(
            None if rng.random() < 0.3 else rng.integers(0, n, rng.integers(1, n + 1))
            for n in wanted.shape
        )
        part = wanted
        for axis, places in enumerate(index):
            part = part if places is None else np.take(part, places, axis=axis)
        np.testing.assert_allclose(view.take(SUSPECT, index), part, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_told_in_words(name: str) -> None:
    view, _, words = CASES[name]
    assert view.describe() == words
    assert set(view.stored()) <= set(TABLE)
    assert {view: 1}[view] == 1


def test_what_was_done_is_told_once_each() -> None:
    view = Taken(Turned(StackItem(Stored("stack"), 1), (1, 0)), 0, 2, 4)
    assert view.changes == ("slice of fused tensor", "transposed", "one of a stack")
    assert Stored("m").changes == ()
    assert Adapted(M, Product(Stored("left"), Stored("right")), 1.0).changes == ("adapter added",)
    assert Joined((M, M), 0).changes == ("2 pieces joined",)


def test_a_name_that_cannot_be_printed_is_shown_quoted() -> None:
    assert Stored("a\nb").describe() == r"'a\nb'"


def test_many_pieces_are_told_in_short() -> None:
    view = Joined(tuple(Taken(M, 0, i, 1) for i in range(5)), 0)
    assert view.describe() == "m, rows 0–0 + 3 more + m, rows 4–4"


@pytest.mark.parametrize(
    ("old", "new", "groups"),
    [
        ((6, 36), (6, 4, 3, 3), [([0], [0]), ([1], [1, 2, 3])]),
        ((4, 3, 2), (12, 2), [([0, 1], [0]), ([2], [1])]),
        ((5, 4, 1, 1), (5, 4), [([0], [0]), ([1, 2, 3], [1])]),
        ((6, 4), (4, 6), [([0, 1], [0, 1])]),
        ((1, 4), (4,), [([0, 1], [0])]),
        ((1,), (), [([0], [])]),
    ],
)
def test_axes_fall_into_groups(
    old: tuple[int, ...], new: tuple[int, ...], groups: list[tuple[list[int], list[int]]]
) -> None:
    assert list(groups_of(old, new)) == groups
