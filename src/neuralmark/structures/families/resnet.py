"""Residual convolutional networks: torchvision's (basic and bottleneck) and the CIFAR form.

Names: conv1, bn1, layerX.Y.conv1/bn1/conv2/bn2[/conv3/bn3], a projection `downsample.0/.1` or
`shortcut.0/.1` where there is one, and `fc` or `linear`. All activations are taken to be ReLU.
Shortcuts without parameters that change the number of channels tie the streams of their stages
together in a way that names do not tell: such streams stay as they are.
"""

import re
from dataclasses import dataclass, field
from itertools import pairwise

from neuralmark.errors import UnknownFamilyError
from neuralmark.structures.book import Book, Hints
from neuralmark.structures.structure import RELU, STREAM, Group, Producer, Side, Structure

_BLOCK = re.compile(r"layer(\d+)\.(\d+)\.conv1\.weight$")
_PROJECTIONS = ("downsample", "shortcut")
_HEADS = ("fc", "linear")


@dataclass
class _Open:
    """A residual stream while the blocks are walked."""

    name: str
    size: int
    producers: list[Producer]
    consumers: list[Side] = field(default_factory=list)
    movable: bool = True

    def closed(self) -> Group:
        return Group(
            self.name,
            self.size,
            tuple(self.producers),
            tuple(self.consumers),
            kind=STREAM,
            activation=RELU,
            movable=self.movable and bool(self.consumers),
        )


def recognise(book: Book, hints: Hints) -> Structure | None:
    """The map, or None when the names are not a ResNet's."""
    blocks = _blocks(book)
    if not blocks or not (book.has("conv1.weight") and book.has("bn1.weight")):
        return None
    head = next((name for name in _HEADS if book.has(f"{name}.weight")), None)
    if head is None:
        raise UnknownFamilyError(
            "the names are those of a ResNet, but there is neither 'fc' nor 'linear': what reads"
            " the last channels is not known; save the model with its classifier"
        )
    groups: list[Group] = []
    streams = [_Open("stem", *_start(book, hints))]
    for block in blocks:
        groups += _inside(book, hints, block)
        _pass(book, hints, block, streams)
    _read_by_head(book, head, streams[-1])
    groups += [stream.closed() for stream in streams]
    return book.require_all(Structure("ResNet", tuple(groups)), [f"{head}.bias"])


def _blocks(book: Book) -> list[str]:
    found = [match for name in book.shapes if (match := _BLOCK.match(name))]
    found.sort(key=lambda match: (int(match[1]), int(match[2])))
    return [match[0].removesuffix(".conv1.weight") for match in found]


def _start(book: Book, hints: Hints) -> tuple[int, list[Producer]]:
    size = book.shapes["conv1.weight"][0]
    return size, [_layer(book, hints, "conv1", "bn1")]


def _layer(book: Book, hints: Hints, conv: str, norm: str) -> Producer:
    size = book.shapes[f"{conv}.weight"][0]
    return Producer(tuple(book.maker(conv)), book.norm(norm, size, hints))


def _depth(book: Book, block: str) -> int:
    """How many convolutions a block has: two (basic) or three (bottleneck)."""
    return 3 if book.has(f"{block}.conv3.weight") else 2


def _inside(book: Book, hints: Hints, block: str) -> list[Group]:
    """The channels between the convolutions of a block."""
    groups = []
    widths = [book.shapes[f"{block}.conv{i + 1}.weight"] for i in range(_depth(book, block))]
    grouped = any(b[1] != a[0] for a, b in pairwise(widths))
    for i in range(1, len(widths)):
        groups.append(
            Group(
                f"{block}.conv{i}",
                widths[i - 1][0],
                (_layer(book, hints, f"{block}.conv{i}", f"{block}.bn{i}"),),
                () if grouped else (book.side(f"{block}.conv{i + 1}.weight", 1),),
                activation=RELU,
                movable=not grouped,
            )
        )
    return groups


def _pass(book: Book, hints: Hints, block: str, streams: list[_Open]) -> None:
    """Let the stream pass a block: what reads it there, and what is added to it."""
    stream, last = streams[-1], _depth(book, block)
    entry = book.shapes[f"{block}.conv1.weight"]
    if entry[1] != stream.size:
        raise UnknownFamilyError(
            f"{block}.conv1 reads {entry[1]} channels, but {stream.size} come in: the blocks are"
            " not joined as in a ResNet"
        )
    stream.consumers.append(book.side(f"{block}.conv1.weight", 1))
    made = _layer(book, hints, f"{block}.conv{last}", f"{block}.bn{last}")
    size = book.shapes[f"{block}.conv{last}.weight"][0]
    name = next((n for n in _PROJECTIONS if book.has(f"{block}.{n}.0.weight")), None)
    if name is not None:
        stream.consumers.append(book.side(f"{block}.{name}.0.weight", 1))
        projection = _layer(book, hints, f"{block}.{name}.0", f"{block}.{name}.1")
        streams.append(_Open(f"stream from {block}", size, [projection, made]))
    elif size != stream.size:
        stream.movable = False
        streams.append(_Open(f"stream from {block}", size, [made], movable=False))
    else:
        stream.producers.append(made)


def _read_by_head(book: Book, head: str, stream: _Open) -> None:
    width = book.shapes[f"{head}.weight"][1]
    if width % stream.size:
        raise UnknownFamilyError(
            f"{head!r} reads {width} values, not a multiple of the last {stream.size} channels"
        )
    stream.consumers.append(book.side(f"{head}.weight", 1, width // stream.size))
