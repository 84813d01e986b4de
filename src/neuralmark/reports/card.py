"""The page of a robustness card: what was tried, what the mark withstood, and what it means."""

import math
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from neuralmark.attacks.engine.card import Card, CardPoint, CardRow
from neuralmark.reports.render.page import (
    code,
    facts,
    number,
    page,
    paragraphs,
    section,
    table,
    text,
    tiles,
)
from neuralmark.reports.sweeps import (
    are_kinds,
    bits_of,
    by_attack,
    change_of,
    picture_of,
    strength_of,
    word,
)

NONE = "–"


def card_page(card: Card) -> str:
    """One self-contained HTML page, fit to be put beside a model."""
    name = PurePath(card.model).name or card.model
    parts = (
        '<p class="kicker"><span>Robustness card of a watermark</span>'
        f"<span>NeuralMark {text(card.version)}</span></p>",
        _banner(card),
        _summary(card),
        _table(card),
        _pictures(card),
        _forging(card),
        _looking(card),
        _radius(card),
        _skipped(card),
        _reading(card),
        _repeat(card),
    )
    return page(f"Robustness card: {name} (NeuralMark)", "\n".join(filter(None, parts)))


def _banner(card: Card) -> str:
    forged = [row for row in card.forgeries if row.flipped is not None]
    icon = (
        '<svg viewBox="0 0 64 64" aria-hidden="true"><path class="stroke" stroke-width="5"'
        ' d="M32 5l22 8v16c0 15-9 25-22 30C19 54 10 44 10 29V13z"/></svg>'
    )
    read = [(row.attack, row.aligned or row) for row in card.removals]
    undone = {name for name, row in read if row.flipped is not None}
    attacks = [name for name, _ in by_attack(card.removals)]
    how = ", read with the anchor" if card.anchored else ""
    withstood = [name for name in attacks if name not in undone]
    lists = (
        (f"Withstood at every strength tried{how}", withstood),
        (f"Undone from some strength on{how}", [name for name in attacks if name in undone]),
        ("Forged keys that were verified", [row.label for row in forged]),
    )
    words = [f"{title}: {text(', '.join(names), 2000)}." for title, names in lists if names]
    if card.forgeries and not forged:
        words.append("No forged key was verified.")
    said = f'<p class="lead">{"<br>".join(words)}</p>'
    colour = 1 if forged else 0
    head = "What this mark withstands"
    return f'<header class="banner c{colour}">{icon}<div><h1>{head}</h1>\n{said}</div></header>'


def _summary(card: Card) -> str:
    before, relative = card.before, card.certified_radius_relative
    boundary = _boundary(card)
    radius = NONE if relative is None else f"{_down(100 * relative)}\u00a0%"
    points = sum(len(row.points) for row in card.rows)
    figures = (
        ("Before", f"{before.matched:,}", f"of {before.bits:,} bits: {word(before.status)}"),
        ("Needed", "none" if boundary is None else f"{boundary:,}", "bits, after an attack"),
        ("Certified radius", radius, "of the weights' norm, against anybody"),
        ("Attacks run", f"{points:,}", f"in {card.seconds:.0f} s, without any data"),
    )
    model = paragraphs(f"Model: {code(card.model)}<br>Key: {code(card.fingerprint)}")
    return section("The mark", model + tiles(figures))


