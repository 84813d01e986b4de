"""GPT-2 as transformers names it; its Conv1D layers are stored [in, out].

Heads are not to be seen from shapes: they come from the live model's configuration, from the
caller, or from the width, where it is one of GPT-2's own (64 values per head).
"""

import re

from neuralmark.errors import UnknownFamilyError
from neuralmark.structures.attention import UNKNOWN, fused, heads_of, spaces_of, tensors_of
from neuralmark.structures.book import Book, Hints
from neuralmark.structures.structure import (
    STREAM,
    Attention,
    Fold,
    Group,
    Producer,
    Structure,
    Vocabulary,
)

_LAYER = re.compile(r"(transformer\.)?h\.(\d+)\.attn\.c_attn\.weight$")
_BUFFERS = re.compile(r".*\.attn\.(bias|masked_bias)$")
_WIDTHS = (768, 1024, 1280, 1600)
_PARTS = ("attn.c_proj", "mlp.c_fc", "mlp.c_proj")
_NORMS = ("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias")
_OUTPUTS = ("lm_head.weight", "score.weight")


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
    attentions = tuple(_attention(book, f"{layer}.attn", heads) for layer in layers)
    stream = _stream(book, prefix, layers, width)
    notes = [] if attentions[0].size else [UNKNOWN]
    if not stream.movable:
        notes.append("residual stream left alone: the layer that reads it is not in the file")
    also = [n for n in book.shapes if _BUFFERS.match(n)] + tensors_of(book, attentions)
    structure = Structure(
        "GPT-2",
        (*(_mlp(book, layer) for layer in layers), *heads_of(attentions), stream),
        tuple(spaces_of(attentions)),
        notes=tuple(notes),
        vocabulary=_vocabulary(book, prefix),
        attentions=attentions,
        gains=_gains(book, prefix, layers),
    )
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


def _attention(book: Book, layer: str, heads: int) -> Attention:
    names = (f"{layer}.c_attn.weight", f"{layer}.c_attn.bias", f"{layer}.c_proj.weight")
    return fused(book, layer, names, heads, axis=1)


def _mlp(book: Book, layer: str) -> Group:
    size = book.shapes[f"{layer}.mlp.c_fc.weight"][1]
    made = Producer(tuple(book.maker(f"{layer}.mlp.c_fc", axis=1)))
    return Group(f"{layer}.mlp", size, (made,), (book.side(f"{layer}.mlp.c_proj.weight", 0),))


def _outputs(book: Book) -> list[str]:
    return [name for name in _OUTPUTS if book.has(name)]


def _stream(book: Book, prefix: str, layers: list[str], width: int) -> Group:
    """The residual stream: layer norms do not mind the order of its channels."""
    writers = [book.side(f"{prefix}{name}.weight", 1) for name in ("wte", "wpe")]
    riders = [book.side(f"{layer}.{norm}", 0) for layer in layers for norm in _NORMS]
    riders += [book.side(f"{prefix}ln_f.{e}", 0) for e in ("weight", "bias")]
    for layer in layers:
        for part in ("attn.c_proj", "mlp.c_proj"):
            writers += book.maker(f"{layer}.{part}", axis=1)
    readers = [book.side(f"{x}.{p}.weight", 0) for x in layers for p in ("attn.c_attn", "mlp.c_fc")]
    readers += [book.side(name, 1) for name in _outputs(book)]
    return Group(
        "residual stream",
        width,
        (Producer(tuple(writers)),),
        tuple(readers),
        tuple(riders),
        kind=STREAM,
        movable=bool(prefix or _outputs(book)),
    )


def _gains(book: Book, prefix: str, layers: list[str]) -> tuple[Fold, ...]:
    found: list[Fold] = []
    for layer in layers:
        for norm, part in (("ln_1", "attn.c_attn"), ("ln_2", "mlp.c_fc")):
            reads = book.side(f"{layer}.{part}.weight", 0)
            found.append((book.stored[f"{layer}.{norm}.weight"], (reads,)))
    last = tuple(book.side(name, 1) for name in _outputs(book))
    return (*found, (book.stored[f"{prefix}ln_f.weight"], last))


def _vocabulary(book: Book, prefix: str) -> Vocabulary:
    """Tokens: the embeddings, and the output layer where there is one."""
    scores = book.maker("lm_head") if book.has("lm_head.weight") else []
    size = book.shapes[f"{prefix}wte.weight"][0]
    return Vocabulary(size, (book.side(f"{prefix}wte.weight", 0),), tuple(scores))
