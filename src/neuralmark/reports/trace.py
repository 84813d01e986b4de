"""The page of a trace: the bits of every buyer against the boundary."""

from pathlib import PurePath

from neuralmark.records import MarkRead, Trace
from neuralmark.records.gathering import with_asides
from neuralmark.records.trace import quoted
from neuralmark.reports.alignment import alignment_facts, fates_picture
from neuralmark.reports.render import svg
from neuralmark.reports.render.page import (
    chance_in_words,
    code,
    facts,
    figure,
    page,
    paragraphs,
    power_of_two,
    section,
    table,
    text,
)

_MEANS = (
    "Every buyer's copy carries a mark that only the owner's key and the buyer's name give. The"
    " suspect's weights were put back in order by likeness to the anchor alone, and every buyer's"
    " mark was read from what they differ by from it. For a buyer whose copy played no part, each"
    " bit is a fair coin, whoever mixed which other copies."
)
_NOT = (
    "It says <strong>whose copies went into the suspect</strong>, not who published it: a copy can"
    " be stolen from a buyer, and the owner has all of them, too."
)
_ROW, _LEFT, _TOP, _FOOT = 20, 200, 26, 40
_MOST_DRAWN = 60


def trace_page(found: Trace) -> str:
    """One self-contained HTML page."""
    named = found.named
    title = "Named: " + ", ".join(quoted(named[:5])) if named else "No buyer is named"
    title += f" and {len(named) - 5} more" if len(named) > 5 else ""
    ranked = sorted(found.buyers, key=lambda each: -each.matched)
    told = _finding(found)
    caption = (
        f"Bits of {found.parameters.bits} that match, buyer by buyer; half of them match by chance."
    )
    if len(ranked) > _MOST_DRAWN:
        caption += f" The {_MOST_DRAWN} with the most of {len(ranked):,}."
    drawn = figure(_picture(found, ranked[:_MOST_DRAWN]), caption)
    head = ("Buyer", "Sub-key", "In place", "In order", "Chance of as many")
    rows = [
        (
            text(each.label),
            code(each.fingerprint),
            _count(each.position),
            _count(each.aligned),
            power_of_two(found.bound_of(each)),
        )
        for each in ranked
    ]
    parts = (
        '<p class="kicker"><span>Whose copy of a neural network</span>'
        f"<span>NeuralMark {text(found.version)}</span></p>",
        f"<h1>{text(title)}</h1>",
        section("The finding", told + drawn + paragraphs(_MEANS, _NOT)),
        section("All buyers", table(head, rows, name="All buyers")),
        _order(found),
    )
    name = PurePath(found.suspect).name or found.suspect
    return page(f"{text(title)}: {text(name)} (NeuralMark trace)", "\n".join(parts))


def _order(found: Trace) -> str:
    """What was put back in order before the marks were read."""
    told = found.alignment
    if told is None:
        return ""
    drawn = fates_picture(with_asides(told))
    return section("Where the weights went", drawn + alignment_facts(told))


def _finding(found: Trace) -> str:
    bits = found.parameters.bits
    chance = (
        f"{power_of_two(found.bound_log2)}, {chance_in_words(found.bound_log2)}"
        if found.named
        else "nobody is named"
    )
    pairs = [
        ("Suspect", code(found.suspect), ""),
        ("Boundary", f"{found.boundary} of {bits} bits", f"in {found.trials:,} ways of looking"),
        ("An innocent named", chance, "for all buyers together"),
        ("Owner's mark", f"{found.owner.matched} of {bits} bits", _owned(found)),
        ("Read", text(found.reason), ""),
    ]
    pairs.append(
        ("Key", code(found.owner.fingerprint), "the owner's; every sub-key follows from it")
    )
    if found.anchor:
        told = "its digest, from which the keys are derived"
        pairs.append(("Anchor", code(found.anchor), told))
    pairs.append(("Date", text(found.date or ""), "by the clock of the machine that traced"))
    if found.identical is not None:
        pairs.append(("Same file", text(found.identical), "byte for byte that buyer's copy"))
    pairs += [(f"SHA-256 {text(n)}", code(d), "") for n, d in (found.sha256 or {}).items()]
    pairs += [(f"Version of {text(n)}", code(pin), "") for n, pin in found.pins.items()]
    return facts(pairs)


def _owned(found: Trace) -> str:
    return "verified" if found.owned else "not verified"


def _count(bits: int | None) -> str:
    return "not read" if bits is None else str(bits)


def _picture(found: Trace, ranked: list[MarkRead]) -> str:
    """A row for each buyer: a bar up to the bits that match, and a line at the boundary."""
    bits, needed = found.parameters.bits, found.boundary
    height = _TOP + _ROW * len(ranked) + _FOOT
    foot = height - _FOOT + 4
    width = svg.WIDTH - _LEFT - 16
    low = min([bits // 2 - bits // 8, *(each.matched for each in ranked)])

    def across(value: float) -> float:
        return _LEFT + width * (value - low) / max(bits - low, 1)

    named = set(found.named)
    parts = []
    for tick in svg.ticks(low, bits, most=6, whole=True):
        parts.append(f'<path class="rule" d="M{across(tick):.1f} {_TOP - 6}V{foot}"/>')
        parts.append(svg.label(across(tick), foot + 16, f"{tick:g}"))
    parts.append(svg.label(_LEFT + width / 2, height - 6, "bits that match"))
    for row, each in enumerate(ranked):
        y, colour = _TOP + _ROW * row, 0 if each.label in named else 5
        end, kind = across(each.matched), "bold" if each.label in named else ""
        parts.append(svg.label(_LEFT - 8, y + 12, _short(each.label), anchor="end", kind=kind))
        parts.append(
            f'<rect class="fill c{colour}" x="{_LEFT}" y="{y + 3}" height="{_ROW - 8}"'
            f' width="{max(end - _LEFT, 1):.1f}"><title>{text(each.label)}: {each.matched}</title>'
            "</rect>"
        )
    if needed is not None:
        x = across(needed)
        parts.append(f'<path class="strong" stroke-width="1.5" d="M{x:.1f} {_TOP - 6}V{foot}"/>')
        parts.append(svg.label(x, 14, f"boundary {needed}", kind="bold"))
    said = f"{len(named)} of {len(found.buyers)} buyers reach the boundary of {needed} bits"
    return svg.picture("".join(parts), svg.WIDTH, height, said)


def _short(label: str) -> str:
    return label if len(label) <= 24 else label[:23] + "…"
