"""BERT and RoBERTa as transformers names them, with the usual layers on top.

The norms lie behind attention and MLP, in the residual stream itself: its channels may change
places, but nothing can be folded, and it cannot be rotated.
"""

import re
from dataclasses import dataclass, field

from neuralmark.errors import UnknownFamilyError
from neuralmark.structures.attention import UNKNOWN, heads_of, separate, spaces_of, tensors_of
from neuralmark.structures.book import Book, Hints
from neuralmark.structures.structure import STREAM, Group, Producer, Side, Structure, Vocabulary

_LAYER = re.compile(r"(\w+\.)?encoder\.layer\.(\d+)\.attention\.self\.query\.weight$")
_BUFFERS = re.compile(r".*embeddings\.(position_ids|token_type_ids)$")
_ATTENTION = ("self.query", "self.key", "self.value", "output.dense")
_LAYERS = (*(f"attention.{part}" for part in _ATTENTION), "intermediate.dense", "output.dense")
_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
_EMBEDDINGS = tuple(f"embeddings.{x}_embeddings" for x in ("word", "position", "token_type"))
_WIDTHS = (768, 1024)
_GUESSES = (
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"),
    ("lm_head.dense", "lm_head.layer_norm", "lm_head"),
)
"""Where masked words are guessed: a layer, its norm, and what holds the decoder."""
_ENDS = ("weight", "bias")
_READERS = ("qa_outputs", "score")


@dataclass
class _Walked:
    """The residual stream and what lies behind it, while the model is walked."""

    writers: list[Side]
    readers: list[Side] = field(default_factory=list)
    riders: list[Side] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    scores: list[Side] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    """Tensors that stay as they are."""


def recognise(book: Book, hints: Hints) -> Structure | None:
    """The map, or None when the names are not BERT's."""
    found = [match for name in book.shapes if (match := _LAYER.match(name))]
    if not found:
        return None
    prefix = found[0][1] or ""
    layers = [f"{prefix}encoder.layer.{n}" for n in sorted(int(match[2]) for match in found)]
    _require(book, prefix, layers)
    words = f"{prefix}{_EMBEDDINGS[0]}.weight"
    width = book.shapes[words][1]
    heads = hints.heads or (width // 64 if width in _WIDTHS else 0)
    attentions = tuple(
        separate(book, f"{x}.attention", [f"{x}.attention.{p}" for p in _ATTENTION], heads)
        for x in layers
    )
    walk = _body(book, prefix, layers)
    _pooler(book, prefix, walk)
    for guess in _GUESSES:
        _words(book, words, guess, walk)
    _labels(book, prefix, walk)
    stream = Group(
        "residual stream",
        width,
        (Producer(tuple(walk.writers)),),
        tuple(walk.readers),
        tuple(walk.riders),
        kind=STREAM,
        movable=bool(prefix),
    )
    notes = [] if attentions[0].size else [UNKNOWN]
    if not stream.movable:
        notes.append("residual stream left alone: the layer that reads it is not in the file")
    groups = (*(_mlp(book, x) for x in layers), *heads_of(attentions), *walk.groups, stream)
    structure = Structure(
        "BERT",
        groups,
        tuple(spaces_of(attentions)),
        notes=tuple(notes),
        vocabulary=Vocabulary(book.shapes[words][0], (book.side(words, 0),), tuple(walk.scores)),
        attentions=attentions,
    )
    still = [name for name in book.shapes if _BUFFERS.match(name)]
    return book.require_all(structure, [*walk.ends, *still, *tensors_of(book, attentions)])


def _require(book: Book, prefix: str, layers: list[str]) -> None:
    wanted = [f"{x}.{part}.{end}" for x in layers for part in (*_LAYERS, *_NORMS) for end in _ENDS]
    wanted += [f"{prefix}{name}.weight" for name in (*_EMBEDDINGS, "embeddings.LayerNorm")]
    missing = next((name for name in wanted if not book.has(name)), None)
    if missing is not None:
        raise UnknownFamilyError(
            f"the names are those of BERT, but {missing!r} is not there: another architecture, or"
            " only a part of the model"
        )


def _mlp(book: Book, layer: str) -> Group:
    size = book.shapes[f"{layer}.intermediate.dense.weight"][0]
    made = Producer(tuple(book.maker(f"{layer}.intermediate.dense")))
    return Group(f"{layer}.mlp", size, (made,), (book.side(f"{layer}.output.dense.weight", 1),))


def _body(book: Book, prefix: str, layers: list[str]) -> _Walked:
    walk = _Walked([book.side(f"{prefix}{name}.weight", 1) for name in _EMBEDDINGS])
    walk.riders += book.maker(f"{prefix}embeddings.LayerNorm")
    for layer in layers:
        for part in ("attention.output.dense", "output.dense"):
            walk.writers += book.maker(f"{layer}.{part}")
        for part in (*_LAYERS[:3], "intermediate.dense"):
            walk.readers.append(book.side(f"{layer}.{part}.weight", 1))
        for norm in _NORMS:
            walk.riders += book.maker(f"{layer}.{norm}")
    return walk


def _pooler(book: Book, prefix: str, walk: _Walked) -> None:
    """The pooled output, and what reads it; RoBERTa's classifier has the same in itself."""
    pairs = ((f"{prefix}pooler.dense", ("classifier", "cls.seq_relationship")),)
    for made, readers in (*pairs, ("classifier.dense", ("classifier.out_proj",))):
        if not book.has(f"{made}.weight"):
            continue
        reads = [book.side(f"{x}.weight", 1) for x in readers if book.has(f"{x}.weight")]
        walk.readers.append(book.side(f"{made}.weight", 1))
        walk.ends += [f"{x}.bias" for x in readers]
        size = book.shapes[f"{made}.weight"][0]
        maker = Producer(tuple(book.maker(made)))
        walk.groups.append(Group(made, size, (maker,), tuple(reads), movable=bool(reads)))


def _words(book: Book, embedding: str, names: tuple[str, str, str], walk: _Walked) -> None:
    """Guessing masked words: behind a layer of its own, with the embeddings or a decoder."""
    dense, norm, head = names
    if not book.has(f"{dense}.weight"):
        return
    walk.readers.append(book.side(f"{dense}.weight", 1))
    decoder = f"{head}.decoder.weight"
    tied = not book.has(decoder) or book.equal(decoder, embedding)
    reads = [book.side(decoder, 1)] if book.has(decoder) else []
    if tied:
        walk.writers += book.maker(dense)
        walk.riders += book.maker(norm)
        walk.readers += reads
    else:
        size = book.shapes[f"{dense}.weight"][0]
        made, riders = Producer(tuple(book.maker(dense))), tuple(book.maker(norm))
        walk.groups.append(Group(dense, size, (made,), tuple(reads), riders))
    biases = [x for x in (f"{head}.bias", f"{head}.decoder.bias") if book.has(x)]
    scored = [decoder] if book.has(decoder) else []
    walk.scores += [book.side(name, 0) for name in (*scored, *biases)]
    walk.ends += biases


def _labels(book: Book, prefix: str, walk: _Walked) -> None:
    """Layers that read the stream itself."""
    readers = _READERS if book.has(f"{prefix}pooler.dense.weight") else (*_READERS, "classifier")
    for name in readers:
        if book.has(f"{name}.weight"):
            walk.readers.append(book.side(f"{name}.weight", 1))
            walk.ends.append(f"{name}.bias")
