"""What is known of a mark beside the key: its claim and its anchor, given or found beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import NO_ANCHOR, anchor_from_original
from neuralmark.anchors.chunks import is_sealed
from neuralmark.anchors.sealed import load_anchor
from neuralmark.checkpoints import place_of
from neuralmark.errors import (
    AnchorError,
    AnchorMismatchError,
    ParameterError,
    UnknownFormatError,
)
from neuralmark.keys.key import Key
from neuralmark.marking.attempts import check_claim
from neuralmark.marking.beside import (
    FROM_FILE,
    anchor_beside,
    anchor_path,
    claim_beside,
    is_anchor_of,
)
from neuralmark.records import Claim


@dataclass(frozen=True)
class Evidence:
    """What guides a look at a suspect. Nothing in it is trusted: the key is derived from it."""

    claim: Claim | None = None
    anchor: Anchor | None = None
    beside: bool = False
    """Whether the claim was found beside the suspect, not given."""
    damaged: AnchorError | None = None
    """Why the anchor beside the claim cannot be used."""


def evidence_for(
    model: Any,
    key: Key,
    *,
    claim: Any = None,
    tensors: Sequence[str] | None = None,
    anchor: Any = None,
    beside: bool = True,
) -> Evidence:
    """The claim and the anchor that were given; else those beside the model, or beside the claim.

    Beside a module that was loaded from a file is beside that file. A claim beside the suspect may
    be anybody's: the key is derived from what it says, so a made-up one is one more draw of fair
    coins.
    """
    found = evidence_near(model, key, claim=claim, tensors=tensors, anchor=anchor, beside=beside)
    if found.damaged is not None:
        raise found.damaged
    return found


def evidence_near(
    model: Any,
    key: Key,
    *,
    claim: Any = None,
    tensors: Sequence[str] | None = None,
    anchor: Any = None,
    beside: bool = True,
) -> Evidence:
    """The same; but an anchor that nobody named and that cannot be used is told, not raised.

    Weights that lie where they were are read without it.
    """
    given = Claim.given(claim)
    file = getattr(model, FROM_FILE, model)
    place = place_of(file) if isinstance(file, str | Path) and beside else None
    near = place if isinstance(place, Path) else None  # nothing of the owner's lies beside a URL
    if given is not None:
        check_claim(given, key)
    seek = given is None and near is not None
    followed = claim_beside(near, key, tensors) if seek and near is not None else given
    if seek and _stands_alone(anchor):  # it is enough by itself; the claim may only gainsay it
        return Evidence(None, _not_gainsaid(_given_anchor(anchor, key, None), followed))
    found = _given_anchor(anchor, key, followed)
    damaged = None
    if found is None and followed is not None and followed.anchor is not None:
        try:
            found = _near_anchor(claim if given is not None else None, near, key, followed)
        except AnchorError as error:
            damaged = error
    return Evidence(followed, found, beside=seek and followed is not None, damaged=damaged)


def _stands_alone(anchor: Any) -> bool:
    """Whether an anchor was given that needs no claim; the unmarked original does need one."""
    if not isinstance(anchor, str | Path):
        return anchor is not None
    return is_sealed(Path(anchor))


def _not_gainsaid(anchor: Anchor | None, claim: Claim | None) -> Anchor | None:
    """Refuse an anchor where the claim of this key beside the model names another one."""
    if anchor is None or claim is None or claim.anchor is None or _fits(anchor, claim):
        return anchor
    raise AnchorMismatchError(
        f"this is not the anchor of the claim beside the model ({claim.file}): give the anchor that"
        " was written with that claim, or name the claim of this one (claim=...)"
    )


def _given_anchor(given: Any, key: Key, claim: Claim | None) -> Anchor | None:
    """The anchor as a caller names it: itself, its file, or the unmarked original."""
    if given is None:
        return None
    if claim is not None and claim.anchor is None:
        raise AnchorMismatchError(NO_ANCHOR)
    if isinstance(given, Anchor):
        return _checked(given, claim)
    if not isinstance(given, str | Path):
        raise ParameterError(f"an anchor is a file or an Anchor, not a {type(given).__name__}")
    path = Path(given)
    if is_sealed(path):
        return _checked(load_anchor(path, key), claim)
    if claim is None:
        raise AnchorMismatchError(
            f"{path}: is no anchor file; the unmarked original can stand for one only beside the"
            " claim, which says what was marked: give claim=..."
        )
    return _of_original(path, claim)


def _of_original(path: Path, claim: Claim) -> Anchor:
    try:
        return anchor_from_original(path, claim)
    except UnknownFormatError as error:
        raise AnchorError(
            f"{path}: is neither an anchor nor a model; give the anchor that was written with the"
            f" claim, or the unmarked original ({str(error).removeprefix(f'{path}: ')})"
        ) from None


def _near_anchor(claim: Any, model: Path | None, key: Key, followed: Claim) -> Anchor | None:
    """The anchor beside the claim's file or beside the model, if it is there and the claim's."""
    if isinstance(claim, str | Path):
        places = [anchor_path(Path(claim))]
    else:
        remembered = None if followed.file is None else anchor_path(followed.file)
        places = [remembered] if remembered is not None and is_anchor_of(remembered, key) else []
    beside = None if model is None else anchor_beside(model, key)
    for place in [*places, *([] if beside is None else [beside])]:
        if is_sealed(place):
            found = load_anchor(place, key, links=False)
            if _fits(found, followed):
                return found
    return None


def _fits(anchor: Anchor, claim: Claim) -> bool:
    """Whether it is the claim's, of the tensors that the claim names."""
    return anchor.digest == claim.anchor_digest and anchor.placement == claim.placement


def _checked(anchor: Anchor, claim: Claim | None) -> Anchor:
    """Refuse an anchor that is not the claim's."""
    if claim is not None and not _fits(anchor, claim):
        raise AnchorMismatchError(
            "this is not the anchor of the claim: their digests or tensors differ; give the anchor"
            " that was written with the claim, or leave one of them out"
        )
    return anchor
