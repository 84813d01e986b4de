"""The report of the lab: every table and figure with rows, the paper's values beside ours.

Pure functions of preset and rows make tables as HTML, Markdown and LaTeX; matplotlib draws the
figures. Nothing is written here: `neuralmark.lab.report` puts the files into a folder.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from neuralmark import zoo
from neuralmark.core.bound import boundary
from neuralmark.lab import experiments
from neuralmark.lab.comparing import Cell
from neuralmark.lab.contract import Experiment, Figure, Results, Table
from neuralmark.lab.execution.datasets import E2E, needed
from neuralmark.lab.execution.store import AGAIN, COMPARED, Row
from neuralmark.lab.plan.preset import Preset, preset_names
from neuralmark.lab.plan.spec import LAB_VERSION, Spec, identity, in_order
from neuralmark.reports.render.agreement import DOUBT, FLAG, agreement, flag, statement
from neuralmark.reports.render.latex import latex
from neuralmark.reports.render.page import code, page, paragraphs, section, text, with_powers
from neuralmark.reports.render.plots import drawn


@dataclass(frozen=True)
class ReportPart:
    """An experiment in the report: what its rows became, and how many there are."""

    experiment: Experiment
    tables: list[Table]
    figures: list[Figure]
    runs: int = 0
    """Its own runs at this scale; models that they only attack are not counted."""
    done: int = 0
    seconds: float = 0.0
    """Time that its finished runs took."""

    @property
    def shown(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.done or self.tables or self.figures)


def report_files(preset: Preset, rows: Sequence[Row]) -> dict[str, bytes]:
    """The page, Markdown, LaTeX tables, figures and the rows themselves, by their paths."""
    results = Results(rows)
    parts = [part(experiments.get(name), preset, results) for name in experiments.names(preset)]
    made: dict[str, str | bytes] = {}
    drawings: dict[str, str] = {}
    for each in parts:
        for i, table in enumerate(each.tables, 1):
            stem = f"{each.experiment.name}-{i}"
            made[f"tables/{stem}.tex"] = latex(table, f"tab:{stem}")
        for i, figure in enumerate(each.figures, 1):
            stem = f"{each.experiment.name}-{i}"
            svg, png = drawn(figure, stem)
            drawings[stem] = svg
            made |= {f"figures/{stem}.svg": svg, f"figures/{stem}.png": png}
    made["rows.jsonl"] = json_lines(preset, results)
    made["results.md"] = markdown(preset, rows, parts)
    made["index.html"] = html(preset, rows, parts, drawings)
    return {
        path: content.encode() if isinstance(content, str) else content
        for path, content in made.items()
    }


def json_lines(preset: Preset, results: Results) -> str:
    """The rows that the preset's experiments need, a line each, in the order of their runs."""
    rows = results.of(_all(preset))
    return "".join(json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in rows)


def _all(preset: Preset) -> list[Spec]:
    """The runs of every experiment, each once."""
    return in_order(
        [spec for name in experiments.names(preset) for spec in experiments.get(name).runs(preset)]
    )


def part(experiment: Experiment, preset: Preset, results: Results) -> ReportPart:
    """An experiment with its tables, figures and counts."""
    specs = _once(experiment.runs(preset))
    rows = results.of(specs)
    seconds = sum(float(row.get("seconds") or 0.0) for row in rows)
    tables, figures = made(experiment, preset, results)
    return ReportPart(experiment, tables, figures, len(specs), len(rows), seconds)


def _once(specs: Iterable[Spec]) -> list[Spec]:
    return list({identity(spec): spec for spec in specs}.values())


def made(
    experiment: Experiment, preset: Preset, results: Results
) -> tuple[list[Table], list[Figure]]:
    """Tables and figures of an experiment that have anything in them."""
    whole = experiment.tables(preset, results)
    alone = _once(experiment.runs(preset)) if len(whole) == 1 else []
    tables = [
        _counted(table, _once(table.specs) or alone, results) for table in whole if _filled(table)
    ]
    figures = [
        figure
        for figure in experiment.figures(preset, results)
        if any(line.points for line in figure.lines)
    ]
    return tables, figures


def _counted(table: Table, specs: Sequence[Spec], results: Results) -> Table:
    """The table with a note on the runs that it lacks."""
    lacking = len(specs) - len(results.of(specs))
    if not lacking:
        return table
    said = f"{lacking} of {len(specs)} runs {'is' if lacking == 1 else 'are'} missing"
    return replace(table, note=f"{table.note}; {said}" if table.note else said)


def _filled(table: Table) -> bool:
    """Whether any cell has more than dashes and brackets, such as `–` and `– (–)`."""
    return any(
        (cell.ours if isinstance(cell, Cell) else cell).strip("–() ")
        for row in table.rows
        for cell in row[1:]
    )


