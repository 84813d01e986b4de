"""Small pictures as SVG text.

Colours are the classes c0 to c5 of the page's style, so light, dark and print each get their own;
shapes differ as well, so nothing depends on colour alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from neuralmark.reports.render.page import legend, number, text

WIDTH = 640
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2", "1 4")
_FINE_CELLS = 8192
"""Above this many cells a grid is drawn without gaps: they would be thinner than a pixel."""


@dataclass(frozen=True)
class Series:
    """A labelled line: points (x, y) in order."""

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class PlotMark:
    """A labelled place on a scale."""

    at: float
    label: str


@dataclass(frozen=True)
class Frame:
    """Data coordinates in a rectangle of pixels."""

    x: tuple[float, float]
    y: tuple[float, float]
    height: int = 260
    left: int = 58
    right: int = 14
    top: int = 22
    bottom: int = 46

    def across(self, value: float) -> float:
        """Pixels from the left."""
        low, high = self.x
        room = WIDTH - self.left - self.right
        return self.left + room * (value - low) / ((high - low) or 1.0)

    def down(self, value: float) -> float:
        """Pixels from the top."""
        low, high = self.y
        room = self.height - self.top - self.bottom
        return self.height - self.bottom - room * (value - low) / ((high - low) or 1.0)

    def axes(
        self, labels: tuple[str, str], *, whole_y: bool = False, x_ticks: "Sequence[PlotMark]" = ()
    ) -> str:
        """Grid lines, ticks (round numbers, or `x_ticks` along the foot) and the axes' names."""
        base, end = self.height - self.bottom, WIDTH - self.right
        parts = []
        for value in ticks(*self.y, most=5, whole=whole_y):
            y = self.down(value)
            parts.append(f'<path class="rule" d="M{self.left} {y:.1f}H{end}"/>')
            parts.append(label(self.left - 8, y + 4, number(value), anchor="end"))
        usual = [PlotMark(value, number(value)) for value in ticks(*self.x, most=9)]
        for tick in x_ticks or usual:
            x = self.across(tick.at)
            parts.append(f'<path class="axis" d="M{x:.1f} {base}v5"/>')
            parts.append(label(x, base + 18, tick.label))
        parts.append(f'<path class="axis" d="M{self.left} {base}H{end}"/>')
        parts.append(label((self.left + end) / 2, self.height - 6, labels[0]))
        parts.append(label(13, (self.top + base) / 2, labels[1], kind="turned"))
        return "".join(parts)


def picture(markup: str, width: float, height: float, description: str) -> str:
    """An SVG element with a description for those who cannot see it."""
    said = text(description, 1000)
    opening = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{said}">'
    return f"{opening}{markup}</svg>"


def label(x: float, y: float, words: str, *, anchor: str = "middle", kind: str = "") -> str:
    """A piece of text; of the kind `turned` (among others), it reads upwards."""
    extra = f' class="{kind}"' if kind else ""
    if "turned" in kind.split():
        extra += f' transform="rotate(-90 {x:.1f} {y:.1f})"'
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place}{extra}>{text(words, 80)}</text>"


