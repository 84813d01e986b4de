"""Whether a verdict still holds: verified again in the way it records, and compared by points."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from neuralmark.anchors.coarse import USUAL_BITS
from neuralmark.keys.key import Key
from neuralmark.records import Claim, ClaimedAnchor, Digest, Verdict, placement_list, to_json
from neuralmark.version import __version__

RECHECK_FORMAT = "neuralmark-recheck/1"

_CLOSE = 1e-6
"""Sums of other machines may differ in the last digits; what is rounded differs by less."""

_ROUNDED = 2e-4
"""The same of cosines, shares and scores, which are rounded to four digits or more."""


@dataclass(frozen=True)
class RecheckPoint:
    """One thing that the verdict says, and what is found now."""

    name: str
    then: Any
    now: Any
    holds: bool | None
    """None: told, but the verdict does not stand or fall with it, or it was not compared."""


@dataclass(frozen=True)
class Recheck:
    """A verdict of then against the same verification now, point by point.

    Attributes:
        verdict: The verdict that was checked.
        points: What was compared, and what of it holds.
        again: The verdict of now; None where none could be given.
        reason: Why none could be given, or why it may differ; empty where there is nothing to say.
        version: Version that checked it.

    Examples:
        >>> verdict = neuralmark.verify("marked.safetensors", key)
        >>> found = neuralmark.recheck(verdict, "model.safetensors", key)
        >>> found.holds, "bits matched" in [point.name for point in found.broken]
        (False, True)
    """

    verdict: Verdict
    points: tuple[RecheckPoint, ...]
    again: Verdict | None = None
    reason: str = ""
    version: str = __version__

    @property
    def holds(self) -> bool:
        """Whether the verdict still holds: no point speaks against it."""
        return self.again is not None and not self.broken

    @property
    def broken(self) -> tuple[RecheckPoint, ...]:
        """The points that speak against it."""
        return tuple(point for point in self.points if point.holds is False)

    def __bool__(self) -> bool:
        """Refuse to be a bare truth value: ask for `.holds`."""
        raise TypeError("a Recheck is more than a bool: use recheck.holds")

    def __str__(self) -> str:
        """One line; `points` has everything."""
        if self.holds:
            return f"the verdict holds: {self.verdict}"
        names = ", ".join(point.name for point in self.broken)
        return f"the verdict does not hold: {names or self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """As `neuralmark recheck --json` prints it; for owner and judge.

        Returns:
            Plain values, by name.

        Examples:
            >>> verdict = neuralmark.verify("marked.safetensors", key)
            >>> neuralmark.recheck(verdict, "marked.safetensors", key).to_dict()["holds"]
            True
        """
        return {
            "format": RECHECK_FORMAT,
            "version": self.version,
            "holds": self.holds,
            "reason": self.reason,
            "points": [
                {"name": point.name, "then": point.then, "now": point.now, "holds": point.holds}
                for point in self.points
            ],
            "verdict": self.verdict.to_dict(),
            "again": None if self.again is None else self.again.to_dict(),
        }

    def to_json(self) -> str:
        """Readable JSON.

        Returns:
            The text of `to_dict`, ending in a line break.

        Examples:
            >>> verdict = neuralmark.verify("marked.safetensors", key)
            >>> found = neuralmark.recheck(verdict, "marked.safetensors", key)
            >>> found.to_json().splitlines()[1]
            '  "format": "neuralmark-recheck/1",'
        """
        return to_json(self.to_dict())


@dataclass(frozen=True)
class Way:
    """How a verdict was reached: by a claim, by names of tensors, or (neither) by search."""

    claim: Claim | None = None
    tensors: Sequence[str] | None = None


def way_of(verdict: Verdict, key: Key) -> Way:
    """The way of looking that a verdict records.

    A claim that was followed is stood in for by one of the placement that the verdict has: it
    leads to the same ways of looking, and so to the same number of trials.
    """
    if verdict.claim_digest is None and verdict.mapping != "names":
        return Way()
    plain = verdict.orientation == "stored" and not verdict.missing
    if verdict.claim_digest is None and plain:
        return Way(tensors=[name for name, _ in verdict.placement])
    return Way(claim=_standing_in(verdict, key))


def _standing_in(verdict: Verdict, key: Key) -> Claim:
    digest = verdict.anchor_digest
    anchor = None if digest is None else ClaimedAnchor(digest, USUAL_BITS)
    return Claim(
        key.fingerprint,
        key.commitment,
        key.parameters,
        verdict.placement,
        verdict.checkpoint_digest,
        anchor=anchor,
    )


def not_this_key(verdict: Verdict, key: Key) -> Recheck:
    """What is left to say where the key is another: no model need be read for it."""
    why = f"the verdict is of the key {verdict.fingerprint[:60]}, not of this one"
    return Recheck(verdict, (_key(verdict, key.fingerprint),), reason=why)


def not_found(verdict: Verdict, why: str) -> Recheck:
    """What is left to say where the model has no place for what the verdict read."""
    points = (
        _key(verdict, verdict.fingerprint),
        RecheckPoint("tensors", _tensors(verdict), None, holds=False),
    )
    return Recheck(verdict, points, reason=why)


def compared(then: Verdict, now: Verdict, claim: Claim | None) -> Recheck:
    """Two verdicts by points; `claim` is the one that was given to be followed."""
    among, rest = divmod(then.trials, now.trials) if now.trials else (1, 0)
    why = ""
    if among > 1 and not rest:
        why = (
            f"the verdict counts {among} times as many ways of looking: if it is one of a scan, or"
            f" of looks at other models, check it again with VerifyOptions(among={among})"
        )
    return Recheck(then, tuple(_points(then, now, claim)), now, why)


def _points(then: Verdict, now: Verdict, claim: Claim | None) -> Iterator[RecheckPoint]:
    yield _key(then, now.fingerprint)
    yield _same("kind of key", then.key_kind, now.key_kind)
    yield _same("parameters", then.parameters.to_dict(), now.parameters.to_dict())
    yield _claim(then, claim)
    yield _files(then.checkpoint_digest, now.checkpoint_digest)
    if then.pins or now.pins:
        yield RecheckPoint("versions behind URLs", then.pins, now.pins, holds=None)
    yield _same("headers", then.checkpoint_digest.headers, now.checkpoint_digest.headers)
    yield _same("tensor digests", then.checkpoint_digest.tensors, now.checkpoint_digest.tensors)
    yield _same("anchor", then.anchor_digest, now.anchor_digest)
    if then.trigger_digest or now.trigger_digest:
        yield _same("triggers", then.trigger_digest, now.trigger_digest)
    yield _same("placement", placement_list(then.placement), placement_list(now.placement))
    yield _same("tensors", _tensors(then), _tensors(now))
    yield _same("way of reading", _reading(then), _reading(now))
    yield _same("tensors not read", _gaps(then), _gaps(now))
    yield _same("bits", then.bits, now.bits)
    yield _same("bits matched", then.matched, now.matched)
    yield _readings(then, now)
    yield from _aligned(then, now)
    yield _same("boundary", then.boundary, now.boundary)
    yield _same("trials", then.trials, now.trials)
    yield _near("bound", then.bound_log2, now.bound_log2)
    yield _near("bound of a full match", then.full_match_bound_log2, now.full_match_bound_log2)
    yield _near("smallest margin", then.smallest_margin, now.smallest_margin)
    yield _near("median margin", then.median_margin, now.median_margin)
    yield _near("certified radius", then.certified_radius, now.certified_radius)
    yield _near("relative radius", then.certified_radius_relative, now.certified_radius_relative)
    yield _same("weights looked at", then.coverage.share, now.coverage.share)
    yield _same("status", then.status, now.status)
    yield RecheckPoint("reason", then.reason, now.reason, holds=None)
    yield RecheckPoint("library version", then.version, now.version, holds=None)


def _key(then: Verdict, fingerprint: str) -> RecheckPoint:
    return _same("key", then.fingerprint, fingerprint)


def _claim(then: Verdict, claim: Claim | None) -> RecheckPoint:
    """Without the claim itself its digest cannot be compared, only its placement be followed."""
    if claim is None:
        return RecheckPoint("claim", then.claim_digest, None, holds=None)
    return _same("claim", then.claim_digest, claim.digest)


def _files(then: Digest, now: Digest) -> RecheckPoint:
    """By content: a file may have another name by now. A live model has no files."""
    if then.files is None or now.files is None:
        return RecheckPoint("whole files", then.files, now.files, holds=None)
    alike = sorted(then.files.values()) == sorted(now.files.values())
    return RecheckPoint("whole files", then.files, now.files, alike)


def _tensors(verdict: Verdict) -> list[list[Any]]:
    return [[t.name, t.stored_name, t.dtype, list(t.shape)] for t in verdict.tensors]


def _reading(verdict: Verdict) -> list[str]:
    return [verdict.mapping, verdict.orientation, verdict.scaling]


def _readings(then: Verdict, now: Verdict) -> RecheckPoint:
    """Without the anchor there is one reading, which the other points are about."""
    told, found = ([[r.kind, r.matched] for r in v.readings] for v in (then, now))
    return RecheckPoint("readings", told, found, None if not found else told == found)


def _aligned(then: Verdict, now: Verdict) -> Iterator[RecheckPoint]:
    """What became of the weights; told only where now less was done for it, or no anchor is there.

    Cosines may differ in the last digits on another machine.
    """
    if not (then.readings or now.readings):
        return
    told, found = (None if v.alignment is None else v.alignment.to_dict() for v in (then, now))
    for each in (told, found):
        if each is not None:
            del each["seconds"]
    other = told is not None and found is not None and told["effort"] != found["effort"]
    unknown = not now.readings or other
    yield RecheckPoint("alignment", told, found, None if unknown else _alike(told, found))
    untold = unknown or then.lineage is None  # verdicts of the first days have none
    score = None if untold else _alike(then.lineage, now.lineage)
    yield RecheckPoint("lineage", then.lineage, now.lineage, score)


def _alike(then: Any, now: Any) -> bool:
    """Whether two values as JSON has them are the same, up to the last digits of fractions."""
    if isinstance(then, dict) and isinstance(now, dict):
        return set(then) == set(now) and all(_alike(then[name], now[name]) for name in then)
    if isinstance(then, list) and isinstance(now, list):
        return len(then) == len(now) and all(map(_alike, then, now))
    if isinstance(then, float) and isinstance(now, float):
        return math.isclose(then, now, abs_tol=_ROUNDED)
    return bool(then == now)


def _gaps(verdict: Verdict) -> list[str]:
    return [gap.name for gap in verdict.missing]


def _same(name: str, then: Any, now: Any) -> RecheckPoint:
    return RecheckPoint(name, then, now, then == now)


def _near(name: str, then: float | None, now: float | None) -> RecheckPoint:
    if then is None or now is None:
        return _same(name, then, now)
    return RecheckPoint(name, then, now, math.isclose(then, now, rel_tol=_CLOSE, abs_tol=_CLOSE))
