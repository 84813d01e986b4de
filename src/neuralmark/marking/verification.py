"""Reading a mark back from a checkpoint and judging it: a Verdict, never a bare bool.

What will be tried is fixed before anything is read (`attempts`). Every way counts as a trial, so
the bound holds whatever the suspect looks like.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neuralmark import schemes
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.descent import in_place, score_of
from neuralmark.checkpoints import Checkpoint, is_shard, open_checkpoint, place_of
from neuralmark.core import bound, readout
from neuralmark.core.key import Float, Mark
from neuralmark.errors import (
    AnchorError,
    CheckpointError,
    NeuralMarkError,
    NonFiniteError,
    ParameterError,
    TooFewCarriersError,
    UnreadableError,
    UnsuitableTensorError,
)
from neuralmark.keys.key import Key
from neuralmark.marking.attempts import attempts_for, by_names, gaps_of
from neuralmark.marking.evidence import Evidence, evidence_near
from neuralmark.marking.judging import (
    Finding,
    Looked,
    elsewhere,
    held_back,
    judge,
    judge_aligned,
    nothing_read,
)
from neuralmark.marking.options import VerifyOptions
from neuralmark.marking.placement import Tensor
from neuralmark.marking.reading import Attempt, FileSuspect, Progress, Suspect, require_carriers
from neuralmark.records import NOT_VERIFIED, UNREADABLE, BitsRead, Claim, Digest, Verdict
from neuralmark.records.alignment import ALIGNED, POSITION
from neuralmark.storage.places import FarPlace, Place

if TYPE_CHECKING:
    from neuralmark.anchors.restoring import Restoration

ANCHORED_TRIALS = 2
"""By position and aligned."""

_NOT_FOUND = (NOT_VERIFIED, UNREADABLE)

WHOLE_UP_TO = 64 << 20
"""Bytes of files, in all, that a verdict digests whole unless told otherwise: some 50 ms."""

MEANWHILE_UP_TO = 1 << 30
"""The same, while something else is done: whoever interrupts it waits for a second at most."""

UNANCHORED = "a mark that is bound to an anchor is found only with its claim"

LEFT_BEHIND = (
    "this mark has an anchor, which was neither given nor found beside the claim (that of another"
    " claim does not serve): with it, weights are found wherever they went; give it"
    " (VerifyOptions(anchor=...))"
)

HAS_NONE = "renamed tensors are found only with an anchor, and this mark has none"


def verify(
    model: str | Place,
    key: Key,
    *,
    claim: Claim | str | Path | None = None,
    tensors: Sequence[str] | None = None,
    options: VerifyOptions | None = None,
    beside: bool = True,
    progress: Progress | None = None,
) -> Verdict:
    """Look for the key's mark in a checkpoint.

    With a claim or tensor names, only those tensors are read. Without, a claim of this key beside
    the model is followed; where there is none, the list that `auto` would choose and every tensor
    that is large enough are tried, and the bound is corrected for all. With beside=False no claim
    is looked for. Whole files are digested if asked for; None: if that takes no time to speak of.
    """
    require_key(key)
    options = options or VerifyOptions(full_digest=False)
    model = place_of(model)
    opened = open_checkpoint(model, options.base)
    checkpoint = opened.with_others()
    label = str(model) if options.base is None else f"{model} merged into {options.base}"
    if options.full_digest is None:
        options = replace(options, full_digest=_within(checkpoint, WHOLE_UP_TO))
    before = checkpoint.stamps()
    known = evidence_near(
        model, key, claim=claim, tensors=tensors, anchor=options.anchor, beside=beside
    )
    try:
        verdict = examine(
            FileSuspect(checkpoint, label),
            key,
            claim=known.claim,
            tensors=None if known.beside else tensors,
            anchor=known.anchor,
            options=options,
            progress=progress,
        )
    except TooFewCarriersError:
        if not opened.wants:
            raise
        raise UnreadableError(opened.wants) from None
    if known.damaged is not None:
        verdict = _without_anchor(verdict, known.damaged)
    verdict = followed(replace(verdict, pins=checkpoint.pins()), known)
    if checkpoint.stamps() != before:
        raise CheckpointError(f"{model}: changed while it was read; verify it again")
    missing = opened.wants
    if is_shard(model):
        missing = f"{model} is one shard of several, and the others were not read: give the folder"
    if verdict.status in _NOT_FOUND and missing:
        return replace(verdict, status=UNREADABLE, reason=f"{missing}; {verdict.reason}")
    return verdict


def _without_anchor(verdict: Verdict, damaged: AnchorError) -> Verdict:
    """A verdict that needed no anchor, and says why the one beside the claim was not used."""
    if not verdict.verified:
        raise damaged
    return replace(verdict, reason=f"{verdict.reason}; the anchor was not used ({damaged})")


def _within(checkpoint: Checkpoint, most: int) -> bool:
    """Whether its files are here and have so many bytes at most; what is far is never fetched."""
    files = checkpoint.files()
    if any(isinstance(file, FarPlace) for file in files):
        return False
    return sum(file.stat().st_size for file in files) <= most


def require_key(key: Key) -> None:
    """Refuse what is no key, such as the path of one, and a key that weights alone cannot tell of.

    A scheme that reads activations needs a live model and its triggers.
    """
    if not isinstance(key, Key):
        raise ParameterError(f"expected a Key, not {type(key).__name__}: use Key.load(FILE)")
    schemes.require_weights(key.parameters)


def followed(verdict: Verdict, known: Evidence) -> Verdict:
    """The verdict, which names the claim that it followed, and says if nobody else named it."""
    if known.claim is not None:
        verdict = replace(verdict, claim_digest=known.claim.digest)
    if not known.beside:
        return verdict
    told = f"{verdict.reason}; it followed the claim beside the model"
    if not verdict.verified:
        told += " (move that away to search instead)"
    return replace(verdict, reason=told)


def examine(
    suspect: Suspect,
    key: Key,
    *,
    claim: Claim | None = None,
    tensors: Sequence[str] | None = None,
    anchor: Anchor | None = None,
    options: VerifyOptions | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Look for the key's mark in anything that can be read."""
    require_key(key)
    options = options or VerifyOptions()
    if anchor is not None:
        return examine_anchored(suspect, key, anchor, options, progress)
    known, full_digest = suspect.tensors(), bool(options.full_digest)
    attempts = attempts_for(known, key, claim, tensors)
    if not attempts:
        placement = claim.placement if claim is not None else ()
        gaps = gaps_of(known, placement)
        unread = nothing_read(suspect, key, placement, gaps, full_digest)
        return unread if claim is None else _unread(unread, claim)
    finding, broken = best_finding(suspect, key, attempts, progress, options.among)
    looked = Looked.at(suspect, attempts, broken, len(attempts) * options.among)
    verdict = judge(finding, suspect, key, looked, full_digest=full_digest)
    if claim is not None and claim.anchor is not None and verdict.status in _NOT_FOUND:
        return replace(verdict, reason=f"{verdict.reason}; {LEFT_BEHIND}")
    if verdict.status == NOT_VERIFIED and claim is None and key.kind == "native":
        return replace(verdict, reason=f"{verdict.reason}; {UNANCHORED}")
    return verdict


