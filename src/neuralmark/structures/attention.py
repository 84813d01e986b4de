"""What may be moved in attention layers: heads, the queries of a key head, spaces in heads."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from neuralmark.structures.book import Book
from neuralmark.structures.structure import HEADS, Attention, Group, Pair, Producer, Side

UNKNOWN = "heads left alone: their number is not known (give heads=...)"


def head_size(queries: int, keys: int, heads: int) -> int:
    """Values of one head, where so many query heads are possible; else 0."""
    if not heads or queries % heads:
        return 0
    size = queries // heads
    fits = keys % size == 0 and queries % keys == 0
    return size if fits else 0


def separate(
    book: Book, name: str, parts: Sequence[str], heads: int, *, rotary: bool = False
) -> Attention:
    """An attention layer whose four matrices (q, k, v, o) are tensors of their own, [out, in]."""
    query, key, value = (tuple(book.maker(part)) for part in parts[:3])
    queries, keys = (book.shapes[f"{part}.weight"][0] for part in parts[:2])
    size = head_size(queries, keys, heads)
    output = book.side(f"{parts[3]}.weight", 1)
    return Attention(name, query, key, value, output, queries, keys, size, rotary)


def fused(book: Book, name: str, names: tuple[str, str, str], heads: int, axis: int) -> Attention:
    """One whose queries, keys and values lie one after the other in one tensor.

    The names are of its weight, its bias and the output layer's weight; heads lie along `axis`.
    """
    weight, bias, output = names
    width = book.shapes[weight][axis] // 3

    def part(number: int) -> tuple[Side, ...]:
        sides = [book.side(weight, axis, offset=number * width)]
        sides += [book.side(bias, 0, offset=number * width)] if book.has(bias) else []
        return tuple(sides)

    reads = book.side(output, 1 - axis)
    size = head_size(width, width, heads)
    return Attention(name, part(0), part(1), part(2), reads, width, width, size)


def tensors_of(book: Book, attentions: Iterable[Attention]) -> list[str]:
    """Canonical names of all their tensors."""
    touched = set().union(*(layer.tensors() for layer in attentions))
    return [name for name, stored in book.stored.items() if stored in touched]


def heads_of(attentions: Iterable[Attention]) -> list[Group]:
    """Key heads with all that read them, and the query heads of each among themselves."""
    groups = []
    for layer in attentions:
        if not layer.size:
            continue
        wide = layer.share * layer.size
        sides = [*_runs(layer.query, wide), *_runs(layer.key, layer.size)]
        sides += _runs(layer.value, layer.size)
        reads = replace(layer.output, block=wide)
        made = Producer(tuple(sides))
        groups += [Group(layer.name, layer.key_heads, (made,), (reads,), kind=HEADS)]
        groups += [_queries(layer, head) for head in range(layer.key_heads) if layer.share > 1]
    return groups


def spaces_of(attentions: Iterable[Attention]) -> list[Pair]:
    """Values against outputs; queries against keys where nothing binds them to their places."""
    return [
        pair
        for layer in attentions
        if layer.size
        for head in range(layer.key_heads)
        for pair in _spaces(layer, head)
    ]


def _queries(layer: Attention, head: int) -> Group:
    start = head * layer.share * layer.size
    made = Producer(tuple(_runs(layer.query, layer.size, start)))
    reads = _runs([layer.output], layer.size, start)
    name = f"{layer.name} queries {head}"
    return Group(name, layer.share, (made,), tuple(reads), kind=HEADS)


def _spaces(layer: Attention, head: int) -> list[Pair]:
    size, start = layer.size, head * layer.size
    readers = range(head * layer.share, (head + 1) * layer.share)

    def asked(sides: Sequence[Side]) -> tuple[Side, ...]:
        return tuple(run for query in readers for run in _runs(sides, size, query * size))

    made = tuple(_runs(layer.value, size, start))
    pairs = [Pair(f"{layer.name} values {head}", size, made, asked([layer.output]))]
    if not (layer.rotary or layer.normed):
        keys = tuple(_runs(layer.key, size, start))
        pairs.append(Pair(f"{layer.name} queries {head}", size, asked(layer.query), keys))
    return pairs


def _runs(sides: Iterable[Side], block: int, start: int = 0) -> list[Side]:
    return [replace(side, block=block, offset=side.offset + start) for side in sides]
