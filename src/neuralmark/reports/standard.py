"""The page of an evaluation after MPAI-NNW: its three parts, and what could not be measured."""

from pathlib import PurePath

from neuralmark.attacks.engine.modifications import RANGES, STANDARD
from neuralmark.attacks.engine.outlay import Spent
from neuralmark.attacks.engine.standard_report import Modification, ModifiedPoint, StandardReport
from neuralmark.reports.render.page import (
    code,
    facts,
    number,
    page,
    paragraphs,
    power_of_two,
    section,
    table,
    text,
    tiles,
)
from neuralmark.reports.sweeps import word

NONE = "–"
LONG = 600
"""Reasons may be longer than names."""


def standard_page(report: StandardReport) -> str:
    """One self-contained HTML page."""
    name = PurePath(report.model).name or report.model
    parts = (
        f'<p class="kicker"><span>Evaluation after {text(STANDARD)}</span>'
        f"<span>NeuralMark {text(report.version)}</span></p>",
        _banner(report),
        _tested(report),
        _imperceptibility(report),
        _robustness(report),
        _left_out(report),
        _cost(report),
        _reading(),
    )
    return page(f"{STANDARD}: {name} (NeuralMark)", "\n".join(filter(None, parts)))


def _banner(report: StandardReport) -> str:
    icon = (
        '<svg viewBox="0 0 64 64" aria-hidden="true"><path class="stroke" stroke-width="5"'
        ' d="M12 52V30M32 52V12M52 52V38"/></svg>'
    )
    found = len(report.points) - report.missed
    words = [f"The mark was detected in {found} of {len(report.points)} modified networks."]
    if report.unmarked:
        words.append(f"False alarms: {report.false_alarms} of {report.unmarked} unmarked networks.")
    loss = report.imperceptibility.loss
    if loss is not None:
        words.append(f"Accuracy lost by marking: {number(round(100 * loss, 2))} points.")
    said = f'<p class="lead">{"<br>".join(words)}</p>'
    colour = 1 if report.false_alarms else 0
    head = "Imperceptibility, robustness, cost"
    return f'<header class="banner c{colour}">{icon}<div><h1>{head}</h1>\n{said}</div></header>'


def _tested(report: StandardReport) -> str:
    before, bound = report.before, "which proves nothing"
    if report.bound_log2 is not None:
        bound = f"by chance at most {power_of_two(report.bound_log2)}"
    rows = (
        ("Model", code(report.model), ""),
        ("Unmarked original", code(report.original) if report.original else "none given", ""),
        ("Key", code(report.fingerprint), f"scheme {text(before.scheme)}"),
        ("Payload", f"{before.bits:,} bits", "a symbol of the standard is a bit here"),
        (
            "Before",
            f"{before.matched:,} of {before.bits:,} bits: {text(word(before.status))}",
            bound,
        ),
        ("A match proves", text(report.proves, LONG) or NONE, ""),
        ("Tested", "one network, one payload", "M = 1 and D = 1 of the standard"),
        ("When", text(report.date), f"seed {report.seed}, {report.seconds:.1f} s"),
    )
    return section("What was tested", facts(rows))


def _imperceptibility(report: StandardReport) -> str:
    told = report.imperceptibility
    figures = (
        ("Unmarked", _percent(told.accuracy_unmarked), "accuracy"),
        ("Marked", _percent(told.accuracy_marked), f"of {told.examples:,} test examples"),
        ("Change", _percent(told.change), "of the marked weights' norm"),
        ("Of all weights", _percent(told.change_whole), "of their norm"),
    )
    reasons = (
        f"Accuracy {text(told.accuracy_why, LONG)}." if told.accuracy_why else "",
        f"Change {text(told.change_why, LONG)}." if told.change_why else "",
    )
    return section("1. Imperceptibility", tiles(figures) + paragraphs(*reasons))