def ticks(low: float, high: float, *, most: int, whole: bool = False) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) between low and high, about `most` of them.

    >>> ticks(0, 10, most=6)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    rough = span / most
    power = math.floor(math.log10(rough))
    step = next(m * 10.0**power for m in (1, 2, 5, 10) if m * 10.0**power >= rough * 0.999)
    step = max(step, 1.0) if whole else step
    digits = max(0, -math.floor(math.log10(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, digits) + 0.0 for i in range(first, last + 1)]


def swatch(colour: int, *, small: bool = False) -> str:
    """The sample that a legend shows: a full cell or a small one."""
    edge = 0.3 if small else 0.04
    side = f'width="{1 - 2 * edge:.2f}" height="{1 - 2 * edge:.2f}"'
    return (
        f'<svg viewBox="0 0 1 1" aria-hidden="true" class="c{colour}">'
        f'<rect class="fill" x="{edge}" y="{edge}" {side}/></svg>'
    )


def columns_for(count: int) -> int:
    """Columns of a grid of cells: a power of two, so that rows are easy to count.

    >>> [columns_for(n) for n in (1, 21, 256, 4096, 65536)]
    [1, 16, 32, 128, 256]
    """
    power = 1 << math.ceil(math.log2(max(math.sqrt(2 * count), 1)))
    return min(count, max(16, min(power, 256)))


def grid(cells: Sequence[bool], description: str) -> str:
    """Cells row by row: full ones where true (colour 0), small ones where false (colour 1).

    Neighbours of one kind share a stroke, dashed into cells, which keeps the largest map small:
    every `h` in the path is a run of that many cells.
    """
    columns = columns_for(len(cells))
    runs: dict[bool, list[str]] = {True: [], False: []}
    for start in range(0, len(cells), columns):
        x = 0
        for kind, group in groupby(cells[start : start + columns]):
            length = sum(1 for _ in group)
            runs[bool(kind)].append(f"M{x} {start // columns}h{length}")
            x += length
    rows = -(-len(cells) // columns)
    fine = len(cells) > _FINE_CELLS
    body = _cells("yes c0", runs[True], 1.0 if fine else 0.88)
    body += _cells("no c1", runs[False], 0.7 if fine else 0.42)
    drawn = picture(f'<g transform="translate(0 .5)">{body}</g>', columns, rows, description)
    return drawn.replace("<svg ", f'<svg style="max-width:{columns * 24}px" ', 1)


def _cells(kind: str, runs: Sequence[str], size: float) -> str:
    if not runs:
        return ""
    gap = (1 - size) / 2
    dashes = f' stroke-dasharray="0 {gap:.2f} {size:g} {gap:.2f}"' if gap else ""
    return f'<path class="stroke {kind}" stroke-width="{size:g}"{dashes} d="{"".join(runs)}"/>'


def histogram(
    edges: Sequence[float],
    stacks: Sequence[tuple[str, Sequence[int]]],
    labels: tuple[str, str],
    description: str,
    zero: str = "",
) -> str:
    """Stacked bars with their counts; each stack is (name, counts), `zero` names the line at 0."""
    totals = [sum(counts) for counts in zip(*(c for _, c in stacks), strict=True)]
    top = max([1, *totals])
    upright = len(f"{top:,}") > 2
    room = 1 + 0.04 * len(f"{top:,}") if upright else 1.0
    frame = Frame((edges[0], edges[-1]), (0, top * room), top=40)
    parts = [frame.axes(labels, whole_y=True)]
    if zero and edges[0] <= 0 <= edges[-1]:
        parts.append(_zero_line(frame, zero))
    for i, total in enumerate(totals):
        base = 0
        for colour, (name, counts) in enumerate(stacks):
            if counts[i]:
                heights = base, base + counts[i]
                parts.append(_bar(frame, (edges[i], edges[i + 1]), heights, colour, name))
                base += counts[i]
        if total:
            middle = (frame.across(edges[i]) + frame.across(edges[i + 1])) / 2
            parts.append(_count(middle, frame.down(total), total, upright))
    return picture("".join(parts), WIDTH, frame.height, description)


def _bar(
    frame: Frame, span: tuple[float, float], heights: tuple[int, int], colour: int, name: str
) -> str:
    x, end = (frame.across(value) for value in span)
    foot, y = (frame.down(value) for value in heights)
    width = max(end - x - 1.5, 0.5)
    count = heights[1] - heights[0]
    hint = f"{number(round(span[0], 3))} to {number(round(span[1], 3))}: {count:,} {name}"
    return (
        f'<rect class="fill c{colour}" x="{x + 0.75:.1f}" y="{y:.1f}" width="{width:.1f}"'
        f' height="{foot - y:.1f}"><title>{text(hint)}</title></rect>'
    )


def _count(x: float, y: float, count: int, upright: bool) -> str:
    if upright:
        return label(x + 3.5, y - 4, f"{count:,}", anchor="start", kind="tiny count turned")
    return label(x, y - 4, f"{count:,}", kind="tiny count")


def _zero_line(frame: Frame, words: str) -> str:
    x, base = frame.across(0), frame.height - frame.bottom
    left = x > WIDTH / 2
    line = f'<path class="strong zero" stroke-width="1.5" d="M{x:.1f} 10V{base + 5}"/>'
    anchor = "end" if left else "start"
    return line + label(x + (-5 if left else 5), 19, words, anchor=anchor, kind="bold")


def line_plot(
    series: Sequence[Series],
    labels: tuple[str, str],
    description: str,
    *,
    y_range: tuple[float, float] | None = None,
    levels: Sequence[PlotMark] = (),
    x_ticks: Sequence[PlotMark] = (),
) -> str:
    """Lines with a legend, each with its own colour and dashes; `levels` are labelled heights.

    `x_ticks` are what stands along the foot instead of round numbers.
    """
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points] + [level.at for level in levels]
    low, high = y_range or (min(ys, default=0.0), max(ys, default=1.0))
    span = min(xs, default=0.0), max(xs, default=1.0)
    frame = Frame(span, (low, high), height=300, right=24 if x_ticks else 14)
    parts = [frame.axes(labels, x_ticks=x_ticks)]
    end = WIDTH - frame.right
    for level in levels:
        y = frame.down(level.at)
        path = f"M{frame.left} {y:.1f}H{end}"
        parts.append(f'<path class="strong" stroke-dasharray="2 2" d="{path}"/>')
        parts.append(label(end - 4, y - 5, level.label, anchor="end", kind="bold halo"))
    for i, line in enumerate(series):
        places = [f"{frame.across(x):.1f} {frame.down(y):.1f}" for x, y in line.points]
        if places:
            parts.append(_stroke(i, "M" + "L".join(places)))
            dots = "".join(f"M{place}h0" for place in places)
            parts.append(f'<path class="stroke dots c{i % 6}" stroke-width="6.5" d="{dots}"/>')
    opening = '<svg class="line" viewBox="0 0 32 8" aria-hidden="true">'
    samples = [
        (f"{opening}{_stroke(i, 'M0 4H32')}</svg>", line.label) for i, line in enumerate(series)
    ]
    return legend(samples) + picture("".join(parts), WIDTH, frame.height, description)


def _stroke(index: int, path: str) -> str:
    dashes = _DASHES[index % len(_DASHES)]
    extra = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path class="stroke c{index % 6}" stroke-width="2"{extra} d="{path}"/>'


def meter(
    value: PlotMark, total: float, marks: Sequence[PlotMark], colour: int, description: str
) -> str:
    """A bar filled up to a value, labelled above, with labelled marks below."""
    scale = (WIDTH - 4) / (total or 1)
    end = 2 + value.at * scale
    parts = [
        f'<rect class="ground" x="2" y="24" width="{WIDTH - 4}" height="14" rx="2"/>',
        f'<rect class="fill c{colour}" x="2" y="24" width="{end - 2:.1f}" height="14" rx="2"/>',
        _beside(PlotMark(end, value.label), 17, "bold", right=value.at < total / 2),
    ]
    for i, mark in enumerate(sorted(marks, key=lambda mark: mark.at)):
        x = 2 + mark.at * scale
        parts.append(f'<path class="strong" stroke-width="1.5" d="M{x:.1f} 21V46"/>')
        parts.append(_beside(PlotMark(x, mark.label), 62, "", right=i > 0))
    drawn = picture("".join(parts), WIDTH, 68, description)
    return drawn.replace("<svg ", '<svg class="meter" ', 1)


def _beside(mark: PlotMark, y: float, kind: str, *, right: bool) -> str:
    """A label to the right or left of its place, on the other side where it would not fit."""
    width = 11 * len(mark.label)
    right = mark.at - width < 0 or (right and mark.at + width <= WIDTH)
    anchor = "start" if right else "end"
    return label(mark.at + (-2 if right else 2), y, mark.label, anchor=anchor, kind=kind)
