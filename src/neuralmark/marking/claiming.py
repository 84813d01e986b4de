"""The claim of a marked model: what it says, and how a lost one is made again."""

from collections.abc import Sequence
from pathlib import Path

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.sealed import load_anchor
from neuralmark.checkpoints import place_of
from neuralmark.core.key import Placement
from neuralmark.keys.key import Key
from neuralmark.marking.beside import anchor_beside, claim_beside
from neuralmark.marking.options import VerifyOptions
from neuralmark.marking.placement import listed
from neuralmark.marking.verification import verify
from neuralmark.records import Claim, ClaimedAnchor, Digest, Verdict
from neuralmark.storage.places import local


def claim_of(
    key: Key,
    placement: Placement,
    marked: Digest,
    source: Digest | None,
    anchor: ClaimedAnchor | None = None,
    triggers: bytes = b"",
) -> Claim:
    """What is recorded of a mark: whose it is, where it lies, what it was put into."""
    return Claim(
        key.fingerprint,
        key.commitment,
        key.parameters,
        placement,
        marked,
        source,
        anchor=anchor,
        triggers=triggers.hex() or None,
    )


def claimed_anchor(anchor: Anchor) -> ClaimedAnchor:
    """What a claim says of an anchor."""
    return ClaimedAnchor(anchor.digest.hex(), anchor.bits, anchor.skeleton.heads)


def rebuild_claim(
    model: str | Path,
    key: Key,
    *,
    tensors: Sequence[str] | str | None = None,
    anchor: str | Path | None = None,
) -> tuple[Verdict, Claim | None]:
    """The claim of a marked model whose claim was lost.

    A mark that is bound to an anchor is found with that anchor only; one beside the model is taken.

    Args:
        model: Path of the marked checkpoint.
        key: The key it was marked with.
        tensors: Names of the marked tensors, if they were named by hand and there is no anchor.
        anchor: The anchor file, where it is not beside the model.

    Returns:
        The verdict, and the claim or None when the mark is not found.

    Raises:
        InputError: The model or the anchor cannot be read.
        UsageError: A named tensor is not there or too small, or the anchor is of another key.

    Examples:
        >>> verdict, claim = neuralmark.rebuild_claim("marked.safetensors", key)
        >>> [name for name, shape in claim.placement]
        ['layer1.weight', 'layer2.weight']
    """
    names = listed(tensors)
    file = anchor or (anchor_beside(local(place_of(model)), key) if key.kind == "native" else None)
    if file is not None:
        found = load_anchor(file, key)
        blank = Digest("", {})
        named = claim_of(key, found.placement, blank, None, claimed_anchor(found))
        options = VerifyOptions(anchor=found, full_digest=False)
        verdict = verify(model, key, claim=named, options=options)
        if verdict.verified or anchor is not None:
            return verdict, _rebuilt(key, verdict, named.anchor)
    followed = claim_beside(local(place_of(model)), key, names)
    verdict = verify(model, key, claim=followed, tensors=None if followed else names)
    return verdict, _rebuilt(key, verdict, None if followed is None else followed.anchor)


def _rebuilt(key: Key, verdict: Verdict, anchor: ClaimedAnchor | None) -> Claim | None:
    if not verdict.verified:
        return None
    return claim_of(key, verdict.placement, verdict.checkpoint_digest, None, anchor)
