"""What is known of a mark beside the key: its claim and its anchor, given or found beside it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import anchor_from_original
from neuralmark.anchors.chunks import is_anchor
from neuralmark.anchors.sealed import load_anchor
from neuralmark.errors import AnchorMismatchError, ParameterError
from neuralmark.keys.key import Key
from neuralmark.marking.attempts import check_claim
from neuralmark.marking.claiming import anchor_beside, claims_beside
from neuralmark.records import Claim


@dataclass(frozen=True)
class Evidence:
    """What guides a look at a suspect. Nothing in it is trusted: the key is derived from it."""

    claim: Claim | None = None
    anchor: Anchor | None = None
    beside: bool = False
    """Whether the claim was found beside the suspect, not given."""


def evidence_for(
    model: Any, key: Key, *, claim: Any = None, named: bool = False, anchor: Any = None
) -> Evidence:
    """The claim and the anchor that were given; else those that lie beside the model, or the claim.

    A claim beside the suspect may be anybody's: the key is derived from what it says, so a made-up
    one is one more draw of fair coins.
    """
    given = Claim.given(claim)
    beside = given is None and anchor is None and not named and isinstance(model, str | Path)
    if beside:
        given = claims_beside(Path(model)).get(key.fingerprint)
    if given is not None:
        check_claim(given, key)
    found = _anchor(anchor, key, given)
    if found is None and given is not None and given.anchor is not None:
        near = Path(claim) if isinstance(claim, str | Path) else None
        place = anchor_beside(near if near is not None else Path(model) if beside else None, given)
        found = None if place is None else load_anchor(place, key, links=False)
    return Evidence(given, checked(found, given), beside and given is not None)


def _anchor(given: Any, key: Key, claim: Claim | None) -> Anchor | None:
    if given is None or isinstance(given, Anchor):
        return given
    if not isinstance(given, str | Path):
        raise ParameterError(f"an anchor is a file or an Anchor, not a {type(given).__name__}")
    path = Path(given)
    if is_anchor(path):
        return load_anchor(path, key)
    if claim is None:
        raise AnchorMismatchError(
            f"{path}: is no anchor file; the unmarked original can stand for one only beside the"
            " claim, which says what was marked: give claim=..."
        )
    return anchor_from_original(path, claim)


def checked(anchor: Anchor | None, claim: Claim | None) -> Anchor | None:
    """Refuse an anchor that is not the claim's."""
    if anchor is None or claim is None:
        return anchor
    wanted = "" if claim.anchor is None else claim.anchor.bytes.hex()
    if anchor.digest.hex() != wanted:
        raise AnchorMismatchError(
            "this is not the anchor of the claim: their digests differ; give the anchor that was"
            " written with the claim, or leave one of them out"
        )
    return anchor