def introduction(
    preset: Preset, rows: Sequence[Row], parts: Sequence[ReportPart] = ()
) -> list[str]:
    """What was run, at what scale, and what that means."""
    wanted = _all(preset)
    own = Results(rows).of(wanted)
    data = sorted(
        {
            f"{row['data']['name']}: {row['data']['note']}"
            for row in own
            if row.get("data") and row["data"].get("note")
        }
    )
    versions = sorted({" ".join(f"{k} {v}" for k, v in row["versions"].items()) for row in own})
    spent = duration(sum(float(row.get("seconds") or 0.0) for row in own))
    others = len(rows) - len(own)
    said = [
        f"Preset {preset.name}: {preset.about}. {len(own)} of {len(wanted)} runs are finished;"
        f" they took {spent} by the clock, added up over all workers (below, a run that experiments"
        " share counts in each)."
        + (f" Runs of other scales in the folder: {others}." if others else ""),
        "A value in brackets is the detection rate; small values are the paper's, measured at its"
        f" own scale (ResNet-18 unless a table says otherwise, 200 epochs). {FLAG} marks a"
        f" contradiction: the mark is proven in one and not in the other; {DOUBT} one by the mean"
        f" only, where the interval reaches over the boundary. ± is half of the 95 % interval of"
        f" the seeds (Student's t). {_boundary(preset)} A * marks a reconstruction.",
    ]
    if parts:
        said.append(agreement({each.experiment.name: each.tables for each in parts}))
    if tests := preset.training.test_images:
        seeds = len(preset.training.seeds)
        said.append(
            f"Accuracies rest on {tests:,} test images and {seeds} seed{'s' if seeds > 1 else ''}:"
            f" one standard error of a single one is up to {50 / tests**0.5:.1f} points."
        )
    said += _made_again(own)
    said += [f"Data: {each}." for each in data]
    said += [f"Made by version {LAB_VERSION} of the laboratory, with {each}." for each in versions]
    return said


def _made_again(rows: Sequence[Row]) -> list[str]:
    """What attacks were made on, where that is not what tables of trained models show."""
    others = [(row, other) for row in rows for other in row.get(AGAIN, [])]
    if not others:
        return []
    apart = {
        name: max(abs((other[name] or 0.0) - (row.get(name) or 0.0)) for row, other in others)
        for name in COMPARED
    }
    return [
        "Rows do not carry models. Models made again, for attacks that were still to be run, on a"
        f" processor that rounds in another way: {len(others)}. Seeds, keys and images are the"
        " same, the weights are not. Their accuracies differ by up to"
        f" {100 * apart['accuracy']:.2f} points from those of trained models below, their detection"
        f" rates by up to {100 * apart['rate']:.2f}."
    ]


def _boundary(preset: Preset) -> str:
    """Which rate proves a mark at this scale."""
    bits = dict(preset.key).get("bits", zoo.architecture(preset.training.main).parameters.bits)
    least = boundary(int(bits))
    if least is None:
        return f"{bits} bits prove nothing, however many match."
    return (
        f"That takes {100 * least / int(bits):.2f} % of {bits} bits; other lengths have boundaries"
        " of their own, and 128 bits or fewer prove nothing, however many match."
    )


def duration(seconds: float) -> str:
    """A time in the units in which it is read.

    >>> duration(42), duration(750), duration(11_100)
    ('42 s', '12 min 30 s', '3 h 05 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"


def command(experiment: Experiment, preset: Preset) -> str:
    """What makes an experiment's rows."""
    scale = preset.name if preset.name in preset_names() else f"{preset.name}.toml"
    wanted = needed(experiment.runs(preset))
    stored = any(name == E2E or zoo.source(name).folders for name in wanted)
    return f"neuralmark lab run {experiment.name} --preset {scale}{' --data DIR' if stored else ''}"


def counts(each: ReportPart) -> str:
    """How much of an experiment was run, and what it took."""
    return f"{each.done} of {each.runs} runs of its own, {duration(each.seconds)} by the clock"


