"""Vision transformers: ViT and DeiT as transformers names them, torchvision's and timm's ViT.

Heads are not to be seen from shapes: they come from the live model's configuration, from the
caller, or from the width, where it is one of the usual ones (64 values per head).
"""

import re
from dataclasses import dataclass

from neuralmark.errors import UnknownFamilyError
from neuralmark.structures.attention import (
    UNKNOWN,
    fused,
    heads_of,
    separate,
    spaces_of,
    tensors_of,
)
from neuralmark.structures.book import Book, Hints
from neuralmark.structures.structure import (
    STREAM,
    Attention,
    Fold,
    Group,
    Producer,
    Side,
    Structure,
)

_WIDTHS = (192, 384, 768, 1024)
_ENDS = ("weight", "bias")


@dataclass(frozen=True)
class _Names:
    """How one library names the parts; {0} is the prefix of the whole model."""

    layer: re.Pattern[str]
    patches: str
    tokens: tuple[str, ...]
    """[1, count, width] each: positions first, then tokens that are added."""
    last: str
    heads: tuple[str, ...]
    attention: tuple[str, ...]
    """Queries, keys, values; or weight and bias of all three."""
    output: str
    mlp: tuple[str, str]
    norms: tuple[str, str]

    def attend(self, book: Book, layer: str, heads: int) -> Attention:
        """The attention of one layer."""
        parts = [f"{layer}.{part}" for part in (*self.attention, self.output)]
        if len(self.attention) == 3:
            return separate(book, f"{layer}.attention", parts, heads)
        names = (parts[0], parts[1], f"{parts[2]}.weight")
        return fused(book, f"{layer}.attention", names, heads, axis=0)

    def reading(self, layer: str) -> list[str]:
        """The tensors with which attention reads the stream."""
        if len(self.attention) == 3:
            return [f"{layer}.{part}.weight" for part in self.attention]
        return [f"{layer}.{self.attention[0]}"]


_TRANSFORMERS = _Names(
    re.compile(
        r"(?P<layer>(?P<prefix>\w+\.)?encoder\.layer\.(\d+))\.attention\.attention\.query\.w"
    ),
    "embeddings.patch_embeddings.projection",
    tuple(
        f"embeddings.{x}"
        for x in ("position_embeddings", "cls_token", "distillation_token", "mask_token")
    ),
    "layernorm",
    ("classifier", "cls_classifier", "distillation_classifier", "pooler.dense", "decoder.0"),
    tuple(f"attention.attention.{part}" for part in ("query", "key", "value")),
    "attention.output.dense",
    ("intermediate.dense", "output.dense"),
    ("layernorm_before", "layernorm_after"),
)
_TORCHVISION = _Names(
    re.compile(
        r"(?P<layer>(?P<prefix>)encoder\.layers\.encoder_layer_(\d+))\.self_attention\.in_pr"
    ),
    "conv_proj",
    ("encoder.pos_embedding", "class_token"),
    "encoder.ln",
    ("heads.head", "heads.0"),
    ("self_attention.in_proj_weight", "self_attention.in_proj_bias"),
    "self_attention.out_proj",
    ("mlp.0", "mlp.3"),
    ("ln_1", "ln_2"),
)
_TIMM = _Names(
    re.compile(r"(?P<layer>(?P<prefix>)blocks\.(\d+))\.attn\.qkv\.weight$"),
    "patch_embed.proj",
    ("pos_embed", "cls_token", "dist_token", "reg_token"),
    "norm",
    ("head", "head_dist"),
    ("attn.qkv.weight", "attn.qkv.bias"),
    "attn.proj",
    ("mlp.fc1", "mlp.fc2"),
    ("norm1", "norm2"),
)


def recognise(book: Book, hints: Hints) -> Structure | None:
    """The map, or None when the names are not a vision transformer's."""
    for names in (_TRANSFORMERS, _TORCHVISION, _TIMM):
        found = {m["layer"]: m for name in book.shapes if (m := names.layer.match(name))}
        if found:
            layers = sorted(found, key=lambda layer: int(found[layer][3]))
            return _walk(book, hints, names, layers, found[layers[0]]["prefix"] or "")
    return None


