"""Public functions that take a checkpoint or a live model alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralmark.errors import (
    ParameterError,
    TooFewCarriersError,
    UnknownTensorError,
    UnsuitableTensorError,
)
from neuralmark.keys.key import Key
from neuralmark.marking import rechecking, verification
from neuralmark.marking.placement import listed
from neuralmark.marking.reading import Progress
from neuralmark.marking.rechecking import Recheck, Way
from neuralmark.records import Claim, Verdict, presenting

if TYPE_CHECKING:
    import torch


def verify(
    model: "str | Path | torch.nn.Module | Mapping[str, Any]",
    key: Key,
    *,
    claim: Claim | str | Path | dict[str, Any] | None = None,
    tensors: Sequence[str] | str | None = None,
    full_digest: bool = False,
    progress: Progress | None = None,
) -> Verdict:
    """Look for the key's mark in a checkpoint (a path), a live module or a state dict.

    With a claim or tensor names, only those tensors are read. Without, a claim of this very key
    beside the file or folder is followed. Where there is none, the list that `auto` would choose
    and every tensor that is large enough are tried, and the bound is corrected for all of them; a
    mark that is bound to an anchor is not found so. On a sharded module all processes must call it.

    Args:
        model: The suspect as a path, a torch module or a state dict.
        key: The key whose mark is looked for.
        claim: Where the mark was put, as a `Claim`, the path of one, or a parsed one.
        tensors: Names of the tensors to read instead of searching.
        full_digest: Whether to take the SHA-256 of whole files too.
        progress: Called with what is being done, bytes done, and bytes in all.

    Returns:
        What was found; `.verified` says whether it proves the mark.

    Raises:
        InputError: The model, or the claim, cannot be read.
        UsageError: The claim is of another key, or a named tensor is not there or too small.

    Examples:
        >>> verdict = neuralmark.verify("marked.safetensors", key)
        >>> verdict.verified, verdict.matched, verdict.bits
        (True, 160, 160)
        >>> neuralmark.verify("model.safetensors", key).verified
        False
    """
    way = Way(Claim.given(claim), listed(tensors))
    return _verified(model, key, way, HowRead(full_digest, progress))


@dataclass(frozen=True)
class HowRead:
    """How a model is read, apart from where the mark is looked for."""

    full_digest: bool = False
    progress: Progress | None = None
    beside: bool = True
    """Whether a claim beside the model is followed where none is given."""


def _verified(
    model: "str | Path | torch.nn.Module | Mapping[str, Any]", key: Key, way: Way, how: HowRead
) -> Verdict:
    if isinstance(model, str | Path):
        verdict = verification.verify(
            model,
            key,
            claim=way.claim,
            tensors=way.tensors,
            full_digest=how.full_digest,
            beside=how.beside,
            progress=how.progress,
        )
    else:
        from neuralmark.training.live import LiveSuspect

        suspect = LiveSuspect(model)
        suspect.require_same(key)
        verdict = verification.examine(suspect, key, claim=way.claim, tensors=way.tensors)
    return replace(
        verdict,
        date=presenting.now(),
        claim_digest=way.claim.digest if way.claim else verdict.claim_digest,
        versions=presenting.versions(),
    )


def recheck(
    verdict: Verdict | str | Path,
    model: "str | Path | torch.nn.Module | Mapping[str, Any]",
    key: Key,
    *,
    claim: Claim | str | Path | dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> Recheck:
    """Verify a model again in the way a verdict (or its file) records, and compare.

    Key, digests, tensors, counts, bound and status are compared point by point; `.holds` says
    whether the verdict still stands. Where it followed a claim, its placement is followed; give the
    claim itself to have its digest compared.

    Args:
        verdict: A verdict, or the file that one was saved to.
        model: The model now: a path, a live module or a state dict.
        key: The key that the verdict is about.
        claim: The claim that the verdict followed, to have its digest compared too.
        progress: Called with what is being done, bytes done, bytes in all.

    Returns:
        The points that were compared, and the verdict of now.

    Raises:
        ParameterError: If the verdict or the key is none.
        RecordError: If the file holds no verdict.
        CheckpointError: If the model cannot be opened.

    Examples:
        >>> verdict = neuralmark.verify("marked.safetensors", key)
        >>> neuralmark.recheck(verdict, "marked.safetensors", key).holds
        True
    """
    if isinstance(verdict, str | Path):
        verdict = Verdict.load(verdict)
    if not isinstance(verdict, Verdict):
        raise ParameterError(f"expected a Verdict, not {type(verdict).__name__}: use Verdict.load")
    if not isinstance(key, Key):
        raise ParameterError(f"expected a Key, not {type(key).__name__}: use Key.load(FILE)")
    followed = Claim.given(claim)
    if key.fingerprint != verdict.fingerprint:
        return rechecking.not_this_key(verdict, key)
    way = Way(followed) if followed else rechecking.way_of(verdict, key)
    how = HowRead(verdict.sha256 is not None, progress, beside=False)
    try:
        again = _verified(model, key, way, how)
    except (TooFewCarriersError, UnknownTensorError, UnsuitableTensorError) as error:
        return rechecking.not_found(verdict, str(error))
    again = replace(again, claim_digest=followed.digest if followed else None)
    return rechecking.compared(verdict, again, followed)
