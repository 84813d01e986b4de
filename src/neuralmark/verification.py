"""Reading a mark back from a checkpoint and judging it: a Verdict, never a bare bool.

What will be tried is fixed before anything is read, and every way counts as a trial, so the bound
holds whatever the suspect file looks like.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.core import bound, readout
from neuralmark.core.carriers import expected_per_pool
from neuralmark.core.certificate import certified_radius
from neuralmark.core.key import Float, Mark, Placement
from neuralmark.errors import (
    ClaimMismatchError,
    NonFiniteError,
    TooFewCarriersError,
    UnknownTensorError,
)
from neuralmark.keyfile import Key
from neuralmark.placement import (
    Tensor,
    auto,
    catalogue,
    placement_of,
    require_usable,
    select,
    suggestion,
)
from neuralmark.reading import Progress, Reading, digest_of, read_marked, require_carriers
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


@dataclass(frozen=True)
class Attempt:
    """One way of reading the suspect: the placement of the key, and the tensors read for it."""

    placement: Placement
    tensors: tuple[Tensor, ...]
    mapping: str
    transposed: bool = False


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
    known = catalogue(checkpoint)
    if isinstance(claim, str | Path):
        claim = Claim.load(claim)
    if claim is not None:
        check_claim(claim, key)
        attempts = claimed(known, claim.placement)
    elif tensors:
        chosen = select(known, tensors)
        attempts = [Attempt(placement_of(chosen), chosen, "names")]
    else:
        attempts = searched(known, key)
    finding = best_finding(checkpoint, key, attempts, progress)
    return judge(finding, checkpoint, key, len(attempts), full_digest=full_digest)


def check_claim(claim: Claim, key: Key) -> None:
    """Refuse a claim of another key, or one whose parameters disagree with the key's."""
    if claim.fingerprint != key.fingerprint or claim.commitment != key.commitment:
        raise ClaimMismatchError(
            f"the claim is of the key {claim.fingerprint[:60]}, not of this one"
            f" ({key.fingerprint}); give the key that made the claim, or leave the claim out"
        )
    if claim.parameters != key.parameters:
        raise ClaimMismatchError(
            "the claim's parameters disagree with the key's; it was edited: rebuild it with"
            " 'neuralmark claim MODEL --key KEY'"
        )


def claimed(known: Sequence[Tensor], placement: Placement) -> list[Attempt]:
    """Map the claim's tensors to the suspect's: by name, else by order among equal shapes."""
    by_name = {tensor.name: tensor for tensor in known}
    if all(name in by_name for name, _ in placement):
        chosen = tuple(by_name[name] for name, _ in placement)
        for tensor in chosen:
            require_usable(tensor)
        for transposed in (False, True):
            if _fits(chosen, placement, transposed):
                return [Attempt(placement, chosen, "names", transposed)]
    ways = [_by_shape(known, placement, transposed) for transposed in (False, True)]
    attempts = [attempt for attempt in ways if attempt is not None]
    if not attempts:
        name, shape = next(((n, s) for n, s in placement if n not in by_name), placement[0])
        found = f" (here it has the shape {by_name[name].info.shape})" if name in by_name else ""
        raise UnknownTensorError(
            f"the claim's tensor {name!r} of shape {shape} is not in this model{found},"
            f" nor are tensors of the same shapes{suggestion(name, by_name)}"
        )
    return attempts


def searched(known: Sequence[Tensor], key: Key) -> list[Attempt]:
    """The `auto` list, and every single tensor that is large enough."""
    parameters = key.parameters
    lists = [auto(known, parameters).tensors]
    lists += [(tensor,) for tensor in known if tensor.obstacle is None]
    attempts: dict[Placement, Attempt] = {}
    for chosen in lists:
        total = sum(tensor.info.size for tensor in chosen)
        if expected_per_pool(total, parameters.pools, parameters.rounds) >= 1:
            placement = placement_of(chosen)
            attempts.setdefault(placement, Attempt(placement, chosen, "search"))
    if not attempts:
        needed = parameters.pools * 2**parameters.rounds
        usable = sum(tensor.obstacle is None for tensor in known)
        raise TooFewCarriersError(
            f"no tensor of this model is large enough for this key ({needed:,} weights at least;"
            f" {usable} of {len(known)} tensors are usable): give --claim or --tensor"
        )
    return list(attempts.values())


