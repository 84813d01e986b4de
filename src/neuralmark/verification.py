"""Reading a mark back from a checkpoint and judging it: a Verdict, never a bare bool.

What will be tried is fixed before anything is read (neuralmark.attempts), and every way counts as
a trial, so the bound holds whatever the suspect looks like.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neuralmark import schemes
from neuralmark.attempts import Attempt, attempts_for
from neuralmark.checkpoints import open_checkpoint
from neuralmark.core import bound, readout
from neuralmark.core.certificate import certified_radius
from neuralmark.core.key import Float, Mark
from neuralmark.errors import CheckpointError, NonFiniteError, ParameterError, TooFewCarriersError
from neuralmark.keyfile import Key
from neuralmark.reading import FileSuspect, Progress, Reading, Suspect, require_carriers
from neuralmark.records import (
    NOT_VERIFIED,
    UNPROVABLE,
    UNPROVEN,
    VERIFIED,
    Claim,
    Histogram,
    TensorRead,
    Verdict,
)

RAW_REASON = (
    "the bits match, but this key is a matrix made elsewhere, and a matrix can be fitted to a"
    " model that carries no mark; only a key derived from a secret can verify"
)

CHOSEN_REASON = (
    "the bits match, but this key was chosen freely, and one can be chosen to fit a model that"
    " carries no mark; only a key derived from a secret can verify"
)


@dataclass(frozen=True)
class Finding:
    """What one attempt gave."""

    attempt: Attempt
    mark: Mark
    reading: Reading
    margins: Float

    @property
    def matched(self) -> int:
        """Bits that match; a zero logit never does."""
        return int((self.margins > 0).sum())


def verify(
    model: str | Path,
    key: Key,
    *,
    claim: Claim | str | Path | None = None,
    tensors: Sequence[str] | None = None,
    full_digest: bool = False,
    progress: Progress | None = None,
) -> Verdict:
    """Look for the key's mark in a checkpoint.

    With a claim or tensor names, only there; without, in the list that `auto` would choose and in
    every tensor that is large enough, the bound corrected for all of them.
    """
    checkpoint = open_checkpoint(model)
    before = checkpoint.stamps()
    verdict = examine(
        FileSuspect(checkpoint, str(model)),
        key,
        claim=claim,
        tensors=tensors,
        full_digest=full_digest,
        progress=progress,
    )
    if checkpoint.stamps() != before:
        raise CheckpointError(f"{model}: changed while it was read; verify it again")
    return verdict


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
    if not isinstance(key, Key):
        raise ParameterError(f"expected a Key, not {type(key).__name__}: use Key.load(FILE)")
    if isinstance(claim, str | Path):
        claim = Claim.load(claim)
    attempts = attempts_for(suspect.tensors(), key, claim, tensors)
    finding = best_finding(suspect, key, attempts, progress)
    return judge(finding, suspect, key, len(attempts), full_digest=full_digest)


def best_finding(
    suspect: Suspect, key: Key, attempts: Sequence[Attempt], progress: Progress | None = None
) -> Finding:
    """Try the attempts in order; stop at the first that reaches the boundary for all of them."""
    needed = bound.boundary(key.parameters.bits, len(attempts))
    best: Finding | None = None
    failure: Exception | None = None
    for attempt in attempts:
        try:
            finding = find(suspect, key, attempt, progress)
        except (NonFiniteError, TooFewCarriersError) as error:
            failure = failure or error
            continue
        if best is None or finding.matched > best.matched:
            best = finding
        if needed is not None and best.matched >= needed:
            return best
    if best is None or isinstance(failure, NonFiniteError):
        assert failure is not None
        raise failure
    return best


def find(suspect: Suspect, key: Key, attempt: Attempt, progress: Progress | None = None) -> Finding:
    """Read one attempt's tensors and take the margins of all bits."""
    mark = key.at(attempt.placement)
    carriers = require_carriers(mark, attempt.placement)
    reading = suspect.read(
        attempt.tensors, carriers, transposed=attempt.transposed, progress=progress
    )
    return Finding(attempt, mark, reading, margins_of(mark, reading.pooled))


def margins_of(mark: Mark, pooled: Float) -> Float:
    """Margins of all bits, in float64."""
    known = readout.Known.of(mark)
    margins: Float = readout.margins(schemes.of(mark).logits(known, pooled), known.signs)
    return margins


