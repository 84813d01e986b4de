"""The anchor of a claim, from whatever its owner kept: the anchor's file, or the original model."""

from pathlib import Path

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import Progress, anchor_from_original
from neuralmark.anchors.chunks import is_sealed
from neuralmark.anchors.sealed import load_anchor
from neuralmark.errors import AnchorMismatchError
from neuralmark.keys.key import Key
from neuralmark.records import Claim


def open_anchor(
    path: str | Path, key: Key, claim: Claim, progress: Progress | None = None
) -> Anchor:
    """Open a file by its first bytes; an anchor that is not the claim's is an error."""
    if not is_sealed(Path(path)):
        return anchor_from_original(path, claim, progress)
    anchor = load_anchor(path, key)
    if claim.anchor is None or anchor.digest != claim.anchor.bytes:
        raise AnchorMismatchError(
            f"{path}: is not the anchor of this claim; give the one that was written with it"
        )
    if anchor.placement != claim.placement:
        raise AnchorMismatchError(f"{path}: is the anchor of other tensors than the claim names")
    return anchor
