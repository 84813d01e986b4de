"""What `neuralmark attack` checks, writes and prints."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.attacks import Attack
    from neuralmark.attacks.engine.card import Before, Card, CardPoint, CardRow
    from neuralmark.attacks.engine.result import Result
    from neuralmark.records import Verdict

NONE, NEVER = "-", "never"
ANCHOR_HEADS = ("anchored", "bits")
"""Where the verdict flips if the attacked copy is read with the anchor, and bits there."""


@dataclass(frozen=True)
class Request:
    """What was asked for beside the attack, the model and the key."""

    out: Path | None
    force: bool
    claim_file: Path | None
    anchor: Path | None
    tensors: tuple[str, ...]
    others: tuple[Path, ...]
    seed: int
    code: str | None
    triggers: Path | None
    as_json: bool


def listed(name: str, attack: "type[Attack]") -> dict[str, Any]:
    """An attack as `attack list --json` has it."""
    from dataclasses import fields

    return {
        "name": name,
        "summary": attack.summary,
        "kind": attack.kind,
        "needs": sorted(attack.needs),
        "expects": attack.expects,
        "strength": attack.dial or None,
        "settings": {each.name: each.metadata.get("meaning", "") for each in fields(attack)},
        "in_suite": not attack.needs & {"data", "model"},
    }


def how_to_run(attack: "type[Attack]") -> str:
    """What must be known before it is tried here; empty where a file is enough."""
    if "data" in attack.needs:
        return " (from Python only: needs data)"
    return " (needs --code)" if "model" in attack.needs else ""


def needs(attack: "type[Attack]") -> str:
    """What it cannot do without, for the list."""
    words = ", ".join(sorted(attack.needs)) or "nothing"
    return f"{words} (from Python only)" if "data" in attack.needs else words


def refuse_output(attack: "type[Attack]", out: Path | None) -> None:
    """An attack that only looks has nothing to write."""
    from neuralmark.attacks.contract import TEST

    if out is not None and attack.kind == TEST:
        raise click.UsageError("this attack only looks and changes nothing: leave -o out")


def require(attack: "type[Attack]", *, others: bool, live: bool) -> None:
    """Refuse what cannot be run on a file, and show how it can be run."""
    from neuralmark.attacks import name_of
    from neuralmark.attacks.engine.suite import obstacle
    from neuralmark.errors import MissingDataError

    why = obstacle(attack, others=others, live=live)
    if why:
        raise MissingDataError(f"the attack {name_of(attack)!r} {why}")


def write(attack: "Attack", result: "Result", model: Path, request: Request) -> str:
    """Write the attacked model or the forged key; say what was written."""
    from neuralmark.attacks.contract import KEY
    from neuralmark.attacks.engine.save import save_attacked
    from neuralmark.checkpoints import open_checkpoint
    from neuralmark.cli.key import PLAIN_WARNING

    assert request.out is not None
    if attack.kind == KEY and result.key is not None:
        result.key.save(request.out, None, overwrite=request.force)
        output.note(f"forged key {PLAIN_WARNING}")
        claim = _claim(result, request)
        return f"{request.out} (key, without a passphrase){claim}"
    assert result.weights is not None
    form = save_attacked(model, result.weights, request.out, overwrite=request.force)
    if form != open_checkpoint(model).format:
        output.note(f"shapes changed: {request.out} was written as a {form} file")
    return f"{request.out} ({form})"


def _claim(result: "Result", request: Request) -> str:
    """Write beside a forged key where it claims to be: the order of tensors may be the forgery."""
    from neuralmark.records import Claim

    assert request.out is not None
    if result.key is None or result.after is None:
        return ""
    key, after = result.key, result.after
    claim = Claim(
        key.fingerprint, key.commitment, key.parameters, after.placement, after.checkpoint_digest
    )
    path = request.out.with_name(request.out.name + ".claim.json")
    claim.save(path, overwrite=request.force)
    return f" and {path} (its claim)"


def as_json(attack: "Attack", result: "Result", written: str | None) -> dict[str, Any]:
    """A result for --json."""
    from neuralmark.attacks.engine.card import jsonable

    told: dict[str, Any] = jsonable(result.to_dict())
    return {**told, "output": written}


def result(attack: "Attack", result: "Result", model: Path, written: str | None) -> None:
    """Print what one attack did."""
    chosen = ", ".join(f"{name} {value}" for name, value in result.settings.items())
    rows = [
        ("attack", f"{result.attack} ({chosen})" if chosen else result.attack),
        ("model", str(model)),
    ]
    if result.before is not None:
        rows.append(("before", _verdict(result.before)))
    rows += _after(attack, result)
    rows += _aligned(result)
    if result.weights is not None and attack.kind == "weights":
        change = _finite(result.change)
        norm = "" if change is None else " of the attacked weights' norm"
        rows.append(("change", _change(change) + norm))
    effort = [f"{result.seconds:.2f} s"]
    effort += [f"{result.steps:,} steps"] if result.steps else []
    effort += [f"{result.queries:,} queries"] if result.queries else []
    rows.append(("cost", ", ".join(effort)))
    rows += [(name, f"{value:.4g}") for name, value in result.figures.items()]
    rows += [("note", result.note)] if result.note else []
    rows += [("written", written)] if written else []
    good = result.held or bool(result.survived_aligned)
    judged = result.after is not None or result.before is not None
    output.panel(_title(attack, result), rows, good=good if judged else None)


def _title(attack: "Attack", result: "Result") -> str:
    from neuralmark.attacks.contract import KEY, TEST

    if attack.kind == KEY:
        return _forged(result)
    if attack.kind == TEST:
        return "LOOKED"
    if result.before is None:
        return "ATTACKED"
    if result.survived or not result.survived_aligned:
        return "MARK SURVIVED" if result.survived else "VERDICT FLIPPED"
    return "MARK SURVIVED, READ WITH ITS ANCHOR"


def _forged(result: "Result") -> str:
    """How a forger fared: against the published check, and here."""
    from neuralmark.records import UNPROVEN, VERIFIED

    status = None if result.after is None else result.after.status
    if status == VERIFIED:
        return "FORGED KEY VERIFIED"
    if status == UNPROVEN:
        return "FORGERY PASSES THE PUBLISHED CHECK, AND PROVES NOTHING HERE"
    return "FORGERY FAILED"


def _after(attack: "Attack", result: "Result") -> list[tuple[str, str]]:
    from neuralmark.attacks.contract import KEY

    label = "forged key" if attack.kind == KEY else "after"
    if result.after is not None:
        return [(label, _verdict(result.after))]
    if attack.kind == KEY:
        return [(label, "none was made")]
    return [(label, f"cannot be read: {result.unreadable}")] if result.unreadable else []


def _aligned(result: "Result") -> list[tuple[str, str]]:
    if not result.anchored:
        return []
    found = result.aligned
    told = "cannot be read" if found is None else _verdict(found)
    if found is not None and found.verified and found.mapping != "anchor":
        told = "not read again: proven by position"
    return [("with the anchor", told)]


def _verdict(verdict: "Verdict | Before") -> str:
    needed = "" if verdict.boundary is None else f", {verdict.boundary} needed"
    return f"{verdict.matched} of {verdict.bits} bits{needed}: {verdict.status}"


def card(card: "Card") -> None:
    """Print a robustness card."""
    relative, absolute = card.certified_radius_relative, card.certified_radius
    radius = "none: only a verified mark has one"
    if card.before.verified:
        radius = f"none: the read-out of {card.before.scheme} is not linear"
    if absolute is not None:
        share = "" if relative is None else f"{output.percent_at_least(relative)} of the norm: "
        radius = f"{share}no smaller change undoes the verdict, even by someone with the key"
    rows = [
        ("model", card.model),
        ("key", f"{card.fingerprint} ({card.before.scheme})"),
        ("before", _verdict(card.before)),
        ("certified radius", radius),
        ("removal", _flips(card)),
        ("run", f"seed {card.seed}, {card.seconds:.1f} s"),
    ]
    forged = sum(row.flipped is not None for row in card.forgeries)
    if card.forgeries:
        rows.insert(-1, ("forging", f"verified in {forged} of {len(card.forgeries)} ways"))
    output.panel("Robustness card", rows)
    _tables(card)


def _flips(card: "Card") -> str:
    """In how many sweeps the mark is lost: without the anchor, and with it."""
    flipped = sum(row.flipped is not None for row in card.removals)
    told = f"the verdict flips in {flipped} of {len(card.removals)} sweeps"
    if not card.anchored:
        return told
    aligned = [row for each in card.removals if (row := each.aligned) is not None]
    lost = sum(row.flipped is not None for row in aligned)
    sooner = sum(row.sooner_anchored for row in card.removals)
    why = f"; sooner with it in {sooner}: it reads no rows divided by their size" if sooner else ""
    return f"{told} without the anchor, in {lost} of {len(aligned)} with it{why}"


def _tables(card: "Card") -> None:
    click.echo()
    if card.removals:
        head: tuple[str, ...]
        numbers: tuple[int, ...]
        head = ("attack", "flips at", "bits", "change", "survives", "bits", "change", "strength")
        numbers = (1, 2, 3, 4, 5, 6)
        if card.anchored:
            head, numbers = (*head[:-1], *ANCHOR_HEADS, head[-1]), (*numbers, 7, 8)
        lines = _removals(card.removals, anchored=card.anchored)
        output.table(head, lines, numeric=numbers)
    if card.forgeries:
        click.echo("\nForging: what a forger reached, and the verdict on his key")
        heads = ("attack", "strength", "bits", "needed", "verdict", "seconds")
        output.table(heads, [_forgery(row) for row in card.forgeries], numeric=(1, 2, 3, 5))
    if card.looks:
        click.echo("\nLooking: what can be seen without the key")
        output.table(("attack", "seen"), [_look(row) for row in card.looks], numeric=())
    if card.skipped:
        click.echo("\nNot run")
        reasons = [(each.label, each.why) for each in card.skipped]
        output.table(("attack", "why"), reasons, numeric=())


def _removals(rows: "Sequence[CardRow]", *, anchored: bool) -> list[tuple[str, ...]]:
    """A line for each sweep; what the strength counts is said once per attack."""
    lines: list[tuple[str, ...]] = []
    last = ""
    for row in rows:
        unit = "" if row.attack == last else row.unit
        more = _at_aligned(row) if anchored else ()
        flips = (NEVER, NONE, NONE) if row.flipped is None else _at(row, row.flipped)
        lines.append((row.label, *flips, *_at(row, row.withstood), *more, unit))
        last = row.attack
    return lines


def _at(row: "CardRow", point: "CardPoint | None") -> tuple[str, str, str]:
    """Strength, bits and change of the weights of a point."""
    if point is None:
        return NONE, NONE, NONE
    strength = f"{point.strength:g}" if row.dial else "yes"
    bits = "lost" if point.matched is None else f"{point.matched}"
    return strength, bits, _change(point.change)


def _at_aligned(row: "CardRow") -> tuple[str, str]:
    """Strength and bits at which the verdict flips with the anchor; else the fewest bits."""
    aligned = row.aligned
    if aligned is None:
        return NONE, NONE
    least = aligned.flipped or min(aligned.points, key=lambda point: point.matched or 0)
    strength = NEVER if aligned.flipped is None else _at(aligned, least)[0]
    return strength, _at(aligned, least)[1]


def _forgery(row: "CardRow") -> tuple[str, ...]:
    """The point at which the forger came farthest."""
    best = row.flipped or max(row.points, key=lambda point: point.matched or 0)
    bits = NONE if best.matched is None else f"{best.matched} of {best.bits}"
    needed = NONE if row.boundary is None else str(row.boundary)
    strength = f"{best.strength:g}" if row.dial else NONE
    return row.label, strength, bits, needed, best.status, f"{best.seconds:.2f}"


def _look(row: "CardRow") -> tuple[str, str]:
    last = row.points[-1]
    seen = ", ".join(f"{name} {value:.4g}" for name, value in last.figures.items())
    return row.label, "; ".join(filter(None, (seen, last.note)))


def _change(change: float | None) -> str:
    if change is None:
        return "new shapes"
    return output.percent(change) if change < 10 else f"{change:.4g} times"


def _finite(value: float) -> float | None:
    return value if abs(value) != float("inf") else None
