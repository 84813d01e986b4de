"""Which tensors an anchor keeps: the marked ones, and what it takes to align them.

Kept are, in this order:

- the **marked** tensors, whole;
- **partners**: every tensor that shares hidden channels, heads or a space inside heads with a
  marked one (q, k, v and o; gate, up and down; a convolution and the one that reads it), whole;
- all vectors (gains, biases, running statistics) and all tensors of fewer than 8192 weights;
- of what lies at the edge of a residual stream (token and position embeddings, output layers), an
  even sample of rows: twice as many as the stream is wide, at least 1024, at most all.

A weight takes `bits` bits (4: an eighth of float32), a row two bytes more, a vector's value two
bytes. Where the mark is spread over all inner tensors, as it is by default up to 134 million
weights and with `spread="all"`, partners are few, and the anchor is about an eighth of the marked
tensors in float32 (1/7.7 for a Llama of 160 million weights). A mark in some of a model's layers
takes the partners of these layers besides: 1/2.5 for 20 tensors of 1.1 billion weights. Tensors
that are quantised or integers, and partners that hold NaN or infinity (masks), are not kept.
"""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import combinations

from neuralmark.anchors.anchor import PARTNER, AnchorEntry, Skeleton
from neuralmark.anchors.originals import Original, OriginalTensor
from neuralmark.core.key import Placement
from neuralmark.core.names import natural
from neuralmark.errors import ParameterError, UnknownTensorError, UnsuitableTensorError
from neuralmark.structures.structure import STREAM, Structure

SMALL = 8192
"""Tensors of fewer weights are always kept."""
LEAST_ROWS = 1024
"""Of an embedding, at least so many rows are kept (or all)."""

_EMBEDDING = re.compile(r"wte|wpe|\w*embed\w*|tok_embeddings|lm_head|output|shared|score")

_MOST_ALIKE = 16
"""More matrices of one shape outside of layers are no embeddings and outputs."""


def skeleton_of(original: Original, known: Mapping[str, OriginalTensor], heads: int) -> Skeleton:
    """Names, shapes and tied tensors of a model; heads that do not fit are not known."""
    bare = _bare(known, heads)
    names = [name for name, _ in bare.shapes]
    heads = heads if bare.heads_fit else 0
    return Skeleton(bare.shapes, heads, tuple(_tied(original, known, names)))


def fitting_heads(original: Original, named: int, told: int) -> int:
    """The heads that the owner named, or that the model tells of; 0 where those do not fit.

    A number that the owner named and that does not fit is an error.
    """
    bare = _bare({tensor.name: tensor for tensor in original.tensors()}, named or told)
    if named and not bare.heads_fit:
        raise ParameterError(
            f"{named} attention heads do not fit the shapes of this model: give the right number,"
            " heads=..., or leave it out"
        )
    return bare.heads if bare.heads_fit else 0


def _bare(known: Mapping[str, OriginalTensor], heads: int) -> Skeleton:
    """Names and shapes alone."""
    names = sorted(name for name, tensor in known.items() if tensor.readable)
    return Skeleton(tuple((name, known[name].shape) for name in names), heads)


def _tied(
    original: Original, known: Mapping[str, OriginalTensor], names: list[str]
) -> Iterator[tuple[str, str]]:
    """Tensors that are one: matrices outside of numbered layers, as embeddings and outputs are."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        if _outside(name) and len(known[name].shape) == 2:
            alike.setdefault(known[name].shape, []).append(name)
    for group in alike.values():
        for one, two in combinations(group if len(group) <= _MOST_ALIKE else (), 2):
            stored = known[one].stored, known[two].stored
            if original.shared(*stored) or original.equal(*stored):
                yield one, two


def _outside(name: str) -> bool:
    """Whether it lies outside of all numbered layers."""
    return not any(part.isdigit() for part in name.split("."))


def chosen_entries(
    known: Mapping[str, OriginalTensor], skeleton: Skeleton, placement: Placement
) -> list[AnchorEntry]:
    """The entries of an anchor, not yet coarsened."""
    for name, shape in placement:
        if name not in known or known[name].shape != shape:
            raise UnknownTensorError(f"the model has no tensor {name[:80]!r} of the shape {shape}")
        if not known[name].readable:
            raise UnsuitableTensorError(f"{name[:80]!r} cannot be read, so it has no coarse copy")
    marked = [AnchorEntry(name, shape) for name, shape in placement]
    taken = {entry.name for entry in marked}
    shapes, structure = dict(skeleton.shapes), skeleton.structure
    whole = _beside(shapes, structure, taken)
    sampled = _edges(shapes, structure)
    left_out = _doubles(skeleton)
    partners = [
        AnchorEntry(name, shapes[name], PARTNER, None if name in whole else sampled[name])
        for name in sorted({*whole, *sampled} - taken - left_out, key=natural)
    ]
    return marked + partners


def _doubles(skeleton: Skeleton) -> set[str]:
    """Of tensors that are one, those that are not kept: outputs rather than embeddings."""
    groups = skeleton.structure.groups if skeleton.structure is not None else ()
    readers = {side.tensor for group in groups for side in group.consumers}
    return {one if one in readers and two not in readers else two for one, two in skeleton.tied}


def _beside(
    shapes: Mapping[str, tuple[int, ...]], structure: Structure | None, marked: set[str]
) -> set[str]:
    """Names of the tensors that are kept whole beside the marked ones."""
    kept = {name for name, shape in shapes.items() if len(shape) < 2 or math.prod(shape) < SMALL}
    if structure is None:
        return kept
    for group in structure.groups:
        if group.kind != STREAM and group.tensors() & marked:
            kept |= group.tensors()
    for pair in structure.pairs:
        if pair.tensors() & marked:
            kept |= pair.tensors()
    for layer in structure.attentions:  # heads, though their number is not known
        if layer.tensors() & marked:
            kept |= layer.tensors()
    return kept


def _edges(
    shapes: Mapping[str, tuple[int, ...]], structure: Structure | None
) -> dict[str, int | None]:
    """What stands at the edges of residual streams, and how many rows of it are kept."""
    sides: dict[str, tuple[int, int]] = {}
    if structure is None:
        for name, shape in shapes.items():
            parts = name.split(".")
            if len(shape) == 2 and any(_EMBEDDING.fullmatch(part) for part in parts[-3:]):
                sides[name] = (1, shape[1])
    else:
        for group in structure.groups:
            for side in group.sides() if group.kind == STREAM else ():
                sides.setdefault(side.tensor, (side.axis, group.size))
    kept: dict[str, int | None] = {}
    for name, (axis, width) in sides.items():
        shape = shapes[name]
        most = max(2 * width, LEAST_ROWS)
        if len(shape) < 2 or not _outside(name):
            continue
        if axis == 1 and shape[0] > most:
            kept[name] = most
        elif math.prod(shape) <= 2 * most * width:
            kept[name] = None
    return kept
