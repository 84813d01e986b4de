"""Pictures and words for the sweeps of attacks: matching bits against strength."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from neuralmark.attacks.engine.card import CardPoint, CardRow, PointStatus
from neuralmark.reports.render import svg
from neuralmark.reports.render.page import figure, folded, number, paragraphs, table, text

WIDE_RANGE = 30.0
"""Strengths that differ by more than this factor are drawn on a logarithmic scale."""
NARROW = 0.055
"""Labels nearer to each other than this share of the axis would overlap."""
LONGEST = 64
"""Letters that fit below an axis."""
FEW = 2
"""Notes that a caption repeats; more of them are in the table only."""
MANY = 6
"""More variants than this of one strength each are drawn as one row of dots."""

ANCHORED = ", with the anchor"

_WORDS: dict[PointStatus, str] = {
    "verified": "verified",
    "not-verified": "not verified",
    "matches-unproven": "matches, unproven",
    "unprovable": "cannot be proven",
    "unreadable": "cannot be read",
    "no-key": "no key was made",
}


def are_kinds(sweeps: Sequence[CardRow]) -> bool:
    """Whether the variants of an attack are many and of one strength each."""
    return len(sweeps) > MANY and all(len(row.points) == 1 for row in sweeps)


def strength_of(row: CardRow, point: CardPoint) -> str:
    """A strength in digits; an attack without a dial is done or not."""
    return number(float(f"{point.strength:.4g}")) if row.dial else "yes"


def bits_of(point: CardPoint) -> str:
    """Matching bits, if any can be read."""
    return "cannot be read" if point.matched is None else f"{point.matched:,}"


def change_of(point: CardPoint) -> str:
    """Relative change of the weights."""
    if point.change is None:
        return "other shapes"
    if point.change >= 10:
        return f"{number(float(f'{point.change:.3g}'))} times"
    percent = 100 * point.change
    return f"{percent:.2g}\u00a0%" if percent < 10 else f"{percent:.0f}\u00a0%"


def picture_of(name: str, sweeps: Sequence[CardRow], total: int, boundary: int | None) -> str:
    """A plot of all variants of an attack, with what is needed of `total` bits, and its numbers."""
    first = sweeps[0]
    title = paragraphs(f"<strong>{text(name)}</strong>: {text(first.summary)}")
    caption = f"Expected of a sound mark: {text(first.expects)}."
    notes = {point.note for row in sweeps for point in row.points if point.note}
    if len(notes) <= FEW:
        caption += "".join(f" Note: {text(note)}." for note in sorted(notes))
    marks = [svg.PlotMark(total / 2, "by luck")]
    if boundary is not None:
        marks.append(svg.PlotMark(boundary, f"needed: {boundary:,}"))
    said = f"{name}: " + "; ".join(map(_told, sweeps))
    aligned = [row for sweep in sweeps if (row := sweep.aligned) is not None]
    if not first.dial:
        drawn = "".join(_meter(row, total, marks) for row in sweeps)
        drawn += "".join(_meter(row, total, marks, ANCHORED) for row in aligned)
        return title + figure(drawn, caption, wide=True)
    scale = _Scale(sweeps)
    caption += " Stronger towards both ends." if scale.both_ways else ""
    drawn = _plot(sweeps, scale, total, marks, said)
    if aligned:
        said = f"{name}{ANCHORED}: " + "; ".join(map(_told, aligned))
        drawn += paragraphs("Read with the anchor, where the weights lie or put back in order:")
        drawn += _plot(aligned, scale, total, marks, said)
    return title + figure(drawn, caption, wide=True) + _numbers(name, sweeps)


def _plot(
    sweeps: Sequence[CardRow],
    scale: "_Scale",
    total: int,
    marks: Sequence[svg.PlotMark],
    said: str,
) -> str:
    return svg.line_plot(
        _series(sweeps, scale),
        (_axis(sweeps[0], scale), "matching bits"),
        said,
        y_range=(0, total),
        levels=marks,
        x_ticks=scale.ticks(),
    )


def _axis(row: CardRow, scale: "_Scale") -> str:
    """What the strength counts, as far as it fits."""
    short = row.unit.split(";")[0]
    short = short if len(short) <= LONGEST else f"strength: {row.dial}"
    return f"{short} (logarithmic)" if scale.logarithmic else short


def _series(sweeps: Sequence[CardRow], scale: "_Scale") -> list[svg.Series]:
    if are_kinds(sweeps):
        points = [point for row in sweeps for point in row.points]
        return [svg.Series(f"{len(sweeps)} kinds, listed below", scale.places(points))]
    return [svg.Series(row.variant or row.attack, scale.places(row.points)) for row in sweeps]


def _meter(row: CardRow, total: int, marks: Sequence[svg.PlotMark], how: str = "") -> str:
    """A bar for an attack that has no strength."""
    point = row.points[0]
    words = "cannot be read" if point.matched is None else f"{point.matched:,}"
    value = svg.PlotMark(point.matched or 0, f"{row.variant or row.attack}{how}: {words}")
    return svg.meter(value, total, marks, 0 if point.held else 1, _told(row))


class _Scale:
    """Strengths as places on the x axis, weak ones left, logarithmic where they range widely."""

    def __init__(self, sweeps: Sequence[CardRow]) -> None:
        self._points = [point for row in sweeps for point in row.points]
        strengths = [point.strength for point in self._points]
        low, high = min(strengths), max(strengths)
        self.logarithmic = low > 0 and high / low > WIDE_RANGE
        falling = [row for row in sweeps if row.points[0].strength > row.points[-1].strength]
        rising = [row for row in sweeps if row.points[0].strength < row.points[-1].strength]
        single = not rising and not falling and strengths[0] > strengths[-1]
        self.both_ways = bool(rising and falling)
        self._sign = -1 if (falling and not rising) or single else 1

    def place(self, strength: float) -> float:
        """Where a strength lies."""
        return self._sign * (math.log10(strength) if self.logarithmic else strength)

    def places(self, points: Iterable[CardPoint]) -> list[tuple[float, float]]:
        """Places and matching bits, from left to right; what cannot be read has no bits."""
        return sorted((self.place(point.strength), float(point.matched or 0)) for point in points)

    def ticks(self) -> list[svg.PlotMark]:
        """The strengths that were tried, as far as their labels do not overlap."""
        strengths = sorted({point.strength for point in self._points}, key=self.place)
        width = (self.place(strengths[-1]) - self.place(strengths[0])) or 1.0
        shown: list[svg.PlotMark] = []
        for strength in strengths:
            at = self.place(strength)
            if not shown or at - shown[-1].at >= NARROW * width:
                shown.append(svg.PlotMark(at, number(float(f"{strength:.3g}"))))
        return shown


def _numbers(name: str, sweeps: Sequence[CardRow]) -> str:
    """All points of an attack, folded."""
    noted = any(point.note for row in sweeps for point in row.points)
    anchored = any(row.aligned is not None for row in sweeps)
    more = ("With the anchor", "Verdict") * anchored
    notes = ("Note",) * noted
    head = ("Variant", "Strength", "Matching bits", "Verdict", *more, *notes, "Change")
    rows = [
        (
            text(row.variant or row.attack),
            strength_of(row, point),
            bits_of(point),
            text(word(point.status)),
            *(_with_anchor(point) if anchored else ()),
            *((text(point.note),) if noted else ()),
            change_of(point),
        )
        for row in sweeps
        for point in row.points
    ]
    whole = table(head, rows)
    return f'<div class="screen">{folded(f"{name}: all numbers", whole)}</div>'


def _with_anchor(point: CardPoint) -> tuple[str, str]:
    if point.status_aligned is None:
        return "–", "–"
    return bits_of(point.aligned), text(word(point.status_aligned))


def by_attack(rows: Iterable[CardRow]) -> list[tuple[str, list[CardRow]]]:
    """The sweeps of each attack, in order."""
    return [(name, list(sweeps)) for name, sweeps in groupby(rows, key=lambda row: row.attack)]


def _told(row: CardRow) -> str:
    """A sweep in words, for those who cannot see the picture."""
    if row.flipped is None:
        return f"{row.label} survives all strengths tried"
    where = f" at {row.flipped.strength:g}" if row.dial else ""
    return f"{row.label} flips the verdict{where}"


def word(status: PointStatus) -> str:
    """A status in plain words."""
    return _WORDS[status]
