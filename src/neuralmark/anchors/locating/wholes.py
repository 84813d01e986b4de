"""What a suspect holds: its stored tensors, and those that follow from several of them by name.

Wrappers keep a layer's weight in parts and put it together in the forward pass: pruning masks,
weight norms, adapters. Their names tell what belongs together.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from neuralmark.anchors.locating.combined import Masked, Product, StackItem, WeightNormed
from neuralmark.anchors.locating.layouts import layouts, size_of
from neuralmark.anchors.locating.suspect import Shape, own_name
from neuralmark.anchors.locating.views import Shapes, Stored, Turned, View
from neuralmark.core.names import canonical_name

MOST_STACKED = 1024
"""A first axis that is longer is not taken for a stack of layers."""

_ADAPTER = re.compile(r"(?P<stem>.*)\.lora_(?:embedding_)?(?:A|down)(?P<rest>(?:\.[^.]+)*)$")
_UP = {"lora_A": "lora_B", "lora_down": "lora_up", "lora_embedding_A": "lora_embedding_B"}
_NORMED = ".parametrizations.weight.original"


@dataclass(frozen=True)
class Whole:
    """A tensor that a suspect has, or that wrappers make of several."""

    name: str
    """Canonical."""
    view: View
    shape: Shape
    adapter: View | None = None
    """What an adapter adds to it, in its layout; the scale is not stored."""


def wholes_of(shapes: Shapes) -> list[Whole]:
    """All of them: the stored tensors in the order of the file, then what is made of them."""
    stored = [Whole(own_name(name), Stored(name), shape) for name, shape in shapes.items()]
    made = [whole for name in shapes for whole in _made(name, shapes)]
    return stored + made + list(_adapted(stored, shapes))


def items_of(whole: Whole, sizes: set[int]) -> Iterator[Whole]:
    """The tensors of a stack, if they have one of these sizes; stacks of stacks too.

    A stack lies along the first axis; of matrices it may lie along the second one too.
    """
    yield from _along_first(whole, sizes)
    if len(whole.shape) == 3:
        first, second, third = whole.shape
        turned = Turned(whole.view, (1, 0, 2))
        yield from _along_first(replace(whole, view=turned, shape=(second, first, third)), sizes)


def _along_first(whole: Whole, sizes: set[int]) -> Iterator[Whole]:
    if len(whole.shape) < 3 or whole.shape[0] > MOST_STACKED:
        return
    inner = size_of(whole.shape[1:])
    deeper = any(inner % size == 0 and inner // size <= MOST_STACKED for size in sizes)
    if not deeper:
        return
    for number in range(whole.shape[0]):
        item = replace(whole, view=StackItem(whole.view, number), shape=whole.shape[1:])
        if inner in sizes:
            yield item
        if len(whole.shape) > 3:
            yield from items_of(item, sizes)


def _made(name: str, shapes: Shapes) -> Iterator[Whole]:
    """What is made of this tensor and a partner."""
    shape = shapes[name]
    if name.endswith("_orig"):
        stem = name.removesuffix("_orig")
        view: View = Stored(name)
        if shapes.get(f"{stem}_mask") == shape:
            view = Masked(view, Stored(f"{stem}_mask"))
        yield Whole(canonical_name(stem), view, shape)
    elif name.endswith("_v") and f"{name[:-1]}g" in shapes:
        yield from _normed(name, f"{name[:-1]}g", name[:-2], shapes)
    elif name.endswith(f"{_NORMED}1") and f"{name[:-1]}0" in shapes:
        stem = name.removesuffix(f"{_NORMED}1")
        yield from _normed(name, f"{name[:-1]}0", f"{stem}.weight", shapes)
    elif name.endswith(_NORMED):
        stem = name.removesuffix(_NORMED)
        yield Whole(canonical_name(f"{stem}.weight"), Stored(name), shape)


def _normed(direction: str, gain: str, stem: str, shapes: Shapes) -> Iterator[Whole]:
    shape = shapes[direction]
    view: View = Stored(direction)
    if len(shape) > 1 and size_of(shapes[gain]) == shape[0] == shapes[gain][0]:
        view = WeightNormed(view, Stored(gain))
    yield Whole(canonical_name(stem), view, shape)


def _adapted(stored: list[Whole], shapes: Shapes) -> Iterator[Whole]:
    by_name = {whole.name: whole for whole in stored}
    for down in shapes:
        match = _ADAPTER.match(down)
        if match is None:
            continue
        word = next(word for word in reversed(_UP) if f".{word}" in down)
        up = f"{match['stem']}.{_UP[word]}{match['rest']}"
        base = by_name.get(canonical_name(f"{match['stem']}.weight"))
        if up not in shapes or base is None:
            continue
        added = _added(up, down, base.shape, shapes)
        if added is not None:
            yield replace(base, adapter=added)


def _added(up: str, down: str, base: Shape, shapes: Shapes) -> View | None:
    """The product of two adapter tensors in the base's layout; None where they do not fit."""
    one, two = shapes[up], shapes[down]
    if len(one) != len(two) or len(one) < 2 or one[1] != two[0]:
        return None
    if any(a != 1 and b != 1 for a, b in zip(one[2:], two[2:], strict=True)):
        return None
    product = Product(Stored(up), Stored(down))
    return next(layouts(product, product.shape(shapes), base), None)
