"""Marks in activations under attack: a live module is read at its triggers, before and after."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from neuralmark import api, schemes
from neuralmark.attacks.contract import WEIGHTS, Outcome
from neuralmark.attacks.engine.result import Result
from neuralmark.attacks.engine.subject import Subject
from neuralmark.errors import (
    NoMarkError,
    NonFiniteError,
    ParameterError,
    TriggerMismatchError,
    UnknownTensorError,
    UnsuitableTensorError,
)
from neuralmark.keys.key import Key
from neuralmark.records import UNPROVABLE, UNPROVEN, Claim, Verdict
from neuralmark.triggers.triggers import Triggers

RESHAPED = "the layers have other shapes now, and the network cannot be run with them"
_BEYOND_LUCK = 4.0
"""So many standard deviations above one half of the bits, a mark was trained."""
GONE = (NonFiniteError, TriggerMismatchError, UnknownTensorError, UnsuitableTensorError)
"""What reading raises where an attack left no such layer, or nothing to read in it."""


def reads_activations(key: Key) -> bool:
    """Whether a key's mark is read from activations."""
    return isinstance(schemes.get(key.parameters.scheme), schemes.TriggerScheme)


def refuse_triggers(triggers: Any) -> None:
    """Triggers are of no use to a key whose mark is in weights."""
    if triggers is not None:
        raise TriggerMismatchError(
            "triggers are for a key whose scheme reads activations: leave triggers=... out"
        )


def refuse_anchor(anchor: Any) -> None:
    """An anchor is of no use to a key whose mark is in activations."""
    if anchor is not None:
        raise ParameterError(
            "an anchor is of weights, and this key's scheme reads activations: leave anchor=... out"
        )


def carries(verdict: Verdict) -> bool:
    """Whether the mark is there: proven, or matching as far as such a key can."""
    full = verdict.status == UNPROVABLE and verdict.matched == verdict.bits
    return verdict.verified or verdict.status == UNPROVEN or full


def no_mark(subject: Subject, verdict: Verdict, hint: str) -> NoMarkError:
    """The error to raise where there is no mark to attack."""
    return NoMarkError(
        f"{subject.label} does not carry this key's mark ({verdict.matched} of {verdict.bits}"
        f" bits): nothing to attack; {hint}"
    )


def _too_weak(verdict: Verdict) -> str:
    """What to do where the mark is not there; triggers were given, and its layer was named."""
    lucky = verdict.bits / 2 + _BEYOND_LUCK * math.sqrt(verdict.bits) / 2
    if verdict.matched <= lucky:
        return (
            "these are as many as luck gives: give the model that the mark was trained in, with the"
            " claim and the triggers of that training (claim=..., triggers=...)"
        )
    hint = "its mark is too weak: train it longer or with a larger strength"
    scheme = schemes.get(verdict.parameters.scheme)
    if isinstance(scheme, schemes.TriggerScheme) and scheme.labelled:
        hint += ", or with fewer triggers of a class than the layer has units"
    return hint


def carried_live(
    subject: Subject,
    key: Key,
    claim: Claim | str | Path | None,
    triggers: Triggers | str | Path | None,
    *,
    demand: bool = True,
) -> Verdict:
    """The verdict on a live module before; one without the mark cannot be attacked for it."""
    if subject.module is None:
        schemes.require_weights(key.parameters)
    verdict = api.verify(subject.module or subject.weights, key, claim=claim, triggers=triggers)
    if demand and not carries(verdict):
        raise no_mark(subject, verdict, _too_weak(verdict))
    return verdict


def judged_live(
    result: Result, before: Verdict, key: Key, triggers: Triggers | str | Path | None
) -> Result:
    """An attack's result with the verdicts on the owner's key, where its mark was before."""
    if result.kind != WEIGHTS:
        return replace(result, before=before)
    if result.model is None:
        return replace(result, before=before, unreadable=RESHAPED)
    layers = [name for name, _ in before.placement]
    try:
        after = api.verify(result.model, key, tensors=layers, triggers=triggers)
    except GONE as error:
        return replace(result, before=before, unreadable=str(error))
    if after.placement != before.placement:
        told = f"{layers[0]!r} gives {after.placement[0][1]} now, and gave {before.placement[0][1]}"
        return replace(result, before=before, unreadable=told)
    return replace(result, before=before, after=after)


def forged_live(subject: Subject, outcome: Outcome) -> Verdict | None:
    """The verdict on a forged key at the triggers that its forger chose."""
    if outcome.key is None or subject.module is None:
        return None
    layers = [name for name, _ in outcome.placement]
    return api.verify(subject.module, outcome.key, tensors=layers, triggers=outcome.triggers)
