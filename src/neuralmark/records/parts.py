"""What claims and verdicts are made of: digests, placements, anchors, tensors, gaps, coverage."""

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from neuralmark.core.key import DIGEST_BYTES, Placement

TensorMapping = Literal["names", "prefix", "search", "anchor"]
"""How the marked tensors were found: by name, under one common prefix, by trying all, or by their
likeness to the anchor."""
MAPPINGS: tuple[TensorMapping, ...] = get_args(TensorMapping)

Orientation = Literal["stored", "transposed"]
ORIENTATIONS: tuple[Orientation, ...] = get_args(Orientation)

Scaling = Literal["stored", "rows"]
"""Whether rows were read as they are, or each divided by its size."""
SCALINGS: tuple[Scaling, ...] = get_args(Scaling)


@dataclass(frozen=True)
class Digest:
    """SHA-256 of a checkpoint's headers, of the tensors read, and of whole files on request."""

    headers: str
    tensors: dict[str, str]
    files: dict[str, str] | None = None
    algorithm: str = "sha256"


ANCHOR_DIGEST = TRIGGER_DIGEST = re.compile(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}")
_MOST_BITS, _MOST_HEADS = 8, 1024


@dataclass(frozen=True)
class ClaimedAnchor:
    """The anchor that a mark is bound to, and what it takes to make it again of the original."""

    digest: str
    """64 bytes, in hexadecimal digits."""
    bits: int
    """Bits of a weight in the coarse copy."""
    heads: int = 0
    """Attention heads that it was made for; 0 where they were not known."""

    def __post_init__(self) -> None:
        """Refuse what no anchor can be."""
        if not isinstance(self.digest, str) or not ANCHOR_DIGEST.fullmatch(self.digest):
            raise ValueError("the digest of an anchor is none")
        if type(self.bits) is not int or not 2 <= self.bits <= _MOST_BITS:
            raise ValueError("an anchor has 2 to 8 bits per weight")
        if type(self.heads) is not int or not 0 <= self.heads <= _MOST_HEADS:
            raise ValueError("an anchor of an impossible number of heads")

    @property
    def bytes(self) -> bytes:
        """The digest as the derivation takes it."""
        return bytes.fromhex(self.digest)


@dataclass(frozen=True)
class TensorRead:
    """A tensor that was read for a verdict."""

    name: str
    stored_name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Gap:
    """A tensor that the key was derived for and that was not read: zeros stand in its place."""

    name: str
    weights: int
    why: str
    stored: bool = False
    """Whether it is in the model, but in a form that cannot be read."""


@dataclass(frozen=True)
class Coverage:
    """How many weights a verdict rests on."""

    in_model: int
    """Weights of the whole model, as far as its headers tell."""
    looked_at: int
    """Those of them that some way of looking read."""
    wanted: int
    """Weights that were to be read: of the tensors named or claimed, or of the whole model."""
    unreadable: int = 0
    """Those of them that are there, but in a form that cannot be read."""
    why: str = ""
    """What that form is."""

    @property
    def share(self) -> float:
        """Share of the model's weights that was looked at."""
        return self.looked_at / self.in_model if self.in_model else 0.0

    @property
    def unreadable_share(self) -> float:
        """Share of what was to be read that could not be."""
        return self.unreadable / self.wanted if self.wanted else 0.0


@dataclass(frozen=True)
class Histogram:
    """Counts of bits by margin, apart for those that match and those that do not."""

    edges: tuple[float, ...]
    matched: tuple[int, ...]
    missed: tuple[int, ...]


def placement_list(placement: Placement) -> list[list[Any]]:
    """A placement as JSON has it."""
    return [[name, list(shape)] for name, shape in placement]


def placement_from(value: Any) -> Placement:
    """A placement from parsed JSON; raises on anything else."""
    if not isinstance(value, list):
        raise ValueError("placement is not a list")
    if not value:
        raise ValueError("placement is empty, and a mark lies in at least one tensor")
    for name, shape in value:
        text(name)
        if not isinstance(shape, list) or not all(type(x) is int and x >= 0 for x in shape):
            raise ValueError("placement has a bad shape")
    if len({name for name, _ in value}) != len(value):
        raise ValueError("placement names a tensor twice")
    return tuple((name, tuple(shape)) for name, shape in value)


def triggers_from(value: Any) -> str | None:
    """The digest of triggers from parsed JSON, or None; raises on anything else."""
    if value is None:
        return None
    if not isinstance(value, str) or not TRIGGER_DIGEST.fullmatch(value):
        raise ValueError("the digest of the triggers is none")
    return value


def digest_from(value: Any) -> Digest:
    """A digest from parsed JSON; raises on anything else."""
    digest = Digest(**value)
    if digest.algorithm != "sha256":
        raise ValueError("a digest of an unknown algorithm")
    for table in (digest.tensors, {} if digest.files is None else digest.files):
        if not isinstance(table, dict) or not all(isinstance(x, str) for x in table.values()):
            raise TypeError("a digest must map names to digests")
    text(digest.headers)
    return digest


def anchor_from(value: Any) -> ClaimedAnchor | None:
    """An anchor from parsed JSON, or None for null; raises on anything else."""
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) != {"bits", "digest", "heads"}:
        raise ValueError("anchor must have bits, digest and heads, and nothing else")
    return ClaimedAnchor(**value)


def text(value: Any) -> str:
    """Text as files can hold it; raises on anything else."""
    if not isinstance(value, str):
        raise TypeError("expected text")
    value.encode("utf-8")  # half of a character is refused
    return value
