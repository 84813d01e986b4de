"""What lies beside a model: its claims and its anchor, never inside a folder to publish."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neuralmark.anchors.chunks import read_public
from neuralmark.anchors.sealed import SUFFIX
from neuralmark.checkpoints import root_of
from neuralmark.core.names import canonical_name
from neuralmark.errors import AnchorError, OutputError, RecordError
from neuralmark.keys.key import Key
from neuralmark.records import Claim
from neuralmark.storage import files

_CLAIM = ".claim.json"

FROM_FILE = "neuralmark_file"
"""The attribute of a module that tells which checkpoint it was loaded from (`training.coded`)."""


@dataclass(frozen=True)
class Places:
    """Where a marked model goes, its claim, and its anchor if it gets one."""

    out: Path
    claim: Path
    anchor: Path | None = None


def claim_path(model: Path) -> Path:
    """Where the claim of a marked model is kept: beside it, never inside a folder to publish."""
    model = root_of(model)
    model = model if model.name not in ("", "..") else model.resolve()
    return model.with_name(f"{model.name}{_CLAIM}")


def anchor_path(claim: Path) -> Path:
    """Where the anchor of a claim is kept: beside it, under the same name but for the ending."""
    return claim.with_name(f"{claim.name.removesuffix(_CLAIM)}{SUFFIX}")


def places_for(out: Path, key: Key, *, anchor: bool, overwrite: bool, in_place: bool) -> Places:
    """Beside the model; a claim of another key that is already there is kept, an anchor too.

    A model that is marked in place stays what it was, and keeps its claims in any case.
    """
    claim = _claim_file(out, key, overwrite=overwrite and not in_place)
    if not anchor:
        return Places(out, claim)
    file = anchor_path(claim)
    with files.writing(file):
        if file.is_dir():
            raise OutputError(f"{file} is a folder, and the anchor belongs there: move it away")
        if not overwrite and file.exists() and not is_anchor_of(file, key):
            raise OutputError(
                f"{file} is there already, and no anchor of this key: move it away, or pass"
                " overwrite=True"
            )
    return Places(out, claim, file)


def _claim_file(target: Path, key: Key, *, overwrite: bool) -> Path:
    usual = claim_path(target)
    with files.writing(usual):
        if usual.is_dir():
            raise OutputError(f"{usual} is a folder, and the claim belongs there: move it away")
        if overwrite or not usual.exists():
            return usual
    try:
        mine = Claim.load_beside(usual).fingerprint == key.fingerprint
    except RecordError:
        mine = False
    short = key.fingerprint.removeprefix("nm1-")[:8]
    stem = usual.name.removesuffix(_CLAIM)
    return usual if mine else usual.with_name(f"{stem}.{short}{_CLAIM}")


def is_anchor_of(file: Path, key: Key) -> bool:
    """Whether a file is an anchor of this key; links are not followed."""
    try:
        return read_public(file, links=False).fingerprint == key.fingerprint
    except AnchorError:
        return False


def anchor_beside(model: Path, key: Key) -> Path | None:
    """The anchor of this key beside a model, if there is one."""
    usual = claim_path(model)
    short = key.fingerprint.removeprefix("nm1-")[:8]
    stem = usual.name.removesuffix(_CLAIM)
    for name in (f"{stem}{SUFFIX}", f"{stem}.{short}{SUFFIX}"):
        file = usual.with_name(name)
        if is_anchor_of(file, key):
            return file
    return None


def claims_beside(model: Path) -> dict[str, Claim]:
    """Readable claims of the model, by the fingerprint of their key."""
    usual = claim_path(model)
    found = {}
    stem = glob.escape(usual.name.removesuffix(_CLAIM))
    beside = [*usual.parent.glob(f"{stem}{_CLAIM}"), *usual.parent.glob(f"{stem}.*{_CLAIM}")]
    root = root_of(model)
    inside = root.glob(f"neuralmark*{_CLAIM}") if root.is_dir() else ()
    for path in sorted({*beside, *inside}):
        try:
            claim = Claim.load_beside(path)
        except RecordError:
            continue
        found[claim.fingerprint] = claim
    return found


def claim_beside(model: Path, key: Key, tensors: Sequence[str] | None = None) -> Claim | None:
    """The claim of this very key beside a model, if it is sound and of these tensors (or any)."""
    claim = claims_beside(model).get(key.fingerprint)
    if claim is None or (claim.commitment, claim.parameters) != (key.commitment, key.parameters):
        return None
    named = None if tensors is None else {canonical_name(name) for name in tensors}
    marked = {canonical_name(name) for name, _ in claim.placement}
    return claim if named in (None, marked) else None
