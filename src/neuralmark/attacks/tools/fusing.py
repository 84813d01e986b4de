"""Conversions that put tensors together or take them apart: qkv, gate and up, shards, rotary order.

Which tensors belong together follows from their names, as the usual networks have them.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from neuralmark.attacks.contract import Array
from neuralmark.attacks.tools.converting import Conversion
from neuralmark.errors import AttackError

Kinds = Sequence[Sequence[str]]
"""Words in the names of tensors that belong together."""
Join = Callable[[Sequence[Array]], Array]

_TRIPLES = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("to_q", "to_k", "to_v"),
    ("wq", "wk", "wv"),
    ("q", "k", "v"),
)
_GATES = (("gate_proj", "up_proj"), ("w1", "w3"), ("wi_0", "wi_1"))
_FUSED = re.compile(r"(?P<stem>.*\b)(?P<part>c_attn|qkv|qkv_proj|query_key_value|in_proj)[._]")
_ROTARY = re.compile(r".*\b(q_proj|k_proj|wq|wk)\.(weight|bias)$")


def fuse_qkv(work: Conversion) -> dict[str, Array]:
    """Queries, then keys, then values, in one tensor."""
    return _fused(work, _TRIPLES, "qkv_proj", lambda parts: np.concatenate(parts))


def fuse_heads(work: Conversion) -> dict[str, Array]:
    """Queries, keys and values of one (group of) head(s) after the other, as Megatron has them."""
    heads = _heads(work)

    def interleaved(parts: Sequence[Array]) -> Array:
        size = len(parts[0]) // heads
        groups = len(parts[1]) // size
        cut = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
        return np.concatenate(cut, axis=1).reshape(-1, *parts[0].shape[1:])

    return _fused(work, _TRIPLES, "query_key_value", interleaved)


def fuse_gate_up(work: Conversion) -> dict[str, Array]:
    """Gates, then ups, in one tensor."""
    return _fused(work, _GATES, "gate_up_proj", lambda parts: np.concatenate(parts))


def fuse_up_gate(work: Conversion) -> dict[str, Array]:
    """Ups and gates in one tensor, row by row in turn."""

    def turns(parts: Sequence[Array]) -> Array:
        return np.stack(parts[::-1], axis=1).reshape(-1, *parts[0].shape[1:])

    return _fused(work, _GATES, "up_gate_proj", turns)


def split_qkv(work: Conversion) -> dict[str, Array]:
    """A fused tensor in three: queries, keys and values."""
    made: dict[str, Array] = {}
    for name, value in work.table.items():
        match = _FUSED.match(name)
        axis = 1 if match and match["part"] == "c_attn" and value.ndim == 2 else 0
        if match is None or value.shape[axis] % 3:
            made[name] = value
            continue
        for letter, part in zip("qkv", np.split(value, 3, axis=axis), strict=True):
            end = name[match.end() :]
            made[f"{match['stem']}{letter}_proj.{end}"] = np.ascontiguousarray(part)
    if made.keys() == work.table.keys():
        raise AttackError("the model has no fused queries, keys and values to take apart")
    return made


def shard_rows(work: Conversion) -> dict[str, Array]:
    """Targets cut into pieces along their outputs, as for parallel devices."""
    return _sharded(work, 0)


def shard_columns(work: Conversion) -> dict[str, Array]:
    """Targets cut into pieces along their inputs."""
    return _sharded(work, 1)


def rotary(work: Conversion) -> dict[str, Array]:
    """Rows of each rotary head from halves to pairs, as some runtimes want them."""
    heads = _heads(work)
    queries = [n for n in work.table if _ROTARY.match(n) and ("q_proj" in n or "wq" in n)]
    if not queries:
        raise AttackError("the model has no queries and keys of rotary heads under usual names")
    size = len(work.table[queries[0]]) // heads

    def change(name: str, value: Array) -> Array | None:
        if not _ROTARY.match(name):
            return None
        cut = value.reshape(-1, 2, size // 2, *value.shape[1:])
        return cut.swapaxes(1, 2).reshape(value.shape)

    return work.each(change)


def _heads(work: Conversion) -> int:
    if not work.heads:
        raise AttackError(
            "the number of attention heads is not known: give heads=..., or keep the model's"
            " config.json beside its weights"
        )
    queries = next((n for n in work.table if re.search(r"\b(q_proj|query|wq|to_q)\b", n)), None)
    if queries is not None and len(work.table[queries]) % (2 * work.heads):
        raise AttackError(f"{queries!r} has no {work.heads} heads of an even size")
    return work.heads


def _fused(
    work: Conversion,
    kinds: Sequence[Sequence[str]],
    to: str,
    join: Callable[[Sequence[Array]], Array],
) -> dict[str, Array]:
    made = dict(work.table)
    for names, stem, end in _together(work, kinds):
        made[f"{stem}{to}{end}"] = join([made.pop(name) for name in names])
    if made.keys() == work.table.keys():
        wanted = " or ".join(", ".join(kind) for kind in kinds[:2])
        raise AttackError(f"the model has no tensors to fuse under the usual names ({wanted})")
    return made


def _together(work: Conversion, kinds: Kinds) -> Iterator[tuple[list[str], str, str]]:
    """Tensors whose names differ in one part only, and what is common to them."""
    for name in work.table:
        parts = name.split(".")
        for kind in kinds:
            if kind[0] not in parts[:-1]:
                continue
            at = len(parts) - 2 - parts[-2::-1].index(kind[0])
            names = [".".join((*parts[:at], word, *parts[at + 1 :])) for word in kind]
            widths = {work.table[n].shape[1:] for n in names if n in work.table}
            if all(n in work.table for n in names) and len(widths) == 1:
                stem = "".join(f"{part}." for part in parts[:at])
                yield names, stem, "".join(f".{part}" for part in parts[at + 1 :])


def _sharded(work: Conversion, axis: int) -> dict[str, Array]:
    made: dict[str, Array] = {}
    for name, value in work.table.items():
        if name in work.target and value.ndim > 1 and value.shape[axis] >= 2 * work.pieces:
            for number, part in enumerate(np.array_split(value, work.pieces, axis=axis)):
                made[f"rank{number}.{name}"] = np.ascontiguousarray(part)
        else:
            made[name] = value
    if made.keys() == work.table.keys():
        raise AttackError(f"no tensor is long enough to be cut into {work.pieces} pieces")
    return made
