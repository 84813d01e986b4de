"""Plain chains: convolutions and linear layers one after the other, with or without batch norms.

By names: `features.N` and `classifier.N` (VGG, AlexNet; activations are taken to be ReLU), or the
numbers of a torch `Sequential` (activations are not known, but elementwise). The same map is built
from a traced module, which tells the activations.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from neuralmark.errors import UnknownFamilyError
from neuralmark.structures.book import Book, Hints
from neuralmark.structures.structure import (
    OTHER,
    RELU,
    Activation,
    Group,
    Norm,
    Producer,
    Structure,
)

_NUMBERED = re.compile(
    r"(?:(?P<part>.*)\.)?(?P<number>\d+)\.(?:weight|bias|running_mean|running_var)$"
)
_HEADS = ("classifier", "fc", "linear", "head")
_TAKEN = "taken for a plain chain from its numbers; activations unknown, so nothing was rescaled"


@dataclass(frozen=True)
class Link:
    """One layer of a chain: its prefix, its batch norm, what lies between it and the next."""

    layer: str
    norm: Norm | None = None
    activation: Activation = OTHER


def recognise(book: Book, hints: Hints) -> Structure | None:
    """The map, or None when the names are not those of a chain."""
    prefixes = _ordered(book)
    if prefixes is None:
        return None
    torchvision = prefixes[0].startswith("features.")
    links: list[Link] = []
    for prefix in prefixes:
        shape = book.shapes.get(f"{prefix}.weight", ())
        if len(shape) >= 2:
            links.append(Link(prefix, None, RELU if torchvision else OTHER))
        elif not links or links[-1].norm is not None:
            raise UnknownFamilyError(
                f"{prefix!r} is not a layer that a chain of convolutions and linear layers has"
                " there, so the model cannot be rebuilt with the same function"
            )
        else:
            links[-1] = _normed(book, hints, links[-1], prefix)
    found = assemble(book, "VGG" if torchvision else "Sequential", links)
    return found if torchvision else replace(found, notes=(_TAKEN,))


def assemble(book: Book, family: str, links: Sequence[Link]) -> Structure:
    """Groups between each layer and the next."""
    groups = tuple(_between(book, one, two) for one, two in pairwise(links))
    if not groups:
        raise UnknownFamilyError("a chain of one layer has no hidden channels to rearrange")
    last = links[-1]
    if last.norm is not None:
        size = book.shapes[f"{last.layer}.weight"][0]
        made = Producer(tuple(book.maker(last.layer)), last.norm)
        groups += (Group(last.layer, size, (made,), movable=False),)
    ends = [f"{last.layer}.weight", f"{last.layer}.bias"]
    return book.require_all(Structure(family, groups), ends)


def _between(book: Book, one: Link, two: Link) -> Group:
    size = book.shapes[f"{one.layer}.weight"][0]
    width = book.shapes[f"{two.layer}.weight"][1]
    flattened = len(book.shapes[f"{two.layer}.weight"]) == 2
    if width % size or (width != size and not flattened):
        raise UnknownFamilyError(
            f"{two.layer!r} reads {width} channels, but {one.layer!r} makes {size}: they are not"
            " joined in a plain chain (grouped convolutions are not known)"
        )
    made = Producer(tuple(book.maker(one.layer)), one.norm)
    reads = book.side(f"{two.layer}.weight", 1, width // size)
    return Group(one.layer, size, (made,), (reads,), activation=one.activation)


def _normed(book: Book, hints: Hints, link: Link, prefix: str) -> Link:
    size = book.shapes[f"{link.layer}.weight"][0]
    direct = _number(prefix) == _number(link.layer) + 1
    return Link(link.layer, book.norm(prefix, size, hints, direct=direct), link.activation)


def _ordered(book: Book) -> list[str] | None:
    """Prefixes of the layers in their order; None when it does not follow from the names."""
    found: dict[str, tuple[bool, int]] = {}
    parts: set[str] = set()
    for name in book.shapes:
        prefix = name.rpartition(".")[0]
        match = _NUMBERED.match(name)
        if not match and prefix not in _HEADS:
            return None
        part = (match["part"] or "") if match else prefix
        parts.add(part)
        found[prefix] = (part in _HEADS, int(match["number"]) if match else 0)
    body, heads = parts.difference(_HEADS), parts.intersection(_HEADS)
    if len(body) != 1 or len(heads) > 1:
        return None
    return sorted(found, key=found.__getitem__)


def _number(prefix: str) -> int:
    tail = prefix.rpartition(".")[2]
    return int(tail) if tail.isdigit() else -1
