"""Where the weights went: what a verdict says of how a suspect was put back in order."""

from collections.abc import Sequence

from neuralmark.records import Alignment, BitsRead, TensorFate, Verdict
from neuralmark.records.gathering import gathered_notes, with_asides
from neuralmark.records.presenting import lineage_in_words
from neuralmark.reports.render import svg
from neuralmark.reports.render.page import (
    code,
    facts,
    figure,
    legend,
    paragraphs,
    section,
    table,
    text,
)

MOST_DRAWN = 60
"""More tensors than this are listed, but not drawn."""

_KINDS = {"position": "by position", "aligned": "aligned"}
_FACTORED = "factored into two"
_ROW = 22
_NAMES = 180
_SCALE = 200
_WORDS = 44
"""Letters that fit behind the scale."""

_SOUND = (
    "Which part of the model is which tensor, in which order its channels lie, and what was done to"
    " them was decided by likeness to the anchor alone, a coarse copy of the weights from before"
    " the mark. The key is derived from the anchor's digest, so none of these choices could be made"
    " to fit the key, and they do not count as ways of looking. Reading by position and reading"
    " aligned do: two in all."
)
_DESCENT = (
    "The score of the lineage is the likeness to the anchor above what chance and alignment give"
    " to strangers: 0 for models trained apart, 1 for the same weights. It is measured on a part of"
    " each tensor and has no exact bound: what is proven here rests on the bits alone."
)


def alignment_section(verdict: Verdict) -> str:
    """Both readings, and a row for each marked tensor; nothing for a verdict without an anchor."""
    if not verdict.readings:
        return ""
    told = verdict.alignment
    if told is None:
        inner = "".join(_meter(reading, verdict) for reading in verdict.readings)
        said = "The mark was read where it was written, so nothing had to be put back in order."
        return section("Where the weights went", inner + paragraphs(said, *_lineage(verdict)))
    fates = with_asides(told)
    inner = paragraphs(_SOUND) + fates_picture(fates, _bits_bars(verdict)) + alignment_facts(told)
    rows = [
        (
            code(fate.name),
            code(fate.source) if fate.source else "not found",
            as_found(fate),
            f"{fate.restored:.3f}" if fate.found else "",
            _percent(fate.found),
            text("; ".join(fate.changes) or "nothing"),
        )
        for fate in fates
    ]
    head = ("Tensor of the mark", "Taken from", "Alike before", "after", "Found", "What was done")
    inner += table(head, rows, name="What became of each tensor")
    if told.notes:
        notes = [(text(note),) for note in gathered_notes(told)]
        inner += table(("Set aside, because it shows itself as added later",), notes, name="Notes")
        inner += paragraphs(
            f"These are {len(told.notes):,} notes in all; the verdict's file has them tensor by"
            " tensor."
        )
    return section("Where the weights went", inner + paragraphs(*_lineage(verdict)))


def _lineage(verdict: Verdict) -> tuple[str, str]:
    """How alike the weights are to the anchor, and what that is not."""
    return f"Lineage, {text(lineage_in_words(verdict.lineage))}.", _DESCENT


def _meter(reading: BitsRead, verdict: Verdict) -> str:
    """One way of reading as a bar."""
    kind = _KINDS[reading.kind]
    if reading.matched is None:
        return paragraphs(f"Read {kind}: not done ({text(reading.why)}).")
    marks = [svg.PlotMark(verdict.bits / 2, "luck")]
    if verdict.boundary is not None:
        marks.append(svg.PlotMark(verdict.boundary, f"needed: {verdict.boundary}"))
    reached = verdict.boundary is not None and reading.matched >= verdict.boundary
    found = svg.PlotMark(reading.matched, f"{kind}: {reading.matched}")
    said = f"Read {kind}, {reading.matched} of {verdict.bits} bits match"
    drawn = svg.meter(found, verdict.bits, marks, 0 if reached else 1, said)
    return f"<figure>{drawn}</figure>"


def _bits_bars(verdict: Verdict) -> str:
    """The bits of the whole mark before and after, a bar for each way of reading."""
    height = 26 + _ROW * len(verdict.readings)
    parts = []
    marks = [(verdict.bits / 2, "luck")]
    if verdict.boundary is not None:
        marks.append((verdict.boundary, f"needed: {verdict.boundary}"))
    for value, words in marks:
        x = _NAMES + _SCALE * value / verdict.bits
        parts.append(svg.label(x, 12, words, kind="tiny"))
        parts.append(f'<path class="rule" d="M{x:.1f} 18V{height - 4}"/>')
    parts += [
        _bits_row(reading, verdict, 26 + _ROW * place)
        for place, reading in enumerate(verdict.readings)
    ]
    said = "; ".join(f"{_KINDS[each.kind]}: {_bits(each, verdict)}" for each in verdict.readings)
    return svg.picture("".join(parts), svg.WIDTH, height, f"Bits that match, {said}")


def _bits_row(reading: BitsRead, verdict: Verdict, top: float) -> str:
    middle = top + _ROW / 2 - 3
    name = svg.label(_NAMES - 10, middle + 4, _KINDS[reading.kind], anchor="end", kind="tiny")
    words = _bits(reading, verdict)
    if reading.matched is None:
        return name + svg.label(_NAMES + 8, middle + 4, words, anchor="start", kind="tiny")
    reached = verdict.boundary is not None and reading.matched >= verdict.boundary
    reached = reached and not _uncounted(reading, verdict)
    width = _SCALE * reading.matched / verdict.bits
    place = f'x="{_NAMES}" y="{middle - 5:.1f}" width="{width:.1f}" height="10"'
    bar = f'<rect class="fill c{0 if reached else 1}" {place}/>'
    at = _NAMES + _SCALE + 12
    return name + bar + svg.label(at, middle + 4, words, anchor="start", kind="tiny")


