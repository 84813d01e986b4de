"""From what was read to a Verdict: matches against the boundary, and what could not be read."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuralmark import schemes
from neuralmark.core import bound
from neuralmark.core.certificate import certified_radius
from neuralmark.core.key import Float, Mark, Placement
from neuralmark.keys.key import Key
from neuralmark.marking import coverage
from neuralmark.marking.placement import Tensor
from neuralmark.marking.reading import Attempt, Reading, Suspect
from neuralmark.records import (
    LEAST_FOUND,
    NOT_VERIFIED,
    UNPROVABLE,
    UNPROVEN,
    UNREADABLE,
    VERIFIED,
    Alignment,
    Coverage,
    Digest,
    Gap,
    Histogram,
    TensorRead,
    Verdict,
)
from neuralmark.records.lineage import NOT_LOOKED_FOR
from neuralmark.records.verdict import Status

AS_READ = "F32"
"""The type that weights are put back in order in, whatever they are stored in."""

RAW_REASON = (
    "the bits match, but this key is a matrix made elsewhere, and a matrix can be fitted to a"
    " model that carries no mark; only a key derived from a secret can verify"
)

BESIDE = "; some weights of these tensors that do not carry the mark are NaN or infinite"

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


@dataclass(frozen=True)
class Looked:
    """How a suspect was looked at: every way that counts, and what could not be read."""

    trials: int
    coverage: Coverage
    ways: str = ""
    """Which they are, in words; empty where others tell, or where they are too many."""

    @classmethod
    def at(
        cls,
        suspect: Suspect,
        attempts: Sequence[Attempt],
        broken: Iterable[str] = (),
        trials: int | None = None,
    ) -> "Looked":
        """In these ways; `broken` are stored names of tensors that hold NaN or infinity."""
        known = suspect.tensors()
        trials = len(attempts) if trials is None else trials
        read = [tensor for attempt in attempts for tensor in attempt.read_tensors()]
        if any(attempt.mapping == "search" for attempt in attempts):
            return cls(trials, coverage.of_search(known, read, set(broken)))
        first = attempts[0]
        wanted = sum(math.prod(shape) for _, shape in first.placement)
        ways = _ways(attempts) if trials == len(attempts) else ""
        return cls(trials, coverage.of_claim(known, read, wanted, first.gaps), ways)

    @classmethod
    def restored(
        cls,
        suspect: Suspect,
        placement: Placement,
        found: float,
        trials: int,
        broken: Collection[Tensor] = (),
    ) -> "Looked":
        """By position, and put back in order: this share of the marked weights was found.

        `broken` are those tensors under the marked names that hold NaN or infinity.
        """
        known = suspect.tensors()
        whole, unread = coverage.weights_of(known), coverage.unreadable(known)
        wanted = sum(math.prod(shape) for _, shape in placement)
        read = min(whole, round(found * wanted))
        spoilt = coverage.weights_of(broken)
        broken = broken if spoilt >= coverage.FROM * wanted else ()
        spoilt = spoilt if broken else 0
        lost = min(coverage.weights_of(unread) + spoilt, wanted - round(found * wanted))
        why = coverage.reasons(unread, broken) if lost else ""
        return cls(trials, Coverage(whole, read, wanted, lost, why))


def judge(
    finding: Finding, suspect: Suspect, key: Key, looked: Looked, *, full_digest: bool = False
) -> Verdict:
    """The verdict on what was found, for this number of ways of looking."""
    digest = suspect.digest(finding.reading.digests, full=full_digest)
    return _judged(finding, suspect, key, looked, digest)


def _judged(
    finding: Finding, suspect: Suspect, key: Key, looked: Looked, digest: Digest
) -> Verdict:
    bits, matched, trials = key.parameters.bits, finding.matched, looked.trials
    needed = bound.boundary(bits, trials)
    status, reason = _status(key, finding, needed, looked)
    reading, attempt = finding.reading, finding.attempt
    reason += "" if np.isfinite(reading.norm) else BESIDE
    carriers = reading.carriers
    radius = relative = None
    scheme = schemes.of(finding.mark)
    linear = scheme.linear
    if status == VERIFIED and linear and not attempt.by_rows:  # rows: of the levelled weights
        assert needed is not None
        radius = certified_radius(
            finding.margins, needed, carriers.per_pool, scheme.steepest(finding.mark)
        )
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
            if tensor is not None
        ),
        mapping=attempt.mapping,
        orientation="transposed" if attempt.transposed else "stored",
        smallest_margin=float(scaled.min()),
        median_margin=_median(scaled),
        margin_histogram=_histogram(scaled),
        certified_radius=radius,
        certified_radius_relative=relative,
        model=suspect.label,
        checkpoint_digest=digest,
        coverage=looked.coverage,
        missing=attempt.gaps,
        scaling="rows" if attempt.by_rows else "stored",
        anchor_digest=attempt.anchor.hex() or None,
    )


def judge_aligned(
    finding: Finding,
    suspect: Suspect,
    key: Key,
    looked: Looked,
    record: Alignment,
    digest: Digest,
) -> Verdict:
    """The verdict on weights that were put back in order.

    The aligner reads the whole file, so the verdict names its digest. No radius is certified: a
    change of the suspect may change how it is put in order.
    """
    verdict = _judged(finding, suspect, key, looked, digest)
    fates = record.tensors
    verdict = replace(
        verdict,
        tensors=tuple(
            TensorRead(name, fate.source, AS_READ, shape)
            for (name, shape), fate in zip(finding.attempt.placement, fates, strict=True)
            if fate.found
        ),
        missing=tuple(
            Gap(name, math.prod(shape), fate.changes[-1] if fate.changes else "")
            for (name, shape), fate in zip(finding.attempt.placement, fates, strict=True)
            if not fate.found
        ),
        certified_radius=None,
        certified_radius_relative=None,
    )
    if record.enough:
        return verdict
    status: Status = UNREADABLE if looked.coverage.unreadable else NOT_VERIFIED
    why = (
        f"only {_share(record.found)} of the marked weights were found in this model, and"
        f" {_share(LEAST_FOUND)} are needed to say anything"
    )
    if looked.coverage.unreadable:
        why += f"; {_unread(looked.coverage, ())}"
    return replace(verdict, status=status, reason=why)


def elsewhere(matched: int, record: Alignment) -> str:
    """Words for a reading that was put back in order, where reading by position gave more."""
    return (
        f"; put back in order, {matched}, with {_share(record.found)} of the marked weights found"
    )


def held_back(record: Alignment, placement: Placement) -> str:
    """Words for what the options kept from being found; empty where they kept nothing."""
    from neuralmark.anchors.aligning.contract import limit_needed  # only where something is aligned

    limited = [fate for fate in record.tensors if limit_needed(fate.changes)]
    words = ""
    if limited:
        needed = max(limit_needed(fate.changes) for fate in limited)
        words = (
            f"; {len(limited)} of {len(record.tensors)} tensors were too large to align: raise the"
            f" limit (VerifyOptions(align_limit=...)) to {needed}"
        )
    sizes = [math.prod(shape) for _, shape in placement]
    looked = sum(
        size
        for size, fate in zip(sizes, record.tensors, strict=True)
        if not any(change.endswith(NOT_LOOKED_FOR) for change in fate.changes)
    )
    if looked < sum(sizes):
        words += (
            f"; only {_share(looked / sum(sizes))} of the marked weights were looked for: raise the"
            " effort (VerifyOptions(effort=...))"
        )
    return words


def nothing_read(
    suspect: Suspect, key: Key, placement: Placement, gaps: tuple[Gap, ...], full_digest: bool
) -> Verdict:
    """The verdict where nothing that was to be read can be: it says why, and proves nothing."""
    bits, known = key.parameters.bits, suspect.tensors()
    wanted = sum(math.prod(shape) for _, shape in placement)
    seen = (
        coverage.of_claim(known, (), wanted, gaps)
        if placement
        else coverage.of_search(known, (), set())
    )
    return Verdict(
        status=UNREADABLE,
        reason=_unread(seen, gaps),
        matched=0,
        bits=bits,
        boundary=bound.boundary(bits),
        bound_log2=0.0,
        full_match_bound_log2=bound.bound_log2(bits, bits),
        trials=0,
        parameters=key.parameters,
        key_kind=key.kind,
        fingerprint=key.fingerprint,
        placement=placement,
        tensors=(),
        mapping="names" if placement else "search",
        orientation="stored",
        smallest_margin=0.0,
        median_margin=0.0,
        margin_histogram=Histogram((0.0, 1.0), (0,), (0,)),
        certified_radius=None,
        certified_radius_relative=None,
        model=suspect.label,
        checkpoint_digest=suspect.digest({}, full=full_digest),
        coverage=seen,
        missing=gaps,
    )


def _status(key: Key, finding: Finding, needed: int | None, looked: Looked) -> tuple[Status, str]:
    bits, matched, trials = key.parameters.bits, finding.matched, looked.trials
    ways = f"{trials} ways of looking{looked.ways}" if trials > 1 else "one way of looking"
    filled = _filled(finding.attempt)
    if needed is None:
        best = bound.bound_log2(bits, bits, trials)
        return UNPROVABLE, (
            f"{bits} bits can never go below 2^-{bound.SECURITY_BITS} in {ways}: even a full match"
            f" gives only 2^{best:.2f}; make keys of 256 bits or more"
        )
    if matched < needed:
        found = f"{matched} of {bits} bits match; {needed} are needed in {ways}{filled}"
        if looked.coverage.unreadable_share >= coverage.FROM:
            return UNREADABLE, f"{_unread(looked.coverage, ())}; of the rest, {found}"
        hint = (
            "; where tensors were marked by name, or some were added, removed or renamed since,"
            " only a claim (or the list of tensors) finds the mark"
        )
        return NOT_VERIFIED, found + (hint if not _by_name(finding.attempt) else "")
    scheme = schemes.of(finding.mark)
    if key.kind == "raw":
        own = scheme.name == "neuralmark"
        why = RAW_REASON if own else f"{CHOSEN_REASON} ({scheme.name}: {scheme.theory})"
        return UNPROVEN, why + filled
    return (
        VERIFIED,
        f"{matched} of {bits} bits match; {needed} would have sufficed in {ways}{filled}",
    )


def _ways(attempts: Sequence[Attempt]) -> str:
    """Words for the ways to read the tensors of a claim."""
    rows = sum(attempt.by_rows for attempt in attempts)
    found = len(attempts) - rows
    several = f"in {found} places or orders, each " if found > 1 else ""
    both = "as stored, and with every row divided by its size" if rows else "as stored"
    return f" ({several}{both})"


def _by_name(attempt: Attempt) -> bool:
    return attempt.mapping in ("names", "anchor") or bool(attempt.gaps)


def _filled(attempt: Attempt) -> str:
    """Words for tensors that zeros stand for."""
    if not attempt.gaps:
        return ""
    lost = sum(gap.weights for gap in attempt.gaps)
    total = sum(math.prod(shape) for _, shape in attempt.placement)
    return (
        f"; {len(attempt.gaps)} of the {len(attempt.placement)} tensors of the claim"
        f" ({_share(lost / total)} of its weights) are missing or cannot be read,"
        " and zeros stand for them"
    )


def _unread(seen: Coverage, gaps: Sequence[Gap]) -> str:
    """Words for weights that could not be read."""
    if seen.unreadable:
        return (
            f"{seen.unreadable:,} of {seen.wanted:,} weights ({_share(seen.unreadable_share)})"
            f" could not be read: {seen.why}"
        )
    name, why = (gaps[0].name, gaps[0].why) if gaps else ("", "there is nothing to read")
    return (
        f"of the {len(gaps)} tensors of the claim too few are in this model to look for the mark"
        f" (of {name[:80]!r}: {why})"
    )


def _share(share: float) -> str:
    return f"{100 * share:.3g} %"


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
