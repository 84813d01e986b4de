"""Biases and batch norms: they follow the rows of the layer they belong to (pure)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from neuralmark.anchors.aligning.contract import FLIPPED, PERMUTED, Aligned
from neuralmark.anchors.factors import likeness
from neuralmark.anchors.moves import moved
from neuralmark.structures.structure import Structure, Weights

Followers = Mapping[str, tuple[str, bool]]
"""Vectors by name: the weight they follow, and whether they turn their signs with it."""


def followers(structure: Structure, matrices: set[str]) -> Followers:
    """Of every layer of the map whose weight is among these."""
    return dict(_pairs(structure, matrices))


def _pairs(structure: Structure, matrices: set[str]) -> Iterator[tuple[str, tuple[str, bool]]]:
    for group in structure.groups:
        for producer in group.producers:
            sides = [s for s in producer.sides if not (s.axis or s.offset) and s.block == 1]
            leader = next((s.tensor for s in sides if s.tensor in matrices), None)
            if leader is None:
                continue
            yield from ((s.tensor, (leader, True)) for s in sides if s.tensor != leader)
            if producer.norm is not None:
                norm = producer.norm
                yield from ((name, (leader, True)) for name in (norm.gamma, norm.mean))
                yield from ((name, (leader, False)) for name in (norm.beta, norm.var))


def follow(
    name: str, leader: Aligned, suspects: Weights, anchor: Weights, *, turns: bool
) -> Aligned | None:
    """A vector with the rows of its weight; None where it does not fit them."""
    rows = leader.moves[0]
    values, coarse = suspects[name], anchor[name]
    places = -1 if rows.index is None else int(rows.index.max(initial=-1))
    if values.ndim != 1 or coarse.shape != (rows.size,) or not 0 <= places < len(values):
        return None
    move = rows if turns else replace(rows, factor=None)
    words = (PERMUTED, FLIPPED) if turns else (PERMUTED,)
    changes = tuple(word for word in words if word in leader.changes)
    return Aligned((move,), changes, likeness(moved(values, (move,)), coarse))
