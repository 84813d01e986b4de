"""Layers under other numbers, recognised by all of their tensors together."""

import numpy as np
import pytest

from neuralmark.anchors.locating import renumbering
from neuralmark.anchors.locating.renumbering import NamedScores, renumbered

WIDEST = 64.0
KINDS = ("q", "k", "v", "up")


def scores(layers: int, moved: dict[int, int], noise: float, seed: int = 0) -> list[NamedScores]:
    """A group of scores for each kind of tensor: near where a layer went, further elsewhere."""
    rng = np.random.default_rng(seed)
    count = max(moved.values()) + 1
    groups = []
    for kind in KINDS:
        apart = 1 + noise * rng.standard_normal((layers, count))
        for mine, theirs in moved.items():
            apart[mine, theirs] -= 0.5
        wanted = [f"model.layers.{n}.{kind}.weight" for n in range(layers)]
        pool = [f"other.h.{n}.{kind}.weight" for n in range(count)]
        groups.append(NamedScores(wanted, pool, np.abs(apart)))
    return groups


def went(masks: list[np.ndarray]) -> list[dict[int, int]]:
    return [{int(a): int(b) for a, b in zip(*mask.nonzero(), strict=True)} for mask in masks]


@pytest.mark.parametrize("seed", range(5))
def test_all_tensors_of_a_layer_tell_more_than_one(seed: int) -> None:
    moved = {0: 1, 1: 2, 2: 4, 3: 5, 4: 7, 5: 8}
    groups = scores(6, moved, 0.3, seed)
    alone = [dict(enumerate(group.apart.argmin(axis=1).tolist())) for group in groups]
    assert any(each != moved for each in alone)
    masks = renumbered(groups, WIDEST)
    assert masks is not None
    assert went(masks) == [moved] * len(KINDS)


def test_what_a_layer_lacks_is_not_named() -> None:
    groups = scores(3, {0: 2, 1: 1, 2: 0}, 0.1)
    short = groups[0]
    groups[0] = NamedScores(short.wanted, short.pool[1:], short.apart[:, 1:])
    masks = renumbered(groups, WIDEST)
    assert masks is not None
    assert went(masks) == [{0: 1, 1: 0}, *[{0: 2, 1: 1, 2: 0}] * 3]


def test_without_numbers_there_are_no_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = np.ones((1, 1))
    assert renumbered([NamedScores(["lm_head.weight"], ["out.weight"], apart)], WIDEST) is None
    assert renumbered([NamedScores(["a.1.w"], ["x7"], apart)], WIDEST) is None
    assert renumbered([], WIDEST) is None
    other = renumbered([NamedScores(["a.1.w"], ["a.1.b"], apart)], WIDEST)
    assert other is not None
    assert not other[0].any()
    monkeypatch.setattr(renumbering, "MOST_LAYERS", 2)
    assert renumbered(scores(3, {0: 0, 1: 1, 2: 2}, 0.1), WIDEST) is None
