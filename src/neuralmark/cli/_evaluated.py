"""What `neuralmark attack suite --standard` checks, writes and prints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuralmark.cli import _output as output

if TYPE_CHECKING:
    import torch

    from neuralmark.attacks import StandardReport
    from neuralmark.attacks.engine.outlay import MarkingCost, Spent
    from neuralmark.attacks.engine.standard_report import Imperceptibility, ModifiedPoint
    from neuralmark.keys.key import Key

NONE = "-"


@dataclass(frozen=True)
class Evaluating:
    """What was asked for beside the model and the key."""

    original: Path | None
    only: tuple[str, ...]
    seed: int
    jobs: int | None
    anchor: Path | None
    claim_file: Path | None
    triggers: Path | None


def refuse(fits: bool, given: Mapping[str, Any]) -> None:
    """An option that would not be looked at is refused, not ignored."""
    for name, value in given.items():
        if value and not fits:
            words = "is not used with" if name == "--other" else "is only used with"
            raise click.UsageError(f"{name} {words} --standard")


def run(
    model: "Path | torch.nn.Module",
    key: "Key",
    wanted: Evaluating,
    report: Path | None,
    *,
    as_json: bool,
) -> None:
    """Evaluate, write the page if asked for, and print."""
    from neuralmark.attacks.engine.options import StandardOptions
    from neuralmark.attacks.engine.standard import standard
    from neuralmark.storage import files

    chosen = StandardOptions(
        wanted.original, list(wanted.only) or None, wanted.seed, wanted.jobs, wanted.anchor
    )
    with output.progress_bar(counting=True) as progress:
        found = standard(
            model,
            key,
            chosen,
            claim=wanted.claim_file,
            triggers=wanted.triggers,
            progress=progress,
        )
    if report:
        from neuralmark.reports.standard import standard_page

        files.write_text(report, standard_page(found), overwrite=True)
        output.note(f"report written to {report}")
    if as_json:
        output.as_json(found.to_dict())
    else:
        show(found)


def show(report: "StandardReport") -> None:
    """Print the three parts."""
    from neuralmark.attacks.engine.modifications import RANGES, STANDARD

    before, bound = report.before, "which proves nothing"
    if report.bound_log2 is not None:
        bound = f"by chance at most {output.power_of_two(report.bound_log2)}"
    rows = [
        ("model", report.model),
        ("original", report.original or "none given"),
        ("key", f"{report.fingerprint} ({before.scheme})"),
        ("payload", f"{before.bits} bits; a symbol is a bit"),
        ("before", f"{before.matched} of {before.bits} bits: {before.status}, {bound}"),
        ("a match proves", report.proves or "nothing that its scheme would say"),
        ("tested", "one network, one payload (M = 1, D = 1)"),
        ("run", f"seed {report.seed}, {report.seconds:.1f} s, {report.date}"),
    ]
    output.panel(f"Evaluation after {STANDARD}", rows)
    click.echo()
    output.panel("1. Imperceptibility", _imperceptibility(report.imperceptibility))
    click.echo()
    output.panel("2. Robustness", _robustness(report))
    click.echo()
    heads = ("modification", "value", "detected", "bits", "SER", "change", "accuracy", "unmarked")
    lines = [
        (each.name if not i else "", *_point(point))
        for each in report.modifications
        for i, point in enumerate(each.points)
    ]
    output.table(heads, lines, numeric=(1, 3, 4, 5, 6, 7))
    click.echo(f"\n{RANGES[0].upper()}{RANGES[1:]}.")
    for each in report.modifications:
        click.echo(f"  {each.name}: {each.parameter} (attack {each.attack})")
    _left_out(report)
    click.echo()
    output.panel("3. Computational cost", _cost(report))


def _left_out(report: "StandardReport") -> None:
    left = [(each.name, output.printable(each.why)) for each in report.modifications if each.why]
    if left:
        click.echo("\nNot made, or not at every value")
        output.table(("modification", "why"), left, numeric=())


def _imperceptibility(told: "Imperceptibility") -> list[tuple[str, str]]:
    rows = []
    if told.accuracy_marked is not None:
        rows.append(("accuracy, marked", output.percent(told.accuracy_marked)))
    if told.accuracy_unmarked is not None and told.loss is not None:
        rows.append(("accuracy, unmarked", output.percent(told.accuracy_unmarked)))
        loss = f"{100 * told.loss:.2f} points, {told.examples:,} test examples"
        rows.append(("lost by marking", loss))
    if told.accuracy_why:
        rows.append(("accuracy", told.accuracy_why))
    if told.change is not None:
        rows.append(("change", f"{output.percent(told.change)} of the marked weights' norm"))
    if told.change_whole is not None:
        rows.append(("of all weights", f"{output.percent(told.change_whole)} of their norm"))
    return [*rows, ("change", told.change_why)] if told.change_why else rows


def _robustness(report: "StandardReport") -> list[tuple[str, str]]:
    alarms = "not measured: give the unmarked original (original=...)"
    if report.unmarked:
        alarms = f"{report.false_alarms} of {report.unmarked} modified unmarked networks"
    rate = report.error_rate
    return [
        ("missed", f"{report.missed} of {len(report.points)} modified marked networks"),
        ("false alarms", alarms),
        ("mean SER", NONE if rate is None else f"{rate:.4f}, of the modified marked networks"),
    ]


def _point(point: "ModifiedPoint") -> Sequence[str]:
    rate, change, accuracy = point.error_rate, point.change, point.accuracy
    unmarked = NONE if point.matched_unmarked is None else f"{point.matched_unmarked}"
    return (
        f"{point.value:g}",
        "yes" if point.detected else "MISSED",
        "lost" if point.matched is None else f"{point.matched}",
        NONE if rate is None else f"{rate:.3f}",
        NONE if change is None else output.percent(change),
        NONE if accuracy is None else output.percent(accuracy),
        f"{unmarked}, ALARM" if point.false_alarm else unmarked,
    )


def _cost(report: "StandardReport") -> list[tuple[str, str]]:
    cost, machine = report.cost, report.machine
    memory = "" if machine.memory is None else f", {_bytes(machine.memory)}"
    rows = [
        ("injection", _injection(cost)),
        ("detection, decoding", f"{_spent(cost.verify)}{_times(cost.verify_ratio)}"),
    ]
    if cost.digest is not None and cost.size is not None:
        rows.append(("SHA-256", f"{_spent(cost.digest)}, {_bytes(cost.size)}"))
    if cost.step is not None and cost.step_clean is not None:
        ratio = f" ({cost.step_ratio:.2f} times)" if cost.step_ratio else ""
        without = f"{1e3 * cost.step_clean:.1f} ms without"
        rows.append(("training step", f"{1e3 * cost.step:.1f} ms with the mark, {without}{ratio}"))
    if cost.step_why:
        rows.append(("training step", cost.step_why))
    if cost.inference is not None:
        rows.append(("inference", f"{1e3 * cost.inference:.3f} ms for an example"))
    where = f"{machine.processor}, {machine.cores} cores{memory}, {machine.system}"
    return [*rows, ("machine", f"{where}, Python {machine.python}, NumPy {machine.numpy}")]


def _injection(cost: "MarkingCost") -> str:
    if cost.embed is None:
        return cost.embed_how
    return f"{_spent(cost.embed)}{_times(cost.embed_ratio)}, {cost.embed_how}"


def _spent(spent: "Spent | None") -> str:
    if spent is None:
        return "not measured"
    memory = ", memory not measured"
    if spent.memory is not None:
        idle = "" if spent.idle is None else f" ({_bytes(spent.idle)} of it the library)"
        memory = f", peak {_bytes(spent.memory)}{idle}"
    return f"{spent.seconds:.4g} s{memory}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f", {ratio:.3g} times the SHA-256"


def _bytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