def _bits(reading: BitsRead, verdict: Verdict) -> str:
    if reading.matched is None:
        return f"not readable: {reading.why}"
    not_counted = ", not counted" if _uncounted(reading, verdict) else ""
    return f"{reading.matched} of {verdict.bits} bits{not_counted}"


def _uncounted(reading: BitsRead, verdict: Verdict) -> bool:
    """Whether aligned bits do not count, because too little was found."""
    told = verdict.alignment
    return reading.kind == "aligned" and told is not None and not told.enough


def as_found(fate: TensorFate) -> str:
    """How alike a tensor was where it was found, or why that could not be measured."""
    if not fate.source:
        return ""
    if fate.likeness:
        return f"{fate.likeness:.3f}"
    return "not compared" if _FACTORED in fate.changes else "other shape"


def alignment_facts(told: Alignment) -> str:
    """How much was found, how like the anchor it is, and by which aligner."""
    rows = (
        ("Found", _percent(told.found), "share of the marked weights that are this model's"),
        ("Set aside", _percent(told.set_aside), "recognised as added later, and not read"),
        ("Likeness", f"{told.likeness:.4f}", "cosine of all that was found with the anchor"),
        ("Effort", _percent(told.effort), "share of the marked weights that was looked for"),
        ("Anchor", code(told.anchor), "its digest, from which the key is derived"),
        ("Aligner", f"version {told.aligner}", f"it took {told.seconds:,.1f} s"),
    )
    return facts(rows)


def fates_picture(fates: Sequence[TensorFate], above: str = "") -> str:
    """A row for each tensor: likeness as found, and after it was put back in order."""
    shown = fates[:MOST_DRAWN]
    if not shown:
        return ""
    height = 26 + _ROW * len(shown)
    parts = [
        svg.label(_NAMES + _SCALE * value, 12, f"{value:g}", kind="tiny")
        for value in (0.0, 0.5, 1.0)
    ]
    for value in (0.0, 0.5, 1.0):
        x = _NAMES + _SCALE * value
        parts.append(f'<path class="rule" d="M{x:.1f} 18V{height - 4}"/>')
    parts += [_row(fate, 26 + _ROW * place) for place, fate in enumerate(shown)]
    said = (
        f"{len(shown)} tensors: likeness to the anchor as found, and after alignment;"
        f" {sum(fate.found == 0 for fate in shown)} were not found"
    )
    drawn = svg.picture("".join(parts), svg.WIDTH, height, said)
    keys = legend(((svg.swatch(1, small=True), "as found"), (svg.swatch(0), "put back in order")))
    rest = f" {len(fates) - len(shown):,} more are in the table." if len(fates) > len(shown) else ""
    caption = "Likeness of each tensor to that of the first model (cosine), before and after."
    if above:
        caption = (
            "Above: how many bits of the whole mark match, read where the weights lie and put back"
            " in order. Below: likeness of each marked tensor to the anchor (cosine), before and"
            " after."
        )
    return figure(above + keys + drawn, caption + rest, wide=True)


def _row(fate: TensorFate, top: float) -> str:
    middle = top + _ROW / 2 - 3
    before, after = (_NAMES + _SCALE * max(0.0, value) for value in (fate.likeness, fate.restored))
    name = fate.name if len(fate.name) <= 30 else "…" + fate.name[-29:]
    parts = [svg.label(_NAMES - 10, middle + 4, name, anchor="end", kind="tiny")]
    if fate.found == 0:
        words = fate.changes[-1] if fate.changes else "not found"
        return "".join(
            (*parts, svg.label(_NAMES + 8, middle + 4, words, anchor="start", kind="tiny"))
        )
    if fate.likeness:
        line = f"M{before:.1f} {middle}H{after:.1f}"
        parts.append(f'<path class="rule" stroke-width="3" d="{line}"/>')
        parts.append(_square(before, middle, 5, 1))
    else:
        told = as_found(fate)
        parts.append(svg.label(_NAMES + 4, middle + 4, told, anchor="start", kind="tiny"))
    parts.append(_square(after, middle, 8, 0))
    words = briefly(fate.changes) or "unchanged"
    parts.append(svg.label(_NAMES + _SCALE + 12, middle + 4, words, anchor="start", kind="tiny"))
    return "".join(parts)


def briefly(changes: Sequence[str]) -> str:
    """As many changes as fit into a row; what is left out is counted."""
    for kept in range(len(changes), 0, -1):
        left = len(changes) - kept
        words = ", ".join(changes[:kept]) + (f" and {left} more" if left else "")
        if len(words) <= _WORDS:
            return words
    return f"{changes[0][: _WORDS - 1]}…" if changes else ""


def _square(x: float, y: float, side: float, colour: int) -> str:
    place = f'x="{x - side / 2:.1f}" y="{y - side / 2:.1f}"'
    return f'<rect class="fill c{colour}" {place} width="{side}" height="{side}"/>'


def _percent(share: float) -> str:
    return f"{100 * share:.3g}\u00a0%"
