"""From the results of a suite to its robustness card: pure functions."""

import math
from collections.abc import Iterable, Sequence

from neuralmark.attacks import name_of
from neuralmark.attacks.contract import KEY, Attack
from neuralmark.attacks.engine.card import (
    NO_KEY,
    UNREADABLE,
    Before,
    Card,
    CardPoint,
    CardRow,
    PointStatus,
    Skipped,
    jsonable,
)
from neuralmark.attacks.engine.result import Result
from neuralmark.records import Status, Verdict


def make_card(
    before: Verdict,
    results: Iterable[tuple[Attack, Result]],
    skipped: Sequence[Skipped],
    *,
    seed: int,
    seconds: float,
) -> Card:
    """The card of results in the order of their sweeps."""
    sweeps: dict[tuple[str, str], list[tuple[Attack, Result]]] = {}
    for attack, result in results:
        sweeps.setdefault((name_of(attack), attack.variant), []).append((attack, result))
    return Card(
        model=before.model,
        fingerprint=before.fingerprint,
        before=Before.of(before),
        rows=tuple(map(make_row, sweeps.values())),
        skipped=tuple(skipped),
        seed=seed,
        seconds=seconds,
    )


def make_row(sweep: Sequence[tuple[Attack, Result]]) -> CardRow:
    """One sweep's row."""
    attack = sweep[0][0]
    read = [_read(result) for _, result in sweep]
    verdicts = [verdict for verdict in read if verdict is not None]
    return CardRow(
        attack=name_of(attack),
        variant=attack.variant,
        kind=attack.kind,
        dial=attack.dial,
        unit=attack.unit(),
        summary=attack.summary,
        expects=attack.expects,
        boundary=verdicts[0].boundary if verdicts else None,
        points=tuple(make_point(each, result) for each, result in sweep),
    )


def make_point(attack: Attack, result: Result) -> CardPoint:
    """One result, judged from the owner's side."""
    after, read = result.after, _read(result)
    missing: PointStatus = NO_KEY if attack.kind == KEY else UNREADABLE
    return CardPoint(
        strength=attack.strength,
        settings=jsonable(result.settings),
        status=missing if after is None else after.status,
        matched=None if after is None else after.matched,
        bits=None if read is None else read.bits,
        held=result.held,
        change=result.change if math.isfinite(result.change) else None,
        seconds=result.seconds,
        note=result.note or result.unreadable,
        figures=jsonable(result.figures),
        status_aligned=_status_aligned(result),
        matched_aligned=_matched_aligned(result),
        held_aligned=result.survived_aligned,
    )


def _read(result: Result) -> Verdict | None:
    """A verdict of the attacked copy: by position, else with the anchor."""
    return result.aligned if result.after is None else result.after


def _matched_aligned(result: Result) -> int | None:
    """Bits read with the anchor, or by position where more ways of it were tried, if more."""
    after, aligned = result.after, result.aligned
    if aligned is None:
        return None
    if after is None or after.status != aligned.status:
        return aligned.matched
    return max(aligned.matched, after.matched)


def _status_aligned(result: Result) -> Status | None:
    if not result.anchored:
        return None
    return UNREADABLE if result.aligned is None else result.aligned.status
