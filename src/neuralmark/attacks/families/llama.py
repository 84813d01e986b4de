"""Llama and its like (RMSNorm, gated MLP, grouped-query attention) as transformers names them.

Heads are not to be seen from shapes: they come from the live model's configuration or from the
caller. Without them the MLP and the residual stream are still known.
"""

import re

from neuralmark.attacks.families.book import Book, Hints
from neuralmark.attacks.tools.structure import (
    HEADS,
    LINEAR,
    STREAM,
    Group,
    Pair,
    Producer,
    ResidualStream,
    Side,
    Structure,
)
from neuralmark.errors import UnknownFamilyError

_LAYER = re.compile(r"(model\.)?layers\.(\d+)\.self_attn\.q_proj\.weight$")
_FIXED = re.compile(r".*(rotary_emb\.inv_freq|self_attn\.[qk]_norm\.weight)$")
_ATTENTION = tuple(f"self_attn.{letter}_proj" for letter in "qkvo")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")


def recognise(book: Book, hints: Hints) -> Structure | None:
    """The map, or None when the names are not Llama's."""
    found = [match for name in book.shapes if (match := _LAYER.match(name))]
    if not found:
        return None
    prefix = found[0][1] or ""
    layers = [f"{prefix}layers.{n}" for n in sorted(int(match[2]) for match in found)]
    _require(book, prefix, layers)
    groups = [_mlp(book, layer) for layer in layers]
    pairs: list[Pair] = []
    notes: list[str] = []
    counts = _counts(book, hints, layers[0])
    if counts is None:
        notes.append("heads left alone: their number is not known, give it with heads")
    else:
        for layer in layers:
            groups += _heads(book, layer, *counts)
            pairs += _spaces(book, layer, *counts)
    group = _stream_group(book, prefix, layers)
    if not group.movable:
        notes.append("residual stream left alone: the layer that reads it is not in the file")
    stream, why = _stream(book, prefix, layers, group)
    notes += [why] if why else []
    structure = Structure("Llama", (*groups, group), tuple(pairs), stream, tuple(notes))
    also = [name for name in book.shapes if _FIXED.match(name)]
    also += [f"{x}.{part}.bias" for x in layers for part in _ATTENTION]
    return book.require_all(structure, also)


def _require(book: Book, prefix: str, layers: list[str]) -> None:
    wanted = [f"{x}.{part}.weight" for x in layers for part in (*_ATTENTION, *_MLP)]
    wanted += [f"{x}.{norm}" for x in layers for norm in _NORMS]
    wanted += [f"{prefix}embed_tokens.weight", f"{prefix}norm.weight"]
    missing = next((name for name in wanted if not book.has(name)), None)
    if missing is not None:
        raise UnknownFamilyError(
            f"the names are those of Llama, but {missing!r} is not there: another architecture, or"
            " only a part of the model"
        )


def _counts(book: Book, hints: Hints, layer: str) -> tuple[int, int, int] | None:
    """Key heads, query heads for each of them, and values per head."""
    queries, keys = (book.shapes[f"{layer}.self_attn.{c}_proj.weight"][0] for c in "qk")
    if not hints.heads or queries % hints.heads:
        return None
    size = queries // hints.heads
    if keys % size or hints.heads % (keys // size):
        return None
    return keys // size, hints.heads // (keys // size), size


def _mlp(book: Book, layer: str) -> Group:
    """The gate only moves along; between `up` and `down` all is linear."""
    size = book.shapes[f"{layer}.mlp.up_proj.weight"][0]
    return Group(
        f"{layer}.mlp",
        size,
        (Producer(tuple(book.maker(f"{layer}.mlp.up_proj"))),),
        (book.side(f"{layer}.mlp.down_proj.weight", 1),),
        tuple(book.maker(f"{layer}.mlp.gate_proj")),
        activation=LINEAR,
    )


def _heads(book: Book, layer: str, keys: int, share: int, size: int) -> list[Group]:
    """Key heads with all that read them, and the query heads of each among themselves."""
    q, k, v, o = (f"{layer}.{part}" for part in _ATTENTION)
    sides = [*book.maker(q, 0, share * size), *book.maker(k, 0, size), *book.maker(v, 0, size)]
    reads = book.side(f"{o}.weight", 1, share * size)
    whole = Group(f"{layer}.attn", keys, (Producer(tuple(sides)),), (reads,), kind=HEADS)
    groups = [whole] if keys > 1 else []
    for head in range(keys if share > 1 else 0):
        start = head * share * size
        made = Producer(tuple(book.maker(q, 0, size, start)))
        reads = book.side(f"{o}.weight", 1, size, start)
        groups.append(Group(f"{layer}.attn queries {head}", share, (made,), (reads,), kind=HEADS))
    return groups


def _spaces(book: Book, layer: str, keys: int, share: int, size: int) -> list[Pair]:
    """Values against outputs; queries and keys are bound by their rotary positions."""
    pairs = []
    for head in range(keys):
        made = book.maker(f"{layer}.self_attn.v_proj", 0, size, head * size)
        reads = [
            book.side(f"{layer}.self_attn.o_proj.weight", 1, size, query * size)
            for query in range(head * share, (head + 1) * share)
        ]
        pairs.append(Pair(f"{layer}.attn values {head}", size, tuple(made), tuple(reads)))
    return pairs


def _outputs(book: Book) -> list[str]:
    return [name for name in ("lm_head.weight", "score.weight") if book.has(name)]


def _stream_group(book: Book, prefix: str, layers: list[str]) -> Group:
    """The residual stream: RMSNorm does not mind the order of its channels."""
    embed = f"{prefix}embed_tokens.weight"
    writers = [book.side(embed, 1)]
    readers: list[Side] = []
    for layer in layers:
        writers += [*book.maker(f"{layer}.self_attn.o_proj"), *book.maker(f"{layer}.mlp.down_proj")]
        reading = (*_ATTENTION[:3], *_MLP[:2])
        readers += [book.side(f"{layer}.{part}.weight", 1) for part in reading]
    readers += [book.side(name, 1) for name in _outputs(book)]
    riders = [book.side(f"{layer}.{norm}", 0) for layer in layers for norm in _NORMS]
    riders.append(book.side(f"{prefix}norm.weight", 0))
    return Group(
        "residual stream",
        book.shapes[embed][1],
        (Producer(tuple(writers)),),
        tuple(readers),
        tuple(riders),
        kind=STREAM,
        movable=bool(prefix or _outputs(book)),
    )


def _stream(
    book: Book, prefix: str, layers: list[str], group: Group
) -> tuple[ResidualStream | None, str]:
    """What rotates with the stream, and the gains to fold; or why it cannot be rotated."""
    outputs = _outputs(book)
    tied = "lm_head.weight" in outputs and book.equal(
        "lm_head.weight", f"{prefix}embed_tokens.weight"
    )
    if not outputs or tied:
        return None, (
            "residual stream not to be rotated: the output layer is tied to the embeddings or not"
            " in the file, so the last norm's gains cannot be folded into it"
        )
    folds = []
    for layer in layers:
        for norm, parts in zip(_NORMS, (_ATTENTION[:3], _MLP[:2]), strict=True):
            reads = tuple(book.side(f"{layer}.{part}.weight", 1) for part in parts)
            folds.append((book.stored[f"{layer}.{norm}"], reads))
    last = tuple(book.side(name, 1) for name in outputs)
    folds.append((book.stored[f"{prefix}norm.weight"], last))
    return ResidualStream(
        group.size, (*group.producers[0].sides, *group.consumers), tuple(folds)
    ), ""
