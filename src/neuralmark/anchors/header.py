"""The header of an anchor: all of it that is not payload, as canonical JSON; and the digest.

The header holds the SHA-512 of every payload, so the digest of the header is one of the whole
anchor, whatever it is sealed under.
"""

import hashlib
import math
import re
from dataclasses import dataclass
from typing import Any

from neuralmark.anchors import coarse
from neuralmark.anchors.anchor import ALIGNER_VERSION, MARKED, ROLES, AnchorEntry, Skeleton
from neuralmark.core.encoding import canonical_json, enc, strict_json
from neuralmark.errors import AnchorError, NeuralMarkError

MAX_HEADER = 32 << 20
"""Bytes; a model of a hundred thousand tensors needs fewer."""
MAX_HEADS = 1024

_MAX_MEMBERS = 2_000_000
_MAX_DIMENSIONS = 16
_MAX_AXIS = 1 << 40
_MAX_WEIGHTS = 1 << 48
_HEX = re.compile("[0-9a-f]{128}")
_MEMBERS = {"aligner", "bits", "entries", "heads", "tensors", "tied"}
_ENTRY = {"name", "role", "rows", "sha512", "wide"}


@dataclass(frozen=True)
class AnchorHeader:
    """What an anchor holds beside its payloads."""

    entries: tuple[AnchorEntry, ...]
    skeleton: Skeleton
    bits: int = coarse.USUAL_BITS

    def to_bytes(self) -> bytes:
        """As it stands in the file and under the digest."""
        skeleton = self.skeleton
        data = canonical_json(
            {
                "aligner": skeleton.aligner,
                "bits": self.bits,
                "heads": skeleton.heads,
                "tensors": [[name, list(shape)] for name, shape in skeleton.shapes],
                "tied": [list(pair) for pair in skeleton.tied],
                "entries": [
                    {
                        "name": entry.name,
                        "role": entry.role,
                        "rows": entry.rows,
                        "sha512": entry.sha512,
                        "wide": entry.wide,
                    }
                    for entry in self.entries
                ],
            }
        )
        if len(data) > MAX_HEADER or data.count(b",") > _MAX_MEMBERS:
            raise AnchorError(
                f"the model has too many tensors for an anchor ({len(skeleton.shapes):,}): mark it"
                " without one (anchor=False)"
            )
        return data

    @property
    def digest(self) -> bytes:
        """64 bytes that stand for the whole anchor."""
        return hashlib.sha512(b"neuralmark/anchor/1" + enc(self.to_bytes())).digest()


def header_from(data: bytes) -> AnchorHeader:
    """Read back what `to_bytes` gave; anything else is an error."""
    if len(data) > MAX_HEADER or data.count(b",") > _MAX_MEMBERS:
        raise AnchorError("the anchor's list of tensors is longer than one may be")
    try:
        header = _header(strict_json(data))
        if header.to_bytes() != data:
            raise ValueError("it is not written in the one way it can be")
        return header
    except (ValueError, TypeError, KeyError, RecursionError, NeuralMarkError) as error:
        if isinstance(error, AnchorError):
            raise
        said = " ".join(str(error).split())[:200]
        raise AnchorError(f"the anchor is damaged ({said})") from None


def _header(data: Any) -> AnchorHeader:
    _members(data, _MEMBERS)
    if _count(data["aligner"]) != ALIGNER_VERSION:
        raise AnchorError(
            f"the anchor was made for version {data['aligner']} of the aligner, and this is version"
            f" {ALIGNER_VERSION}: use the release of NeuralMark that made it"
        )
    shapes = _shapes(data["tensors"])
    heads = _count(data["heads"])
    if heads > MAX_HEADS:
        raise ValueError(f"{heads} attention heads are more than any model has")
    tied = tuple(_pair(pair, shapes) for pair in _list(data["tied"]))
    skeleton = Skeleton(tuple(shapes.items()), heads, tied, data["aligner"])
    if not skeleton.heads_fit:
        raise ValueError(f"{heads} attention heads do not fit the shapes of its tensors")
    entries = tuple(_entry(each, shapes) for each in _list(data["entries"]))
    names = [entry.name for entry in entries]
    if len(set(names)) != len(names):
        raise ValueError("it names a tensor twice")
    if not any(entry.role == MARKED for entry in entries):
        raise ValueError("no tensor of it is marked")
    return AnchorHeader(entries, skeleton, coarse.check_bits(data["bits"]))


def _shapes(value: Any) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in _list(value):
        if _text(name) in shapes:
            raise ValueError("it names a tensor twice")
        lengths = tuple(_count(length) for length in _list(shape))
        large = any(length > _MAX_AXIS for length in lengths) or math.prod(lengths) > _MAX_WEIGHTS
        if len(lengths) > _MAX_DIMENSIONS or large:
            raise ValueError("a shape is larger than any tensor's")
        shapes[name] = lengths
    return shapes


def _pair(value: Any, shapes: dict[str, tuple[int, ...]]) -> tuple[str, str]:
    one, two = _list(value)
    if shapes[_text(one)] != shapes[_text(two)]:
        raise ValueError("tied tensors have different shapes")
    return one, two


def _entry(value: Any, shapes: dict[str, tuple[int, ...]]) -> AnchorEntry:
    _members(value, _ENTRY)
    role, rows, digest = value["role"], value["rows"], value["sha512"]
    shape = shapes[_text(value["name"])]
    if role not in ROLES or not isinstance(value["wide"], bool):
        raise ValueError("an entry is neither of a marked tensor nor of a partner")
    if rows is not None and (not shape or not 0 < _count(rows) < shape[0] or role == MARKED):
        raise ValueError("an entry keeps more rows than there are")
    if not _HEX.fullmatch(_text(digest)):
        raise ValueError("a digest is none")
    return AnchorEntry(value["name"], shape, role, rows, value["wide"], digest)


def _members(value: Any, names: set[str]) -> None:
    if not isinstance(value, dict) or set(value) != names:
        raise ValueError(f"it must have {', '.join(sorted(names))}, and nothing else")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("a list is none")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is not text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("a count is none")
    return value