def judge(
    finding: Finding, suspect: Suspect, key: Key, trials: int, *, full_digest: bool = False
) -> Verdict:
    """The verdict on what was found in `trials` ways of looking."""
    bits, matched = key.parameters.bits, finding.matched
    needed = bound.boundary(bits, trials)
    status, reason = _status(key, finding, needed, trials)
    reading, attempt = finding.reading, finding.attempt
    carriers = reading.carriers
    radius = relative = None
    linear = schemes.of(finding.mark).linear
    if status == VERIFIED and linear:
        assert needed is not None
        radius = certified_radius(finding.margins, needed, carriers.per_pool, finding.mark.matrix)
        relative = radius / reading.norm if np.isfinite(reading.norm) and reading.norm else None
    scaled = finding.margins / ((reading.sigma_z if linear else 0.0) or 1.0)
    return Verdict(
        status=status,
        reason=reason,
        matched=matched,
        bits=bits,
        boundary=needed,
        bound_log2=bound.bound_log2(bits, matched, trials),
        full_match_bound_log2=bound.bound_log2(bits, bits, trials),
        trials=trials,
        parameters=key.parameters,
        key_kind=key.kind,
        fingerprint=key.fingerprint,
        placement=attempt.placement,
        tensors=tuple(
            TensorRead(name, tensor.info.name, tensor.info.dtype, tensor.info.shape)
            for (name, _), tensor in zip(attempt.placement, attempt.tensors, strict=True)
        ),
        mapping=attempt.mapping,
        orientation="transposed" if attempt.transposed else "stored",
        smallest_margin=float(scaled.min()),
        median_margin=_median(scaled),
        margin_histogram=_histogram(scaled),
        match_map=np.packbits(finding.margins > 0).tobytes().hex(),
        certified_radius=radius,
        certified_radius_relative=relative,
        model=suspect.label,
        checkpoint_digest=suspect.digest(reading.digests, full=full_digest),
    )


def _status(key: Key, finding: Finding, needed: int | None, trials: int) -> tuple[str, str]:
    bits, matched, mapping = key.parameters.bits, finding.matched, finding.attempt.mapping
    ways = f"{trials} ways of looking" if trials > 1 else "one way of looking"
    if needed is None:
        best = bound.bound_log2(bits, bits, trials)
        return UNPROVABLE, (
            f"{bits} bits can never go below 2^-{bound.SECURITY_BITS} in {ways}: even a full match"
            f" gives only 2^{best:.2f}; make keys of 256 bits or more"
        )
    if matched < needed:
        hint = "; if tensors were renamed, or several marked by name, give --claim or --tensor"
        return NOT_VERIFIED, (
            f"{matched} of {bits} bits match; {needed} are needed in {ways}"
            + (hint if mapping == "search" else "")
        )
    scheme = schemes.of(finding.mark)
    if key.kind == "raw":
        own = scheme.name == "neuralmark"
        return UNPROVEN, RAW_REASON if own else f"{CHOSEN_REASON} ({scheme.name}: {scheme.theory})"
    return VERIFIED, f"{matched} of {bits} bits match; {needed} would have sufficed in {ways}"


def _median(values: Float) -> float:
    """As numpy's, which would import its masked arrays for it."""
    ordered = np.sort(values)
    middle = len(ordered) // 2
    return float(ordered[middle] if len(ordered) % 2 else ordered[middle - 1 : middle + 1].mean())


def _histogram(scaled: Float) -> Histogram:
    low, high = min(float(scaled.min()), 0.0), max(float(scaled.max()), 0.0)
    reach = max(abs(low), abs(high)) or 1.0
    step = 2 * reach / 40
    edges = np.arange(np.floor(low / step), np.ceil(high / step) + 1) * step
    edges = edges if len(edges) > 1 else np.array([0.0, step])
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)  # against rounding
    matched, _ = np.histogram(scaled[scaled > 0], edges)
    missed, _ = np.histogram(scaled[scaled <= 0], edges)
    return Histogram(
        tuple(float(edge) for edge in edges),
        tuple(int(count) for count in matched),
        tuple(int(count) for count in missed),
    )