def _table(card: Card) -> str:
    if not card.removals:
        return ""
    head: tuple[str, ...] = (
        *("Attack", "Verdict flips at", "Bits there", "Survives", "Bits there", "Change there"),
        *(("With the anchor flips at", "Bits there") if card.anchored else ()),
    )
    rows: list[tuple[str, ...]] = []
    for _, sweeps in by_attack(card.removals):
        alike = [row for row in sweeps if row.flipped is None] if are_kinds(sweeps) else []
        rest = [row for row in sweeps if row not in alike]
        lines = [(_together(alike), alike)] if alike else []
        lines += [(_line(row, first=not i and not alike), [row]) for i, row in enumerate(rest)]
        rows += [(*line, *(_aligned(own) if card.anchored else ())) for line, own in lines]
    words = (
        "Every attack is run from weak to strong. The table gives the weakest at which the verdict"
        " flips, and the strongest before it that the mark survives, with the bits that match then"
        " and the relative change ‖Δw‖/‖w‖ of the attacked weights."
    )
    if card.anchored:
        words += (
            " Weights are read where they lie; the last two columns are the verdict with the anchor"
            " (where they lie, else put back in order): where it flips then, and the fewest bits."
        )
    if any(row.sooner_anchored for row in card.removals):
        words += (
            " Where it flips sooner with the anchor, the mark was read with every row divided by"
            " its size, which is done only without an anchor."
        )
    return section("At which strength the verdict flips", paragraphs(words) + table(head, rows))


def _together(rows: Sequence[CardRow]) -> tuple[str, ...]:
    """One line for all kinds that are survived; the numbers are those of the worst."""
    points = [row.points[0] for row in rows]
    fewest = min(points, key=lambda point: point.matched or 0)
    farthest = max(points, key=lambda point: math.inf if point.change is None else point.change)
    names = ", ".join(row.variant for row in rows)
    label = f"<strong>{text(rows[0].attack)}</strong> {text(names, 600)}"
    return (
        label + _explained(rows[0]),
        "never",
        NONE,
        "all of these",
        bits_of(fewest),
        f"up to {change_of(farthest)}",
    )


def _aligned(rows: Sequence[CardRow]) -> tuple[str, str]:
    """Where the verdict flips with the anchor, and the bits there; if it never does, the fewest."""
    read = [row for each in rows if (row := each.aligned) is not None]
    if not read:
        return NONE, NONE
    undone = next((row for row in read if row.flipped is not None), None)
    if undone is not None and undone.flipped is not None:
        return f"<strong>{strength_of(undone, undone.flipped)}</strong>", bits_of(undone.flipped)
    points = [point for row in read for point in row.points]
    return "never", bits_of(min(points, key=lambda point: point.matched or 0))


def _explained(row: CardRow) -> str:
    return f'<br><small class="soft">strength: {text(row.unit)}</small>' if row.unit else ""


def _line(row: CardRow, *, first: bool) -> tuple[str, ...]:
    name = f"<strong>{text(row.attack)}</strong>" if first else text(row.attack)
    label = f"{name} {text(row.variant)}" if row.variant else name
    label += _explained(row) if first else ""
    flipped, withstood = row.flipped, row.withstood
    again = "" if not row.again else f"<br><small>again at {_list(row.again)}</small>"
    return (
        label,
        "never" if flipped is None else f"<strong>{strength_of(row, flipped)}</strong>",
        NONE if flipped is None else bits_of(flipped),
        ("none" if withstood is None else _survives(row, withstood)) + again,
        NONE if withstood is None else bits_of(withstood),
        NONE if withstood is None else change_of(withstood),
    )


def _survives(row: CardRow, point: CardPoint) -> str:
    shown = strength_of(row, point)
    return f"all, up to {shown}" if row.flipped is None and len(row.points) > 1 else shown


def _pictures(card: Card) -> str:
    total, needed = card.before.bits, _boundary(card)
    parts = [picture_of(name, sweeps, total, needed) for name, sweeps in by_attack(card.removals)]
    words = (
        "Matching bits against the strength of the attack, from weak on the left to strong on the"
        " right unless said otherwise. Above the upper dotted line the mark is proven; weights"
        " without the mark match about half the bits."
    )
    return section("Attack by attack", paragraphs(words) + "\n".join(parts)) if parts else ""


