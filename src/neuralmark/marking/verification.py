"""Reading a mark back from a checkpoint and judging it: a Verdict, never a bare bool.

What will be tried is fixed before anything is read (`attempts`). Every way counts as a trial, so
the bound holds whatever the suspect looks like.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from neuralmark import schemes
from neuralmark.checkpoints import is_shard, open_checkpoint
from neuralmark.core import bound, readout
from neuralmark.core.key import Float, Mark
from neuralmark.errors import (
    CheckpointError,
    NeuralMarkError,
    NonFiniteError,
    ParameterError,
    TooFewCarriersError,
    UnsuitableTensorError,
)
from neuralmark.keys.key import Key
from neuralmark.marking.attempts import attempts_for, gaps_of
from neuralmark.marking.beside import claim_beside
from neuralmark.marking.judging import Finding, Looked, judge, nothing_read
from neuralmark.marking.reading import Attempt, FileSuspect, Progress, Suspect, require_carriers
from neuralmark.records import NOT_VERIFIED, UNREADABLE, Claim, Verdict

UNANCHORED = "a mark that is bound to an anchor is found only with its claim"


def verify(
    model: str | Path,
    key: Key,
    *,
    claim: Claim | str | Path | None = None,
    tensors: Sequence[str] | None = None,
    full_digest: bool = False,
    beside: bool = True,
    progress: Progress | None = None,
) -> Verdict:
    """Look for the key's mark in a checkpoint.

    With a claim or tensor names, only those tensors are read. Without, a claim of this key beside
    the model is followed; where there is none, the list that `auto` would choose and every tensor
    that is large enough are tried, and the bound is corrected for all. With beside=False no claim
    is looked for.
    """
    require_key(key)
    checkpoint = open_checkpoint(model).with_others()
    before = checkpoint.stamps()
    found = claim_beside(Path(model), key, tensors) if claim is None and beside else None
    verdict = examine(
        FileSuspect(checkpoint, str(model)),
        key,
        claim=claim if found is None else found,
        tensors=tensors if found is None else None,
        full_digest=full_digest,
        progress=progress,
    )
    if found is not None:
        verdict = _said(verdict, found)
    if checkpoint.stamps() != before:
        raise CheckpointError(f"{model}: changed while it was read; verify it again")
    if verdict.status == NOT_VERIFIED and is_shard(Path(model)):
        why = f"{model} is one shard of several, and the others were not read: give the folder"
        return replace(verdict, status=UNREADABLE, reason=f"{why}; {verdict.reason}")
    return verdict


def require_key(key: Key) -> None:
    """Refuse what is no key, such as the path of one."""
    if not isinstance(key, Key):
        raise ParameterError(f"expected a Key, not {type(key).__name__}: use Key.load(FILE)")


def _said(verdict: Verdict, beside: Claim) -> Verdict:
    """The verdict, which says that it followed a claim that nobody named."""
    told = f"{verdict.reason}; it followed the claim beside the model"
    if not verdict.verified:
        told += " (move that away to search instead)"
    return replace(verdict, reason=told, claim_digest=beside.digest)


def examine(
    suspect: Suspect,
    key: Key,
    *,
    claim: Claim | str | Path | None = None,
    tensors: Sequence[str] | None = None,
    full_digest: bool = False,
    progress: Progress | None = None,
) -> Verdict:
    """Look for the key's mark in anything that can be read."""
    require_key(key)
    if isinstance(claim, str | Path):
        claim = Claim.load(claim)
    known = suspect.tensors()
    attempts = attempts_for(known, key, claim, tensors)
    if not attempts:
        placement = claim.placement if claim is not None else ()
        gaps = gaps_of(known, placement)
        unread = nothing_read(suspect, key, placement, gaps, full_digest)
        return unread if claim is None else replace(unread, anchor_digest=_anchor_of(claim))
    finding, broken = best_finding(suspect, key, attempts, progress)
    looked = Looked.at(suspect, attempts, broken)
    verdict = judge(finding, suspect, key, looked, full_digest=full_digest)
    if verdict.status == NOT_VERIFIED and claim is None and key.kind == "native":
        return replace(verdict, reason=f"{verdict.reason}; {UNANCHORED}")
    return verdict


def _anchor_of(claim: Claim) -> str | None:
    return None if claim.anchor is None else claim.anchor.digest


def best_finding(
    suspect: Suspect, key: Key, attempts: Sequence[Attempt], progress: Progress | None = None
) -> tuple[Finding, set[str]]:
    """Try the attempts in order; stop at the first that reaches the boundary for all of them.

    Gives too which tensors (stored names) hold NaN or infinity, where others could be read.
    """
    needed = bound.boundary(key.parameters.bits, len(attempts))
    best: Finding | None = None
    failure: NeuralMarkError | None = None
    broken: set[str] = set()
    for attempt in attempts:
        try:
            finding = find(suspect, key, attempt, progress)
        except (NonFiniteError, TooFewCarriersError, UnsuitableTensorError) as error:
            failure = failure or error
            broken |= {str(error.tensor)} if isinstance(error, NonFiniteError) else set()
            continue
        if best is None or finding.matched > best.matched:
            best = finding
        if needed is not None and best.matched >= needed:
            break
    if best is None:
        assert failure is not None
        raise failure
    return best, broken


def find(suspect: Suspect, key: Key, attempt: Attempt, progress: Progress | None = None) -> Finding:
    """Read one attempt's tensors and take the margins of all bits."""
    mark = key.at(attempt.placement, attempt.anchor)
    carriers = require_carriers(mark, attempt.placement)
    reading = suspect.read(attempt, carriers, progress)
    return Finding(attempt, mark, reading, margins_of(mark, reading.pooled))


def margins_of(mark: Mark, pooled: Float) -> Float:
    """Margins of all bits, in float64."""
    known = readout.Known.of(mark)
    margins: Float = readout.margins(schemes.of(mark).logits(known, pooled), known.signs)
    return margins