def _unread(verdict: Verdict, claim: Claim) -> Verdict:
    """A verdict on tensors none of which was read, which says what its claim's anchor could do."""
    if claim.anchor is not None:
        told = f"{verdict.reason}; {LEFT_BEHIND}"
        return replace(verdict, reason=told, anchor_digest=claim.anchor.digest)
    if verdict.coverage.unreadable:
        return verdict
    return replace(verdict, reason=f"{verdict.reason}; {HAS_NONE}")


def examine_anchored(
    suspect: Suspect,
    key: Key,
    anchor: Anchor,
    options: VerifyOptions | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Look for a mark that is bound to an anchor: where it was, then wherever it went.

    Two trials, whatever the suspect looks like: all that alignment chooses, it chooses by likeness
    to the anchor, before the key is derived from the anchor's digest.
    """
    options = options or VerifyOptions()
    trials = ANCHORED_TRIALS * options.among
    needed = bound.boundary(key.parameters.bits, trials)
    placed, why = by_position(suspect, key, anchor, progress)
    if placed is not None and needed is not None and placed.matched >= needed:
        unneeded = BitsRead(ALIGNED, None, "not needed")
        readings = (BitsRead(POSITION, placed.matched), unneeded)
        looked = Looked.at(suspect, [placed.attempt], trials=trials)
        verdict = judge(placed, suspect, key, looked, full_digest=bool(options.full_digest))
        return replace(
            verdict, readings=readings, lineage=_lineage_in_place(suspect, placed, anchor)
        )
    from neuralmark.anchors.restoring import restore  # slow to import, and seldom needed

    with _digest_of(suspect) as digest:
        restoration = restore(suspect.weights(), anchor, options.aligning(), progress)
        aligned = _restored(restoration, key, anchor)
        record = restoration.record()
        readings = (
            BitsRead(POSITION, None if placed is None else placed.matched, why),
            BitsRead(ALIGNED, aligned.matched),
        )
        if placed is not None and (placed.matched > aligned.matched or not record.enough):
            looked = Looked.at(suspect, [placed.attempt], trials=trials)
            verdict = judge(placed, suspect, key, looked, full_digest=bool(options.full_digest))
            found = elsewhere(aligned.matched, record)
            verdict = replace(verdict, reason=f"{verdict.reason}{found}")
        else:
            broken = _broken(suspect, anchor, restoration.broken) if placed is None else []
            looked = Looked.restored(suspect, anchor.placement, record.found, trials, broken)
            verdict = judge_aligned(aligned, suspect, key, looked, record, digest())
    more = held_back(record, anchor.placement) if verdict.status in _NOT_FOUND else ""
    told = f"{verdict.reason}{more}"
    score = score_of(restoration.kinships())
    return replace(verdict, reason=told, readings=readings, alignment=record, lineage=score)


def _lineage_in_place(suspect: Suspect, placed: Finding, anchor: Anchor) -> float | None:
    """How alike weights are to the anchor that lie where the mark was written."""
    attempt = placed.attempt
    stored = {
        name: tensor.info.name
        for (name, _), tensor in zip(attempt.placement, attempt.tensors, strict=True)
        if tensor is not None
    }
    return score_of(
        in_place(anchor, lambda n, rows: suspect.rows(stored[n], rows) if n in stored else None)
    )


@contextmanager
def _digest_of(suspect: Suspect) -> Iterator[Callable[[], Digest]]:
    """The digest of all that a suspect is, taken meanwhile in another thread if that ends soon."""
    if not isinstance(suspect, FileSuspect) or not _within(suspect.checkpoint, MEANWHILE_UP_TO):
        yield lambda: suspect.digest({}, full=True)
        return
    with ThreadPoolExecutor(1) as other:
        yield other.submit(suspect.digest, {}, full=True).result


def by_position(
    suspect: Suspect, key: Key, anchor: Anchor, progress: Progress | None
) -> tuple[Finding | None, str]:
    """The tensors of these very names, as they are stored; or why they could not be read."""
    attempt = by_names(suspect.tensors(), anchor.placement, anchor.digest)
    if attempt is None:
        return None, "too few tensors have the names and shapes of the mark"
    try:
        return find(suspect, key, attempt, progress), ""
    except (NonFiniteError, UnsuitableTensorError) as error:
        return None, str(error)


def _broken(suspect: Suspect, anchor: Anchor, found: Collection[str]) -> list[Tensor]:
    """What holds NaN or infinity: tensors under the marked names, or found in their place."""
    attempt = by_names(suspect.tensors(), anchor.placement, anchor.digest)
    if attempt is None:
        return [tensor for tensor in suspect.tensors() if tensor.info.name in found]
    weights = suspect.weights()
    read = attempt.read_tensors()
    return [tensor for tensor in read if not np.isfinite(weights[tensor.info.name]).all()]


def _restored(restoration: "Restoration", key: Key, anchor: Anchor) -> Finding:
    mark = key.at(anchor.placement, anchor.digest)
    carriers = require_carriers(mark, anchor.placement)
    nothing = (None,) * len(anchor.placement)
    attempt = Attempt(anchor.placement, nothing, "anchor", anchor=anchor.digest)
    from neuralmark.marking.anchored import read_restored

    reading = read_restored(restoration, carriers)
    return Finding(attempt, mark, reading, margins_of(mark, reading.pooled))


def best_finding(
    suspect: Suspect,
    key: Key,
    attempts: Sequence[Attempt],
    progress: Progress | None = None,
    among: int = 1,
) -> tuple[Finding, set[str]]:
    """Try the attempts in order; stop at the first that reaches the boundary for all of them.

    All of them, as often as there are looks that this is one `among`. Gives too which tensors
    (stored names) hold NaN or infinity, where others could be read.
    """
    needed = bound.boundary(key.parameters.bits, len(attempts) * among)
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
