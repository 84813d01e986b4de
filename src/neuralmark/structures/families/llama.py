"""Llama and its like (RMSNorm, gated MLP, grouped-query attention) as transformers names them.

Mistral has the same names; Qwen 2 adds biases of queries, keys and values, Qwen 3 norms inside the
heads, Gemma 2 and 3 norms behind attention and MLP. Heads are not to be seen from shapes: they come
from the live model's configuration or from the caller. Without them the MLP and the residual
stream are still known. Gemma stores its norms' gains less 1, which only a live model tells; its
output layer is tied to the embeddings, so that nothing is folded where it is not known.
"""

import re
from dataclasses import replace

from neuralmark.errors import UnknownFamilyError
from neuralmark.structures.attention import UNKNOWN, heads_of, separate, spaces_of, tensors_of
from neuralmark.structures.book import Book, Hints
from neuralmark.structures.structure import (
    LINEAR,
    STREAM,
    Attention,
    Fold,
    Group,
    Producer,
    ResidualStream,
    Side,
    Structure,
    Vocabulary,
)

_LAYER = re.compile(r"(model\.)?layers\.(\d+)\.self_attn\.q_proj\.weight$")
_FIXED = re.compile(r".*(rotary_emb\.inv_freq|self_attn\.[qk]_norm\.weight)$")
_ATTENTION = tuple(f"self_attn.{letter}_proj" for letter in "qkvo")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_FIRST, _SECOND = "input_layernorm.weight", "post_attention_layernorm.weight"
_BEFORE, _BEHIND = "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"


def recognise(book: Book, hints: Hints) -> Structure | None:
    """The map, or None when the names are not Llama's."""
    found = [match for name in book.shapes if (match := _LAYER.match(name))]
    if not found:
        return None
    prefix = found[0][1] or ""
    layers = [f"{prefix}layers.{n}" for n in sorted(int(match[2]) for match in found)]
    _require(book, prefix, layers)
    attentions = tuple(_attention(book, layer, hints) for layer in layers)
    notes = [] if attentions[0].size else [UNKNOWN]
    group = _stream_group(book, prefix, layers)
    if not group.movable:
        notes.append("residual stream left alone: the layer that reads it is not in the file")
    gains = _gains(book, prefix, layers)
    why = _obstacle(book, prefix, layers)
    notes += [f"residual stream not to be rotated: {why}"] if why else []
    sides = (*group.producers[0].sides, *group.consumers)
    structure = Structure(
        "Gemma" if _behind(book, layers[0]) else "Llama",
        (*(_mlp(book, layer) for layer in layers), *heads_of(attentions), group),
        tuple(spaces_of(attentions)),
        None if why else ResidualStream(group.size, sides, gains, hints.plus),
        tuple(notes),
        _vocabulary(book, prefix),
        attentions,
        gains,
    )
    also = [name for name in book.shapes if _FIXED.match(name)]
    return book.require_all(structure, also + tensors_of(book, attentions))


def _behind(book: Book, layer: str) -> bool:
    """Whether norms lie behind attention and MLP as well (Gemma 2 and 3)."""
    return book.has(f"{layer}.{_BEFORE}")


def _norms(book: Book, layer: str) -> tuple[str, str]:
    """The norms whose outputs attention and MLP read."""
    return (_FIRST, _BEFORE) if _behind(book, layer) else (_FIRST, _SECOND)


def _require(book: Book, prefix: str, layers: list[str]) -> None:
    wanted = [f"{x}.{part}.weight" for x in layers for part in (*_ATTENTION, *_MLP)]
    wanted += [f"{x}.{norm}" for x in layers for norm in (_FIRST, _SECOND)]
    wanted += [f"{x}.{norm}" for x in layers if _behind(book, x) for norm in (_BEFORE, _BEHIND)]
    wanted += [f"{prefix}embed_tokens.weight", f"{prefix}norm.weight"]
    missing = next((name for name in wanted if not book.has(name)), None)
    if missing is not None:
        raise UnknownFamilyError(
            f"the names are those of Llama, but {missing!r} is not there: another architecture, or"
            " only a part of the model"
        )


def _attention(book: Book, layer: str, hints: Hints) -> Attention:
    """Rotary and grouped; norms inside the heads (Qwen 3, Gemma 3) tell how large these are."""
    parts = [f"{layer}.{part}" for part in _ATTENTION]
    norm = f"{layer}.self_attn.q_norm.weight"
    queries = book.shapes[f"{parts[0]}.weight"][0]
    if not book.has(norm):
        return separate(book, f"{layer}.attn", parts, hints.heads, rotary=True)
    size = book.shapes[norm][0]
    found = separate(book, f"{layer}.attn", parts, queries // max(size, 1), rotary=True)
    if found.size != size or size == queries:  # a norm of all heads together
        raise UnknownFamilyError(
            f"the names are those of Llama, but {norm!r} is no norm of single heads: another"
            " architecture"
        )
    return replace(found, normed=True)


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


def _outputs(book: Book) -> list[str]:
    return [name for name in ("lm_head.weight", "score.weight") if book.has(name)]


def _stream_group(book: Book, prefix: str, layers: list[str]) -> Group:
    """The residual stream: RMSNorm does not mind the order of its channels."""
    embed = f"{prefix}embed_tokens.weight"
    writers = [book.side(embed, 1)]
    readers: list[Side] = []
    riders: list[Side] = []
    for layer in layers:
        writers += [*book.maker(f"{layer}.self_attn.o_proj"), *book.maker(f"{layer}.mlp.down_proj")]
        reading = (*_ATTENTION[:3], *_MLP[:2])
        readers += [book.side(f"{layer}.{part}.weight", 1) for part in reading]
        norms = (_FIRST, _SECOND, _BEFORE, _BEHIND)
        riders += [book.side(f"{layer}.{x}", 0) for x in norms if book.has(f"{layer}.{x}")]
    readers += [book.side(name, 1) for name in _outputs(book)]
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


def _gains(book: Book, prefix: str, layers: list[str]) -> tuple[Fold, ...]:
    """The norms' gains, and what reads behind each."""
    folds: list[Fold] = []
    for layer in layers:
        for norm, parts in zip(_norms(book, layer), (_ATTENTION[:3], _MLP[:2]), strict=True):
            reads = tuple(book.side(f"{layer}.{part}.weight", 1) for part in parts)
            folds.append((book.stored[f"{layer}.{norm}"], reads))
    last = tuple(book.side(name, 1) for name in _outputs(book))
    return (*folds, (book.stored[f"{prefix}norm.weight"], last))


def _obstacle(book: Book, prefix: str, layers: list[str]) -> str:
    """Why the stream cannot be rotated; empty where it can."""
    outputs = _outputs(book)
    tied = "lm_head.weight" in outputs and book.equal(
        "lm_head.weight", f"{prefix}embed_tokens.weight"
    )
    if not outputs or tied:
        return (
            "the output layer is tied to the embeddings or not in the file, so the last norm's"
            " gains cannot be folded into it"
        )
    if _behind(book, layers[0]):
        return "norms behind the layers have gains that cannot be folded into anything"
    return ""


def _vocabulary(book: Book, prefix: str) -> Vocabulary:
    """Tokens: the embeddings, and the output layer where there is one."""
    scores = book.maker("lm_head") if book.has("lm_head.weight") else []
    size = book.shapes[f"{prefix}embed_tokens.weight"][0]
    return Vocabulary(size, (book.side(f"{prefix}embed_tokens.weight", 0),), tuple(scores))