def _robustness(report: StandardReport) -> str:
    words = (
        "Each modification is made of the marked network, and of the unmarked original where that"
        " was given; then detector and decoder, which are one operation here, are asked. SER is the"
        " share of wrong bits; a network without the mark has about one half.",
        f"{text(RANGES[0].upper() + RANGES[1:])}.",
    )
    rate = report.error_rate
    alarms = f"{report.false_alarms:,}" if report.unmarked else NONE
    figures = (
        ("Missed", f"{report.missed:,}", f"of {len(report.points):,} modified marked networks"),
        ("False alarms", alarms, f"of {report.unmarked:,} modified unmarked networks"),
        ("Mean SER", NONE if rate is None else number(round(rate, 4)), "of the marked ones"),
    )
    head = ("Modification", "Value", "Detected", "Bits", "SER", "Change", "Accuracy", "Unmarked")
    rows = [row for each in report.modifications for row in _rows(each)]
    shown = table(head, rows) if rows else ""
    return section("2. Robustness", paragraphs(*words) + tiles(figures) + shown)


def _rows(made: Modification) -> list[tuple[str, ...]]:
    told = (
        f"<strong>{text(made.name)}</strong><br><small class='soft'>{text(made.parameter)}"
        f" (attack {text(made.attack)})</small>"
    )
    return [("" if i else told, *_point(point)) for i, point in enumerate(made.points)]


def _point(point: ModifiedPoint) -> tuple[str, ...]:
    rate, unmarked = point.error_rate, point.matched_unmarked
    taken = NONE if unmarked is None else f"{unmarked:,}"
    return (
        number(point.value),
        "yes" if point.detected else "<strong>missed</strong>",
        "lost" if point.matched is None else f"{point.matched:,}",
        NONE if rate is None else number(round(rate, 3)),
        _percent(point.change),
        _percent(point.accuracy),
        f"<strong>{taken}, false alarm</strong>" if point.false_alarm else taken,
    )


def _left_out(report: StandardReport) -> str:
    rows = [(each.name, text(each.why, LONG), "") for each in report.modifications if each.why]
    return section("What was not made, and why", facts(rows)) if rows else ""


def _cost(report: StandardReport) -> str:
    cost, machine = report.cost, report.machine
    embed = _spent(cost.embed) if cost.embed else text(cost.embed_how, LONG)
    how = f"{text(cost.embed_how)}; {_times(cost.embed_ratio)}" if cost.embed else ""
    rows = [
        ("Injection", embed, how),
        ("Detection and decoding", _spent(cost.verify), _times(cost.verify_ratio)),
    ]
    if cost.digest is not None:
        size = "" if cost.size is None else f"{_bytes(cost.size)}, in the page cache"
        rows.append(("SHA-256 of the file", _spent(cost.digest), size))
    if cost.step is not None and cost.step_clean is not None:
        ratio = "" if cost.step_ratio is None else f"{cost.step_ratio:.2f} times"
        step = f"{1e3 * cost.step:.1f} ms with the mark, {1e3 * cost.step_clean:.1f} ms without"
        rows.append(("Training step", step, ratio))
    if cost.step_why:
        rows.append(("Training step", text(cost.step_why, LONG), ""))
    if cost.inference is not None:
        rows.append(("Inference", f"{1e3 * cost.inference:.3f} ms", "for one example of a batch"))
    memory = "" if machine.memory is None else f", {_bytes(machine.memory)}"
    versions = f"Python {text(machine.python)}, NumPy {text(machine.numpy)}"
    where = f"{text(machine.processor)}, {machine.cores:,} cores{memory}"
    rows.append(("Machine", where, f"{text(machine.system)}, {versions}"))
    return section("3. Computational cost", facts(rows))


def _reading() -> str:
    words = (
        "The standard averages over M networks and D payloads; this is one network with one. Its"
        " false alarms are counted here on copies of one unmarked network: what a false alarm is"
        " worth is told by the bound above, which holds for every network.",
        "Injection includes reading the mark back. Seconds depend on what else the machine did;"
        " the ratio to the SHA-256 of the same file, taken just before, depends on it less. The"
        " epochs that a mark needs when it is trained in are those of your training.",
        "The standard's robustness leaves out what reorders a network without changing its"
        " function, and forged keys: the robustness card has both"
        " (<code>neuralmark attack suite</code> without <code>--standard</code>).",
    )
    return section("How to read this", paragraphs(*words))


def _spent(spent: Spent | None) -> str:
    if spent is None:
        return "not measured"
    peak = "memory not measured" if spent.memory is None else f"peak {_bytes(spent.memory)}"
    idle = "" if spent.idle is None else f", {_bytes(spent.idle)} of it the library"
    return f"{spent.seconds:.4g} s; {peak}{idle}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g} times the SHA-256"


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{number(round(100 * share, 2))}\u00a0%"


def _bytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