def html(
    preset: Preset, rows: Sequence[Row], parts: Sequence[ReportPart], drawings: dict[str, str]
) -> str:
    """The page."""
    title = f"NeuralMark lab: {preset.name}"
    shown = [each for each in parts if each.shown]
    said = paragraphs(*(text(line, 4000) for line in introduction(preset, rows, parts)))
    inner = f"<section>\n<h1>{text(title)}</h1>\n{said}\n</section>"
    entries = "".join(
        f'<li><a href="#{text(each.experiment.name)}">{text(each.experiment.name)}</a>'
        f" – {text(each.experiment.answers)}"
        f" <small>({text(each.experiment.paper)}; {each.done} of {each.runs} runs)</small></li>"
        for each in shown
    )
    inner += section("Contents", f"<nav><ul>{entries}</ul></nav>")
    for each in shown:
        inner += _html_part(preset, each, drawings)
    missing, nothing = left_out(parts)
    if missing:
        entries = "".join(f"<li>{text(e.answers)} {code(command(e, preset))}</li>" for e in missing)
        inner += section("Not run at this scale", f"<ul>{entries}</ul>")
    if nothing:
        names = ", ".join(e.name for e in nothing)
        inner += section("Without runs at this scale", paragraphs(text(names, 4000)))
    return page(title, inner, broad=True)


def _html_part(preset: Preset, each: ReportPart, drawings: dict[str, str]) -> str:
    experiment = each.experiment
    ours = experiment.paper.startswith("ours")
    where = experiment.paper if ours else f"in the paper: {experiment.paper}"
    body = paragraphs(
        text(f"{experiment.answers} ({where})", 1000),
        f"{text(counts(each))}. Made by {code(command(experiment, preset))}",
    )
    body += "".join(html_table(table) for table in each.tables)
    for i, figure in enumerate(each.figures, 1):
        svg = drawings[f"{experiment.name}-{i}"]
        drawing = svg[svg.index("<svg") :].replace(
            "<svg", f'<svg role="img" aria-label="{text(caption(figure))}"', 1
        )
        body += (
            f'<figure style="max-width:36rem">{drawing}'
            f"<figcaption>{text(caption(figure), 1000)}</figcaption></figure>"
        )
    return f'<div id="{text(experiment.name)}">{section(experiment.name, body)}</div>'


def caption(figure: Figure) -> str:
    """What a figure shows, in one line."""
    note = f"; {figure.note}" if figure.note else ""
    return f"{figure.title}: {figure.y} over {figure.x}{note}."


def left_out(parts: Sequence[ReportPart]) -> tuple[list[Experiment], list[Experiment]]:
    """Experiments that were not run, and those that have no runs at this scale."""
    empty = [each for each in parts if not each.shown]
    return (
        [each.experiment for each in empty if each.runs],
        [each.experiment for each in empty if not each.runs],
    )


def html_table(table: Table) -> str:
    """A table with the paper's values small below ours."""
    head = "".join(f'<th scope="col">{text(each)}</th>' for each in table.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_html_cell(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    below = (statement(table), table.note)
    note = "".join(f'<p class="soft"><small>{with_powers(e)}</small></p>' for e in below if e)
    title = f'<caption style="text-align:left">{text(table.title)}</caption>'
    return (
        f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def _html_cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return _whole(text(cell))
    theirs = f'<br><small class="soft">{text(cell.paper)}</small>' if cell.paper else ""
    sign = f" <strong>{flag(cell)}</strong>" if cell.contradicts else ""
    return _whole(text(cell.ours)) + sign + theirs


def _whole(markup: str) -> str:
    """Without a line break between a value and its interval."""
    return markup.replace(" ± ", "\u00a0±\u00a0")


def markdown(preset: Preset, rows: Sequence[Row], parts: Sequence[ReportPart]) -> str:
    """The same as Markdown."""
    lines = [f"# NeuralMark lab: {preset.name}", ""]
    for said in introduction(preset, rows, parts):
        lines += [said, ""]
    for each in (each for each in parts if each.shown):
        experiment = each.experiment
        lines += [f"## {experiment.name}", "", f"{experiment.answers} ({experiment.paper})", ""]
        lines += [f"{counts(each)}. Made by `{command(experiment, preset)}`", ""]
        for table in each.tables:
            lines += [f"**{table.title}**", ""]
            lines.append("| " + " | ".join(table.head) + " |")
            lines.append("|" + "---|" * len(table.head))
            for row in table.rows:
                lines.append("| " + " | ".join(map(_markdown_cell, row)) + " |")
            for below in (statement(table), table.note):
                lines += ["", below] if below else []
            lines.append("")
        for i, figure in enumerate(each.figures, 1):
            lines += [f"![{caption(figure)}](figures/{experiment.name}-{i}.svg)", ""]
    missing, nothing = left_out(parts)
    if missing:
        lines += ["## Not run at this scale", ""]
        lines += [f"- {each.answers} `{command(each, preset)}`" for each in missing]
        lines.append("")
    if nothing:
        lines += ["## Without runs at this scale", "", ", ".join(each.name for each in nothing)]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return cell
    theirs = f" *[{cell.paper}]*" if cell.paper else ""
    return cell.ours + (f" {flag(cell)}" if cell.contradicts else "") + theirs