def best_finding(
    checkpoint: Checkpoint, key: Key, attempts: Sequence[Attempt], progress: Progress | None = None
) -> Finding:
    """Try the attempts in order; stop at the first that reaches the boundary for all of them."""
    needed = bound.boundary(key.parameters.bits, len(attempts))
    best: Finding | None = None
    failure: Exception | None = None
    for attempt in attempts:
        try:
            finding = find(checkpoint, key, attempt, progress)
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


def find(
    checkpoint: Checkpoint, key: Key, attempt: Attempt, progress: Progress | None = None
) -> Finding:
    """Read one attempt's tensors and take the margins of all bits."""
    mark = key.at(attempt.placement)
    carriers = require_carriers(mark, attempt.placement)
    reading = read_marked(
        checkpoint,
        attempt.tensors,
        carriers,
        transposed=attempt.transposed,
        progress=progress,
    )
    return Finding(attempt, mark, reading, margins_of(mark, reading.pooled))


def margins_of(mark: Mark, pooled: Float) -> Float:
    """Margins of all bits, in float64."""
    z = readout.logits(pooled, mark.matrix.astype(np.float64))
    margins: Float = readout.margins(z, mark.signs)
    return margins


def judge(
    finding: Finding,
    checkpoint: Checkpoint,
    key: Key,
    trials: int,
    *,
    full_digest: bool = False,
    label: str | None = None,
) -> Verdict:
    """The verdict on what was found in `trials` ways of looking."""
    bits, matched = key.parameters.bits, finding.matched
    needed = bound.boundary(bits, trials)
    status, reason = _status(key, matched, needed, trials)
    reading, attempt = finding.reading, finding.attempt
    carriers = reading.carriers
    radius = relative = None
    if status == VERIFIED:
        assert needed is not None
        radius = certified_radius(finding.margins, needed, carriers.per_pool, finding.mark.matrix)
        relative = radius / reading.norm if np.isfinite(reading.norm) and reading.norm else None
    scaled = finding.margins / (reading.sigma_z or 1.0)
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
        median_margin=float(np.median(scaled)),
        margin_histogram=_histogram(scaled),
        match_map=np.packbits(finding.margins > 0).tobytes().hex(),
        certified_radius=radius,
        certified_radius_relative=relative,
        model=label or str(checkpoint.path),
        checkpoint_digest=digest_of(checkpoint, reading.digests, full=full_digest),
    )


def _status(key: Key, matched: int, needed: int | None, trials: int) -> tuple[str, str]:
    bits = key.parameters.bits
    ways = f"{trials} ways of looking" if trials > 1 else "one way of looking"
    if needed is None:
        best = bound.bound_log2(bits, bits, trials)
        return UNPROVABLE, (
            f"{bits} bits can never go below 2^-{bound.SECURITY_BITS} in {ways}: even a full match"
            f" gives only 2^{best:.2f}; make keys of 256 bits or more"
        )
    if matched < needed:
        return NOT_VERIFIED, (f"{matched} of {bits} bits match; {needed} are needed in {ways}")
    if key.kind == "raw":
        return UNPROVEN, RAW_REASON
    return VERIFIED, (f"{matched} of {bits} bits match; {needed} would have sufficed in {ways}")


def _fits(chosen: Sequence[Tensor], placement: Placement, transposed: bool) -> bool:
    shapes = [tensor.info.shape for tensor in chosen]
    if transposed:
        return all(
            len(shape) == 2 and shape[::-1] == wanted
            for shape, (_, wanted) in zip(shapes, placement, strict=True)
        )
    return all(shape == wanted for shape, (_, wanted) in zip(shapes, placement, strict=True))


def _by_shape(known: Sequence[Tensor], placement: Placement, transposed: bool) -> Attempt | None:
    """The fixed rule: the i-th tensor of a shape in the claim is the i-th one in the suspect."""
    if transposed and any(len(shape) != 2 for _, shape in placement):
        return None
    usable = sorted(
        (tensor for tensor in known if tensor.obstacle is None), key=lambda t: t.info.shape
    )
    stock = {shape: iter(list(group)) for shape, group in groupby(usable, lambda t: t.info.shape)}
    chosen = []
    for _, shape in placement:
        tensor = next(stock.get(shape[::-1] if transposed else shape, iter(())), None)
        if tensor is None:
            return None
        chosen.append(tensor)
    return Attempt(placement, tuple(chosen), "shapes", transposed)


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
