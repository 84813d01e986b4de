"""The robustness part of MPAI-NNW: modify the marked and the unmarked network, ask for the mark."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from neuralmark.attacks import name_of
from neuralmark.attacks.contract import Attack
from neuralmark.attacks.engine.arena import Arena, Counting, fight_all, fight_here
from neuralmark.attacks.engine.bench import NO_DATA, Bench
from neuralmark.attacks.engine.card import Skipped
from neuralmark.attacks.engine.modifications import Modifying
from neuralmark.attacks.engine.result import Result
from neuralmark.attacks.engine.standard_report import Modification, ModifiedPoint
from neuralmark.attacks.engine.subject import Subject
from neuralmark.attacks.engine.suite import needed
from neuralmark.errors import (
    MissingDataError,
)
from neuralmark.records import Status

OVER = ("rewrite", "overwrite")
"""Attacks that write marks of the owner's scheme, where that is read from weights."""

Outcomes = Mapping[Attack, Result | Skipped]


def modified(
    bench: Bench,
    wanted: Sequence[Modifying],
    original: Subject | None,
    progress: Counting | None,
) -> tuple[Modification, ...]:
    """Make every modification of both networks, and ask for the mark."""
    why = {attack: _obstacle(bench, attack) for each in wanted for _, attack in each.attacks}
    members = [attack for attack, words in why.items() if not words]
    if not members:
        reasons = "; ".join(dict.fromkeys(why.values()))
        raise MissingDataError(f"none of these modifications could be made here: {reasons}")
    refused = {attack: Skipped(name_of(attack), words) for attack, words in why.items() if words}
    marked: Outcomes = {**refused, **_fought(bench, bench.whole, members, progress, demand=True)}
    unmarked: Outcomes = {}
    if original is not None:
        unmarked = _fought(bench, original, members, progress, demand=False)
    return tuple(_modification(bench, each, marked, unmarked) for each in wanted)


def _modification(
    bench: Bench, made: Modifying, marked: Outcomes, unmarked: Outcomes
) -> Modification:
    points, reasons = [], []
    for value, attack in made.attacks:
        outcome = marked[attack]
        if isinstance(outcome, Result):
            points.append(_point(bench, value, outcome, unmarked.get(attack)))
        else:
            reasons.append(outcome.why)
    told = "; ".join(dict.fromkeys(reasons))
    return Modification(made.name, made.parameter, made.attack, tuple(points), told)


def _obstacle(bench: Bench, attack: Attack) -> str:
    if bench.activations and name_of(attack) in OVER:
        return "not made: the scheme reads activations, and these marks are written into weights"
    return NO_DATA if needed(attack) and not bench.live else ""


def _fought(
    bench: Bench,
    subject: Subject,
    members: Sequence[Attack],
    progress: Counting | None,
    *,
    demand: bool,
) -> Outcomes:
    """What came of each attack on this network; with the anchor only where the mark must be."""
    fight = _fought_live if bench.activations else _fought_for_weights
    return dict(zip(members, fight(bench, subject, members, progress, demand), strict=True))


def _fought_for_weights(
    bench: Bench,
    subject: Subject,
    members: Sequence[Attack],
    progress: Counting | None,
    demand: bool,
) -> list[Result | Skipped]:
    options = bench.options
    given = bench.evidence if demand else bench.place
    if bench.live:
        arena = Arena(subject, bench.key, None, (), options.seed, bench.data, demand=demand)
        return fight_here(replace(arena, evidence=given), members, progress)
    source = bench.model if demand else options.original
    path = Path(source) if isinstance(source, str | Path) else replace(subject, module=None)
    claim = bench.claim if demand else bench.place.claim
    anchor = options.anchor if demand else None
    arena = Arena(path, bench.key, claim, (), options.seed, anchor=anchor, demand=demand)
    return fight_all(arena, replace(subject, module=None), members, options.jobs, progress)


def _fought_live(
    bench: Bench,
    subject: Subject,
    members: Sequence[Attack],
    progress: Counting | None,
    demand: bool,
) -> list[Result | Skipped]:
    """Attacks on a network whose activations are read: the attacker knows nothing of the mark."""
    seed, given = bench.options.seed, bench.triggers
    arena = Arena(subject, bench.key, None, (), seed, bench.data, demand=demand, triggers=given)
    return fight_here(replace(arena, evidence=bench.place), members, progress)


def _point(
    bench: Bench, value: float, result: Result, other: Result | Skipped | None
) -> ModifiedPoint:
    status = bench.before.status
    detected, matched = _best(result, status)
    alarm, taken = _best(other, status) if isinstance(other, Result) else (None, None)
    return ModifiedPoint(
        value=value,
        detected=detected,
        matched=matched,
        bits=bench.before.bits,
        change=result.change if math.isfinite(result.change) else None,
        accuracy=result.accuracy_after,
        false_alarm=alarm,
        matched_unmarked=taken,
        seconds=result.seconds,
    )


def _best(result: Result, status: Status) -> tuple[bool, int | None]:
    """Whether the mark is there, by position or with the anchor, and the most bits decoded."""
    read = [verdict for verdict in (result.after, result.aligned) if verdict is not None]
    matched = max((verdict.matched for verdict in read), default=None)
    return any(verdict.status == status for verdict in read), matched
