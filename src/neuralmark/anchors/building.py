"""The anchor of a model: coarse copies of what is to be marked and of its partners, in one pass."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neuralmark.anchors import coarse
from neuralmark.anchors.anchor import PARTNER, Anchor, AnchorEntry
from neuralmark.anchors.choosing import chosen_entries, skeleton_of
from neuralmark.anchors.header import AnchorHeader
from neuralmark.anchors.heads import check_heads
from neuralmark.anchors.originals import Original, OriginalCheckpoint, OriginalTensor, Piece
from neuralmark.anchors.payload import Sink, read_payload, write_payload
from neuralmark.checkpoints import open_checkpoint
from neuralmark.core.key import Placement
from neuralmark.errors import (
    AnchorError,
    AnchorMismatchError,
    NonFiniteError,
    UnknownTensorError,
    UnsuitableTensorError,
)
from neuralmark.records import Claim
from neuralmark.structures.structure import Array, Indices

Progress = Callable[[str, int, int], None]
"""Called with what is being done, bytes done (of float32), bytes in all."""

NO_ANCHOR = "the claim names no anchor: its mark is read by position only; leave the anchor out"


@dataclass(frozen=True)
class AnchorRecipe:
    """What an anchor is made for: the marked tensors, the heads of the model, bits per weight."""

    placement: Placement
    heads: int = 0
    bits: int = coarse.USUAL_BITS

    def __post_init__(self) -> None:
        """Refuse what no anchor can have."""
        coarse.check_bits(self.bits)
        check_heads(self.heads)


def build(
    original: Original,
    recipe: AnchorRecipe,
    sink: Sink | None = None,
    progress: Progress | None = None,
) -> Anchor:
    """Make the anchor of a model; its payloads go to `sink` as they are made.

    Memory is a few megabytes, the scales of one tensor and the coarse copy of one partner, whatever
    the size of the model. What is asked of the anchor later is coarsened again from the original,
    which must not have changed.
    """
    known = {tensor.name: tensor for tensor in original.tensors()}
    skeleton = skeleton_of(original, known, recipe.heads)
    chosen = chosen_entries(known, skeleton, recipe.placement)
    made, done = [], 0
    size = sum(math.prod(entry.kept_shape) for entry in chosen)
    for entry in chosen:
        kept = _kept(original, known[entry.name], entry, recipe.bits, sink)
        made += [] if kept is None else [kept]
        done += math.prod(entry.kept_shape)
        if progress is not None:
            progress("making the anchor", 4 * done, 4 * size)
    header = AnchorHeader(tuple(made), skeleton, recipe.bits)

    def decode(entry: AnchorEntry, rows: Indices | None) -> Array:
        whole = _coarse(original, known[entry.name], entry, recipe.bits)
        return whole if rows is None else whole[rows]

    return Anchor(header.entries, skeleton, header.digest, decode, recipe.bits)


def anchor_from_original(
    model: str | Path, claim: Claim, progress: Progress | None = None
) -> Anchor:
    """The anchor of a claim, made again of the unmarked original; an error if it is another one."""
    if claim.anchor is None:
        raise AnchorMismatchError(NO_ANCHOR)
    recipe = AnchorRecipe(claim.placement, claim.anchor.heads, claim.anchor.bits)
    try:
        found = build(OriginalCheckpoint(open_checkpoint(model)), recipe, None, progress)
    except (UnknownTensorError, UnsuitableTensorError, NonFiniteError) as error:
        raise AnchorMismatchError(f"{model}: is not the original of the claim ({error})") from None
    if found.digest != claim.anchor.bytes:
        raise AnchorMismatchError(
            f"{model}: is not the original of the claim: its coarse copy has another digest; give"
            " the model as it was before marking (where a later release was marked with the anchor"
            " of the first, that of the first), or the anchor file"
        )
    return found


def _kept(
    original: Original, tensor: OriginalTensor, entry: AnchorEntry, bits: int, sink: Sink | None
) -> AnchorEntry | None:
    """One tensor's payload to the sink; None where a partner cannot be kept."""
    held: list[bytes] = []
    later = entry.role == PARTNER and sink is not None
    try:
        pieces = _rows(original.pieces(tensor.stored), entry)
        made = write_payload(entry, bits, pieces, held.append if later else sink or len)
    except NonFiniteError:
        if entry.role == PARTNER:
            return None
        raise NonFiniteError(
            f"{entry.name!r} holds NaN or infinity (or what float32 cannot hold); repair it before"
            " marking",
            tensor.stored,
        ) from None
    for part in held:
        assert sink is not None
        sink(part)
    return made


def _coarse(original: Original, tensor: OriginalTensor, entry: AnchorEntry, bits: int) -> Array:
    parts: list[bytes] = []
    pieces = _rows(original.pieces(tensor.stored), entry)
    if write_payload(entry, bits, pieces, parts.append).sha512 != entry.sha512:
        raise AnchorError(f"the coarse copy of {entry.name[:80]!r} is not the one that was kept")
    whole = b"".join(parts)
    return read_payload(entry, bits, lambda at, count: whole[at : at + count])


def _rows(pieces: Iterator[Piece], entry: AnchorEntry) -> Iterator[Piece]:
    """Only the kept rows of a tensor that comes in pieces."""
    if entry.rows is None:
        yield from pieces
        return
    length = math.prod(entry.shape[1:])
    starts = entry.kept_rows * length
    at = 0
    for piece in pieces:
        first, last = np.searchsorted(starts, [at - length + 1, at + len(piece)])
        for start in starts[first:last]:
            yield piece[max(start - at, 0) : max(start + length - at, 0)]
        at += len(piece)
