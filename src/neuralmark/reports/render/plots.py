"""Figures of the lab as SVG and PNG, drawn by matplotlib; the same figure gives the same bytes."""

import io
from textwrap import fill
from typing import Any

from neuralmark.errors import MissingExtraError
from neuralmark.lab.contract import Figure
from neuralmark.lab.plan.columns import TITLES

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""Okabe and Ito's palette, told apart by the colour-blind too; dashes and marks differ as well."""
DASHES: tuple[Any, ...] = (
    "-",
    "--",
    "-.",
    ":",
    (0, (5, 1)),
    (0, (3, 1, 1, 1)),
    (0, (1, 1)),
    (0, (6, 2)),
)
MARKERS = ("o", "s", "^", "D", "v", "x", "+", "P")


def drawn(figure: Figure, salt: str = "") -> tuple[str, bytes]:
    """A figure as SVG and PNG; the salt keeps the names in several SVGs of one page apart."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtraError("figures need matplotlib: pip install 'neuralmark[lab]'") from None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    style: Any = {"svg.hashsalt": f"neuralmark {salt}", "font.size": 9}
    style |= {"axes.grid": True, "grid.alpha": 0.25, "axes.spines.top": False}
    style |= {"axes.spines.right": False, "axes.formatter.useoffset": False}
    with mpl.rc_context(style):
        canvas = Canvas(figsize=(4.8, 3.3), dpi=200, layout="constrained")
        axes = canvas.add_subplot()
        for i, line in enumerate(figure.lines):
            look = _look(line.label, i)
            many = figure.steps or len(line.points) > 30
            axes.plot(
                [x for x, _ in line.points],
                [y for _, y in line.points],
                color=COLOURS[look],
                linestyle=DASHES[look],
                drawstyle="steps-mid" if figure.steps else "default",
                marker=None if many else MARKERS[look],
                markersize=max(4, 7.5 - 0.7 * look),
                markerfacecolor="none",  # lines that lie on each other stay visible
                linewidth=1.3,
                zorder=20 - look,
                label=line.label,
            )
            if line.band:
                axes.fill_between(
                    [x for x, _ in line.points],
                    [low for low, _ in line.band],
                    [high for _, high in line.band],
                    color=COLOURS[look],
                    alpha=0.15,
                    linewidth=0,
                )
        _axes(axes, figure)
        if len(figure.lines) > 1:
            columns = min(len(figure.lines), 3)
            canvas.legend(
                loc="outside lower center",
                ncols=columns,
                fontsize=8,
                frameon=False,
                handlelength=3,
            )
        svg, png = io.StringIO(), io.BytesIO()
        raster: Any = FigureCanvasAgg(canvas)
        raster.print_png(png, metadata={"Software": None})
        vector: Any = FigureCanvasSVG(canvas)
        bare = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        vector.print_svg(svg, metadata=bare)  # last: it changes the resolution
    return svg.getvalue(), png.getvalue()


def _look(label: str, place: int) -> int:
    """A scheme looks the same in every figure; other lines go by their place."""
    schemes = list(TITLES.values())
    return (schemes.index(label) if label in schemes else place) % len(COLOURS)


def _axes(axes: Any, figure: Figure) -> None:
    """Names, scales and ticks of the axes, and the boundary where rates are drawn."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    axes.set_title(fill(figure.title, 64), fontsize=9)
    points = sorted({x for line in figure.lines for x, _ in line.points})
    if figure.log:
        axes.set_xscale("log")
    if len(points) <= 10 and not figure.steps and not figure.traded:
        axes.set_xticks(points, [f"{x:g}" for x in points], fontsize=7.5 if figure.log else 9)
        axes.xaxis.set_minor_locator(NullLocator())
    elif all(float(x).is_integer() for x in points):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if figure.traded and figure.boundary is not None:
        axes.axvline(figure.boundary, color="#555555", linestyle=":", linewidth=0.9)
        axes.set_ylim(bottom=0)
    elif figure.boundary is not None:
        lowest = min((y for line in figure.lines for _, y in line.points), default=0.0)
        axes.set_ylim(40 if lowest >= 40 else 0, 105)
        axes.axhline(figure.boundary, color="#555555", linestyle=":", linewidth=0.9)
        axes.annotate(
            f"boundary\n{figure.boundary:.2f} %",
            (1, figure.boundary),
            (3, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=7,
            color="#555555",
            va="center",
        )
