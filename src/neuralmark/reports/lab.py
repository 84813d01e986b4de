"""The report of the lab: every table and figure with rows, the paper's values beside ours.

Pure functions of preset and rows make tables as HTML, Markdown and LaTeX; matplotlib draws the
figures. `write_report` puts them into a folder.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neuralmark import files
from neuralmark.errors import MissingExtraError
from neuralmark.lab import experiments
from neuralmark.lab.experiments._base import Cell, Experiment, Figure, Results, Table
from neuralmark.lab.preset import Preset
from neuralmark.lab.store import Row
from neuralmark.reports.page import page, paragraphs, section, text

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, told apart by the colour-blind too; dashes and marks differ as well."""
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "x", "+")
FLAG = "≠"
"""Behind a value that contradicts the paper: the mark survives in one and not in the other."""


def write_report(preset: Preset, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the page, Markdown, LaTeX tables and figures; give their paths."""
    results = Results(rows)
    parts = [(each, *made(each, preset, results)) for each in map(experiments.get, _names())]
    found = [part for part in parts if part[1] or part[2]]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    drawings: dict[str, str] = {}
    for experiment, tables, figures in found:
        for i, table in enumerate(tables, 1):
            path = folder / "tables" / f"{experiment.name}-{i}.tex"
            written.append(_put(path, latex(table)))
        for i, figure in enumerate(figures, 1):
            stem = f"{experiment.name}-{i}"
            svg, png = drawn(figure)
            drawings[stem] = svg
            written.append(_put(folder / "figures" / f"{stem}.svg", svg))
            image = folder / "figures" / f"{stem}.png"
            image.write_bytes(png)
            written.append(image)
    written.append(_put(folder / "results.md", markdown(preset, rows, found)))
    written.append(_put(folder / "index.html", html(preset, rows, found, drawings)))
    return written


def _names() -> list[str]:
    return experiments.names()


Part = tuple[Experiment, list[Table], list[Figure]]


def made(
    experiment: Experiment, preset: Preset, results: Results
) -> tuple[list[Table], list[Figure]]:
    """Tables and figures of an experiment that have anything in them."""
    tables = [table for table in experiment.tables(preset, results) if _filled(table)]
    figures = [
        figure
        for figure in experiment.figures(preset, results)
        if any(line.points for line in figure.lines)
    ]
    return tables, figures


def _filled(table: Table) -> bool:
    """Whether any cell has more than dashes and brackets, such as `–` and `– (–)`."""
    return any(
        (cell.ours if isinstance(cell, Cell) else cell).strip("–() ")
        for row in table.rows
        for cell in row[1:]
    )


def introduction(preset: Preset, rows: Sequence[Row]) -> list[str]:
    """What was run, at what scale, and what that means."""
    data = sorted(
        {
            f"{row['data']['name']}: {row['data']['note']}"
            for row in rows
            if row.get("data") and row["data"].get("note")
        }
    )
    versions = sorted({" ".join(f"{k} {v}" for k, v in row["versions"].items()) for row in rows})
    said = [
        f"Preset {preset.name}: {preset.about}. {len(rows)} runs in all.",
        "A value in brackets is the detection rate; grey values are the paper's, measured at its"
        f" own scale (ResNet-18 or AlexNet, 200 epochs). {FLAG} marks a contradiction: the mark is"
        " above the boundary of 88.67 % in one and below it in the other. VoteMark* is a"
        " reconstruction.",
    ]
    said += [f"Data: {each}." for each in data]
    said += [f"Made with {each}." for each in versions]
    return said


def html(
    preset: Preset, rows: Sequence[Row], parts: Sequence[Part], drawings: dict[str, str]
) -> str:
    """The page."""
    inner = section("What this is", paragraphs(*map(text, introduction(preset, rows))))
    for experiment, tables, figures in parts:
        body = paragraphs(text(f"{experiment.answers} (in the paper: {experiment.paper})"))
        body += "".join(html_table(table) for table in tables)
        for i, figure in enumerate(figures, 1):
            svg = drawings[f"{experiment.name}-{i}"]
            start = svg.index("<svg")
            body += f"<figure>{svg[start:]}<figcaption>{text(figure.title)}</figcaption></figure>"
        inner += section(experiment.name, body)
    return page(f"NeuralMark lab: {preset.name}", inner)


def html_table(table: Table) -> str:
    """A table with the paper's values small beside ours."""
    head = "".join(f"<th>{text(each)}</th>" for each in table.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_html_cell(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    note = f"<p>{text(table.note)}</p>" if table.note else ""
    caption = f"<caption>{text(table.title)}</caption>"
    return (
        f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def _html_cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return text(cell)
    theirs = f' <small style="opacity:.6">{text(cell.paper)}</small>' if cell.paper else ""
    flag = f" <strong>{FLAG}</strong>" if cell.contradicts else ""
    return text(cell.ours) + flag + theirs


def markdown(preset: Preset, rows: Sequence[Row], parts: Sequence[Part]) -> str:
    """The same as Markdown."""
    lines = [f"# NeuralMark lab: {preset.name}", "", *introduction(preset, rows), ""]
    for experiment, tables, figures in parts:
        lines += [f"## {experiment.name}", "", f"{experiment.answers} ({experiment.paper})", ""]
        for table in tables:
            lines += [f"**{table.title}**", ""]
            lines.append("| " + " | ".join(table.head) + " |")
            lines.append("|" + "---|" * len(table.head))
            for row in table.rows:
                lines.append("| " + " | ".join(map(_markdown_cell, row)) + " |")
            lines += ["", table.note, ""] if table.note else [""]
        for i, figure in enumerate(figures, 1):
            lines += [f"![{figure.title}](figures/{experiment.name}-{i}.svg)", ""]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return cell
    theirs = f" *[{cell.paper}]*" if cell.paper else ""
    return cell.ours + (f" {FLAG}" if cell.contradicts else "") + theirs


def latex(table: Table) -> str:
    """A table for booktabs."""
    columns = "l" + "c" * (len(table.head) - 1)
    lines = [r"\begin{table}", r"  \centering", rf"  \caption{{{_tex(table.title)}}}"]
    lines += [rf"  \begin{{tabular}}{{{columns}}}", r"    \toprule"]
    lines.append("    " + " & ".join(map(_tex, table.head)) + r" \\")
    lines.append(r"    \midrule")
    for row in table.rows:
        lines.append("    " + " & ".join(map(_latex_cell, row)) + r" \\")
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return _tex(cell)
    theirs = rf" {{\scriptsize [{_tex(cell.paper)}]}}" if cell.paper else ""
    return _tex(cell.ours) + (r"$^{\neq}$" if cell.contradicts else "") + theirs


_TEX = {
    "\\": r"\textbackslash{}",
    **{each: "\\" + each for each in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "λ": r"$\lambda$",
    "η": r"$\eta$",
    "σ": r"$\sigma$",
    "±": r"$\pm$",
    "–": "--",
    "·": r"$\cdot$",
}


def _tex(words: str) -> str:
    return "".join(_TEX.get(each, each) for each in words)


def drawn(figure: Figure) -> tuple[str, bytes]:
    """A figure as SVG and PNG."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtraError("figures need matplotlib: pip install 'neuralmark[lab]'") from None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    style: Any = {"svg.hashsalt": "neuralmark", "font.size": 9}
    style |= {"axes.grid": True, "grid.alpha": 0.25}
    with mpl.rc_context(style):
        canvas = Canvas(figsize=(4.6, 3.0), layout="constrained")
        axes = canvas.add_subplot()
        for i, line in enumerate(figure.lines):
            many = len(line.points) > 30
            axes.plot(
                [x for x, _ in line.points],
                [y for _, y in line.points],
                color=COLOURS[i % len(COLOURS)],
                linestyle=DASHES[i % len(DASHES)],
                marker=None if many else MARKERS[i % len(MARKERS)],
                markersize=4,
                linewidth=1.3,
                label=line.label,
            )
        axes.set_xlabel(figure.x)
        axes.set_ylabel(figure.y)
        axes.set_title(figure.title, fontsize=9)
        if len(figure.lines) > 1:
            axes.legend(fontsize=7, frameon=False)
        svg, png = io.StringIO(), io.BytesIO()
        vector: Any = FigureCanvasSVG(canvas)
        vector.print_svg(svg, metadata={"Date": None})
        raster: Any = FigureCanvasAgg(canvas)
        raster.print_png(png, metadata={"Software": None})
    return svg.getvalue(), png.getvalue()


def _put(path: Path, words: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, words, overwrite=True)
    return path
