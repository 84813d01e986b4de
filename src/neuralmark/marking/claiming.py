"""The claim of a marked model: what it says, where it is kept, and how a lost one is made again."""

import glob
from collections.abc import Sequence
from pathlib import Path

from neuralmark.checkpoints import root_of
from neuralmark.core.key import Placement
from neuralmark.errors import OutputError, RecordError
from neuralmark.keys.key import Key
from neuralmark.marking.placement import listed
from neuralmark.marking.verification import verify
from neuralmark.records import Claim, Digest, Verdict
from neuralmark.storage import files


def claim_path(model: Path) -> Path:
    """Where the claim of a marked model is kept: beside it, never inside a folder to publish."""
    model = root_of(model)
    model = model if model.name not in ("", "..") else model.resolve()
    return model.with_name(f"{model.name}.claim.json")


def claim_of(key: Key, placement: Placement, marked: Digest, source: Digest | None) -> Claim:
    """What is recorded of a mark: whose it is, where it lies, what it was put into."""
    return Claim(key.fingerprint, key.commitment, key.parameters, placement, marked, source)


def claim_file(target: Path, key: Key, *, overwrite: bool = False) -> Path:
    """Beside the model; a claim of another key that is already there is kept."""
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
    stem = usual.name.removesuffix(".claim.json")
    return usual if mine else usual.with_name(f"{stem}.{short}.claim.json")


def claims_beside(model: Path) -> dict[str, Claim]:
    """Readable claims of the model, by the fingerprint of their key."""
    usual = claim_path(model)
    found = {}
    stem = glob.escape(usual.name.removesuffix(".claim.json"))
    beside = [*usual.parent.glob(f"{stem}.claim.json"), *usual.parent.glob(f"{stem}.*.claim.json")]
    root = root_of(model)
    inside = root.glob("neuralmark*.claim.json") if root.is_dir() else ()
    for path in sorted({*beside, *inside}):
        try:
            claim = Claim.load_beside(path)
        except RecordError:
            continue
        found[claim.fingerprint] = claim
    return found


def rebuild_claim(
    model: str | Path, key: Key, *, tensors: Sequence[str] | str | None = None
) -> tuple[Verdict, Claim | None]:
    """The claim of a marked model whose claim was lost.

    Args:
        model: Path of the marked checkpoint.
        key: The key it was marked with.
        tensors: Names of the marked tensors, if they were named by hand.

    Returns:
        The verdict, and the claim or None when the mark is not found.

    Raises:
        InputError: The model cannot be read.
        UsageError: A named tensor is not there or too small.

    Examples:
        >>> verdict, claim = neuralmark.rebuild_claim("marked.safetensors", key)
        >>> [name for name, shape in claim.placement]
        ['layer1.weight', 'layer2.weight']
    """
    verdict = verify(model, key, tensors=listed(tensors))
    if not verdict.verified:
        return verdict, None
    return verdict, claim_of(key, verdict.placement, verdict.checkpoint_digest, None)