def _forging(card: Card) -> str:
    if not card.forgeries:
        return ""
    rows = []
    for row in card.forgeries:
        best = row.flipped or max(row.points, key=lambda point: point.matched or 0)
        bits = NONE if best.matched is None else f"{best.matched:,} of {best.bits:,}"
        needed = "none suffices" if row.boundary is None else f"{row.boundary:,}"
        verdict = text(word(best.status))
        told = f"{text(row.label)}<br><small class='soft'>{text(row.summary)}</small>"
        rows.append((told, bits, needed, verdict if best.held else f"<strong>{verdict}</strong>"))
    words = (
        "A forger does not remove the mark: he makes a key of his own that seems to be in the"
        " model. What counts is the verdict on his key. Only <strong>verified</strong> would be a"
        " success; a matrix fitted to the model can match every bit and still proves nothing."
    )
    head = ("Attack", "Bits reached", "Needed", "Verdict on the forged key")
    return section("Forging", paragraphs(words) + table(head, rows))


def _looking(card: Card) -> str:
    if not card.looks:
        return ""
    rows = []
    for row in card.looks:
        last = row.points[-1]
        seen = ", ".join(
            f"{text(name)} {NONE if value is None else number(float(f'{value:.4g}'))}"
            for name, value in last.figures.items()
        )
        found = "<br>".join(filter(None, (seen, text(last.note)))) or NONE
        rows.append((row.label, found, text(row.summary)))
    words = "These only look at the weights, without the key, for signs that there is a mark."
    return section("Looking", paragraphs(words) + facts(rows))


def _radius(card: Card) -> str:
    absolute, relative = card.certified_radius, card.certified_radius_relative
    words = ["A radius is certified only where a mark is verified and its read-out is linear."]
    if absolute is not None:
        share = "" if not relative else f", that is {_down(100 * relative)}\u00a0% of their norm,"
        words = [
            "It is proven that no change of the marked weights with a norm smaller than"
            f" <strong>{_down(absolute)}</strong>{share} can undo the verdict.",
            "The radius and the table answer different questions. The radius is a proof: any change"
            " smaller than it leaves the verdict standing, whoever makes it, even with the key in"
            " hand and by means that nobody has thought of yet. The table is a measurement: how far"
            " the attacks tried here got, without the key. It proves nothing about other attacks.",
        ]
    return section("What the certified radius means", paragraphs(*words))


def _skipped(card: Card) -> str:
    if not card.skipped:
        return ""
    rows = [(each.label, text(each.why, 600), "") for each in card.skipped]
    words = "These are not covered by this card; nothing on it says what they would do."
    return section("What was not run, and why", paragraphs(words) + facts(rows))


def _reading(card: Card) -> str:
    words = (
        "A card made without data cannot say whether the network still works after an attack: one"
        " strong enough to undo the mark may have ruined the network as well, and then the thief"
        " has gained nothing. The relative change of the weights is only a hint. To see accuracy"
        " beside the verdict, launch the attack from Python with data.",
        "Attacks that keep the function of the network (reordering its channels, scaling, adding"
        " idle ones) cost the thief nothing. Where the verdict flips under one of these, the mark"
        " has to be read with its anchor, which undoes the reordering.",
        "Distillation and training anew make new weights: no mark in the weights survives that.",
    )
    return section("How to read this card", paragraphs(*words))


def _repeat(card: Card) -> str:
    line = f"neuralmark attack suite {PurePath(card.model).name} --key KEY --seed {card.seed}"
    rows = (
        ("Command", code(line), "with the --claim and --other that were given"),
        ("Seed", str(card.seed), "every attack draws from a generator of its own, seeded from it"),
        ("Library", f"NeuralMark {text(card.version)}", ""),
    )
    return section("To repeat it", facts(rows))


def _boundary(card: Card) -> int | None:
    """What is needed afterwards: only the marked tensors are read then, in one way of looking."""
    known = [row.boundary for row in card.removals if row.boundary is not None]
    return known[0] if known else card.before.boundary


def _count(number_of: int, what: str) -> str:
    return f"{number_of:,} {what}{'' if number_of == 1 else 's'}"


def _list(strengths: Iterable[float]) -> str:
    return ", ".join(number(strength) for strength in strengths)


def _down(value: float) -> str:
    """Three digits of a positive number, never more than it."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2) if value > 0 else 1.0
    return number(float(f"{math.floor(value / unit) * unit:.3g}"))
