"""What a key shows in a model, and when a judge calls its mark present, traces or absent."""

from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

from neuralmark.core.bound import SECURITY_BITS
from neuralmark.records import NOT_VERIFIED, VERIFIED, Fields, Verdict
from neuralmark.records.parts import MAPPINGS, TensorMapping

Presence = Literal["present", "traces", "absent", "unproven"]
"""Whether a mark is in a model, as far as a judge may say."""
PRESENT: Final = "present"
TRACES: Final = "traces"
ABSENT: Final = "absent"
UNPROVEN: Final = "unproven"

ABSENT_ABOVE = -64.0
"""A mark is absent where luck alone matches as well with a chance above 2^-64.

Keys can be tried until one matches a given model a little: 2^20 of them take a minute.
"""

_REMARKABLE = -20.0
"""From here on the match of a key that can prove nothing is called one; it decides nothing."""


@dataclass(frozen=True)
class Sighting:
    """What one party's key shows in one model."""

    party: str
    model: str
    state: Presence
    reason: str
    matched: int | None = None
    bits: int | None = None
    boundary: int | None = None
    bound_log2: float | None = None
    trials: int | None = None
    mapping: TensorMapping | None = None
    tensors: tuple[str, ...] = ()

    @classmethod
    def of(cls, party: str, model: str, verdict: Verdict | None) -> "Sighting":
        """From a verdict; None where the model has no tensor that could hold the mark."""
        if verdict is None:
            why = "the model has no tensors of the names or shapes that this mark would be in"
            return cls(party, model, ABSENT, why)
        return cls(
            party=party,
            model=model,
            state=state_of(verdict),
            reason=_found(verdict),
            matched=verdict.matched,
            bits=verdict.bits,
            boundary=verdict.boundary,
            bound_log2=verdict.bound_log2,
            trials=verdict.trials,
            mapping=verdict.mapping,
            tensors=tuple(tensor.stored_name for tensor in verdict.tensors),
        )

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed ruling; raises on anything of the wrong form."""
        sighting = cls(
            party=given.text("party"),
            model=given.text("model"),
            state=given.one_of("state", get_args(Presence)),
            reason=given.text("reason"),
            matched=given.count_or_none("matched"),
            bits=given.count_or_none("bits"),
            boundary=given.count_or_none("boundary"),
            bound_log2=given.number_or_none("bound_log2"),
            trials=given.count_or_none("trials"),
            mapping=given.one_of("mapping", MAPPINGS) if given.text_or_none("mapping") else None,
            tensors=given.texts("tensors"),
        )
        counts = (sighting.matched, sighting.bits, sighting.bound_log2, sighting.trials)
        known = [count is not None for count in counts]
        if any(known) is not all(known) or (sighting.matched or 0) > (sighting.bits or 0):
            raise ValueError("the counts of a sighting contradict each other")
        return sighting


def _found(verdict: Verdict) -> str:
    """What was found, without what `verify` advises its user to do."""
    said = f"{verdict.matched} of {verdict.bits} bits match"
    if verdict.boundary is None:
        return f"{said}; so few bits can never go below 2^-{SECURITY_BITS}"
    if verdict.status not in (VERIFIED, NOT_VERIFIED) or not verdict.bits_counted:
        return verdict.reason
    ways = f"{verdict.trials} ways" if verdict.trials > 1 else "one way"
    needed = "would have sufficed" if verdict.verified else "are needed"
    return f"{said}; {verdict.boundary} {needed} in {ways} of looking"


def state_of(verdict: Verdict) -> Presence:
    """Present, traces, absent; or unproven, which is not a mark, for nobody and against nobody.

    A key that can be fitted to a model (a raw matrix) or that is too short to prove anything
    must not leave traces either: they would be as easy to make up as a match.
    """
    if verdict.status == VERIFIED:
        return PRESENT
    if verdict.status == NOT_VERIFIED and verdict.key_kind == "native":
        return ABSENT if verdict.bound_log2 > ABSENT_ABOVE else TRACES
    return ABSENT if verdict.bound_log2 > _REMARKABLE else UNPROVEN