def _walk(book: Book, hints: Hints, names: _Names, layers: list[str], prefix: str) -> Structure:
    _require(book, names, layers, prefix)
    width = book.shapes[f"{prefix}{names.patches}.weight"][0]
    heads = hints.heads or (width // 64 if width in _WIDTHS else 0)
    attentions = tuple(names.attend(book, layer, heads) for layer in layers)
    outputs = [x for x in _readers(names, prefix) if book.has(f"{x}.weight")]
    stream = _stream(book, names, layers, prefix, width, outputs)
    notes = [] if attentions[0].size else [UNKNOWN]
    if not stream.movable:
        notes.append("residual stream left alone: the layer that reads it is not in the file")
    structure = Structure(
        "ViT",
        (*(_mlp(book, names, x) for x in layers), *heads_of(attentions), stream),
        tuple(spaces_of(attentions)),
        notes=tuple(notes),
        attentions=attentions,
        gains=_gains(book, names, layers, prefix, outputs),
    )
    also = [f"{output}.bias" for output in outputs]
    return book.require_all(structure, also + tensors_of(book, attentions))


def _readers(names: _Names, prefix: str) -> list[str]:
    """Layers that may read the stream last: inside the model, or on top of it."""
    return [f"{prefix}{x}" for x in names.heads] + (list(names.heads) if prefix else [])


def _require(book: Book, names: _Names, layers: list[str], prefix: str) -> None:
    made = [f"{prefix}{names.patches}", f"{prefix}{names.last}"]
    parts = (*names.mlp, *names.norms, names.output)
    made += [f"{layer}.{part}" for layer in layers for part in parts]
    wanted = [f"{part}.{end}" for part in made for end in _ENDS]
    wanted += [name for layer in layers for name in names.reading(layer)]
    wanted.append(f"{prefix}{names.tokens[0]}")
    missing = next((name for name in wanted if not book.has(name)), None)
    if missing is not None:
        raise UnknownFamilyError(
            f"the names are those of a vision transformer, but {missing!r} is not there: another"
            " architecture, or only a part of the model"
        )


def _mlp(book: Book, names: _Names, layer: str) -> Group:
    first, second = (f"{layer}.{part}" for part in names.mlp)
    size = book.shapes[f"{first}.weight"][0]
    made = Producer(tuple(book.maker(first)))
    return Group(f"{layer}.mlp", size, (made,), (book.side(f"{second}.weight", 1),))


def _stream(
    book: Book, names: _Names, layers: list[str], prefix: str, width: int, outputs: list[str]
) -> Group:
    tokens = [f"{prefix}{x}" for x in names.tokens if book.has(f"{prefix}{x}")]
    writers = [*book.maker(f"{prefix}{names.patches}"), *(book.side(x, 2) for x in tokens)]
    readers: list[Side] = []
    riders = book.maker(f"{prefix}{names.last}")
    for layer in layers:
        for part in (names.output, names.mlp[1]):
            writers += book.maker(f"{layer}.{part}")
        first = f"{layer}.{names.mlp[0]}.weight"
        readers += [book.side(name, 1) for name in (*names.reading(layer), first)]
        for norm in names.norms:
            riders += book.maker(f"{layer}.{norm}")
    readers += [book.side(f"{name}.weight", 1) for name in outputs]
    return Group(
        "residual stream",
        width,
        (Producer(tuple(writers)),),
        tuple(readers),
        tuple(riders),
        kind=STREAM,
        movable=any("pooler" not in name for name in outputs),
    )


def _gains(
    book: Book, names: _Names, layers: list[str], prefix: str, outputs: list[str]
) -> tuple[Fold, ...]:
    def fold(norm: str, readers: list[str]) -> Fold:
        return book.stored[f"{norm}.weight"], tuple(book.side(x, 1) for x in readers)

    folds = []
    for layer in layers:
        folds.append(fold(f"{layer}.{names.norms[0]}", names.reading(layer)))
        folds.append(fold(f"{layer}.{names.norms[1]}", [f"{layer}.{names.mlp[0]}.weight"]))
    folds.append(fold(f"{prefix}{names.last}", [f"{name}.weight" for name in outputs]))
    return tuple(folds)
