"""GPT-2 as transformers names it; its Conv1D layers are stored [in, out].

Heads are not to be seen from shapes: they come from the live model's configuration, from the
caller, or from the width, where it is one of GPT-2's own (64 values per head).
"""

import re

from neuralmark.errors import UnknownFamilyError
from neuralmark.structures.book import Book, Hints
from neuralmark.structures.structure import (
    HEADS,
    STREAM,
    Group,
    Pair,
    Producer,
    Side,
    Structure,
    Vocabulary,
)

_LAYER = re.compile(r"(transformer\.)?h\.(\d+)\.attn\.c_attn\.weight$")
_BUFFERS = re.compile(r".*\.attn\.(bias|masked_bias)$")
_WIDTHS = (768, 1024, 1280, 1600)
_PARTS = ("attn.c_proj", "mlp.c_fc", "mlp.c_proj")
_NORMS = ("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias")


def recognise(book: Book, hints: Hints) -> Structure | None:
    """The map, or None when the names are not GPT-2's."""
    found = [match for name in book.shapes if (match := _LAYER.match(name))]
    if not found:
        return None
    prefix = found[0][1] or ""
    layers = [f"{prefix}h.{n}" for n in sorted(int(match[2]) for match in found)]
    _require(book, prefix, layers)
    width = book.shapes[f"{layers[0]}.attn.c_attn.weight"][0]
    heads = hints.heads or (width // 64 if width in _WIDTHS else 0)
    groups = [_mlp(book, layer) for layer in layers]
    pairs: list[Pair] = []
    notes: list[str] = []
    if heads and width % heads == 0:
        groups += [_heads(book, layer, width, heads) for layer in layers]
        pairs = [p for layer in layers for p in _spaces(book, layer, width, heads)]
    else:
        notes.append("heads left alone: their number is not known, give it with heads")
    stream = _stream(book, prefix, layers, width)
    if not stream.movable:
        notes.append("residual stream left alone: the layer that reads it is not in the file")
    also = [n for n in book.shapes if _BUFFERS.match(n)] + [f"{x}.attn.c_attn.bias" for x in layers]
    also += [f"{layer}.attn.c_attn.weight" for layer in layers]
    tokens = _vocabulary(book, prefix)
    structure = Structure("GPT-2", (*groups, stream), tuple(pairs), None, tuple(notes), tokens)
    return book.require_all(structure, also)


def _require(book: Book, prefix: str, layers: list[str]) -> None:
    parts = ("attn.c_attn", *_PARTS)
    wanted = [f"{x}.{part}.{end}" for x in layers for part in parts for end in ("weight", "bias")]
    wanted += [f"{x}.{norm}" for x in layers for norm in _NORMS]
    wanted += [f"{prefix}{name}" for name in ("wte.weight", "wpe.weight", "ln_f.weight")]
    missing = next((name for name in wanted if not book.has(name)), None)
    if missing is not None:
        raise UnknownFamilyError(
            f"the names are those of GPT-2, but {missing!r} is not there: the file holds only a"
            " part of the model"
        )


def _mlp(book: Book, layer: str) -> Group:
    size = book.shapes[f"{layer}.mlp.c_fc.weight"][1]
    made = Producer(tuple(book.maker(f"{layer}.mlp.c_fc", axis=1)))
    return Group(f"{layer}.mlp", size, (made,), (book.side(f"{layer}.mlp.c_proj.weight", 0),))


def _heads(book: Book, layer: str, width: int, heads: int) -> Group:
    """Whole heads: queries, keys and values of one head move together."""
    block = width // heads
    sides = [
        side
        for part in range(3)
        for side in book.maker(f"{layer}.attn.c_attn", 1, block, part * width)
    ]
    reads = book.side(f"{layer}.attn.c_proj.weight", 0, block)
    return Group(f"{layer}.attn", heads, (Producer(tuple(sides)),), (reads,), kind=HEADS)


def _spaces(book: Book, layer: str, width: int, heads: int) -> list[Pair]:
    """Values against outputs, and queries against keys, head by head."""
    block = width // heads
    pairs = []
    for head in range(heads):
        start = head * block

        def part(number: int, start: int = start) -> tuple[Side, ...]:
            offset = number * width + start
            return tuple(book.maker(f"{layer}.attn.c_attn", 1, block, offset))

        reads = book.side(f"{layer}.attn.c_proj.weight", 0, block, start)
        pairs.append(Pair(f"{layer}.attn values {head}", block, part(2), (reads,)))
        pairs.append(Pair(f"{layer}.attn queries {head}", block, part(0), part(1)))
    return pairs


def _stream(book: Book, prefix: str, layers: list[str], width: int) -> Group:
    """The residual stream: layer norms do not mind the order of its channels."""
    writers = [book.side(f"{prefix}{name}.weight", 1) for name in ("wte", "wpe")]
    riders = [book.side(f"{layer}.{norm}", 0) for layer in layers for norm in _NORMS]
    riders += [book.side(f"{prefix}ln_f.{e}", 0) for e in ("weight", "bias")]
    for layer in layers:
        for part in ("attn.c_proj", "mlp.c_proj"):
            writers += book.maker(f"{layer}.{part}", axis=1)
    readers = [book.side(f"{x}.{p}.weight", 0) for x in layers for p in ("attn.c_attn", "mlp.c_fc")]
    heads = [name for name in ("lm_head.weight", "score.weight") if book.has(name)]
    readers += [book.side(name, 1) for name in heads]
    return Group(
        "residual stream",
        width,
        (Producer(tuple(writers)),),
        tuple(readers),
        tuple(riders),
        kind=STREAM,
        movable=bool(prefix or heads),
    )


def _vocabulary(book: Book, prefix: str) -> Vocabulary:
    """Tokens: the embeddings, and the output layer where there is one."""
    scores = book.maker("lm_head") if book.has("lm_head.weight") else []
    size = book.shapes[f"{prefix}wte.weight"][0]
    return Vocabulary(size, (book.side(f"{prefix}wte.weight", 0),), tuple(scores))
