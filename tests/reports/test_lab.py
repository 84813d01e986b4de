"""The lab's report: what is said about runs that are there and runs that are not."""

import re
from typing import Any

import pytest

from neuralmark.lab import experiments
from neuralmark.lab.comparing import Cell
from neuralmark.lab.contract import Figure, Line, Results, Table
from neuralmark.lab.plan.preset import load_preset
from neuralmark.lab.plan.spec import LAB_VERSION, identity
from neuralmark.reports.lab import (
    ReportPart,
    command,
    duration,
    html,
    html_table,
    made,
    markdown,
    part,
)
from neuralmark.reports.render.latex import latex, tex
from neuralmark.reports.render.plots import drawn

SMOKE = load_preset("smoke")


def rows(name: str, count: int | None = None) -> list[dict[str, Any]]:
    """Rows for the first runs of an experiment, a minute each."""
    return [
        {
            "run": identity(spec),
            "accuracy": 0.5,
            "rate": 1.0,
            "seconds": 60.0,
            "shares": [0.5] * 5,
            "versions": {"neuralmark": "1"},
        }
        for spec in experiments.get(name).runs(SMOKE)[:count]
    ]


def parts(found: list[dict[str, Any]]) -> list[ReportPart]:
    results = Results(found)
    return [part(experiments.get(name), SMOKE, results) for name in experiments.names()]


@pytest.mark.parametrize(("count", "said"), [(1, "7 of 8 runs are missing"), (7, "1 of 8 runs is")])
def test_a_table_says_how_many_runs_it_lacks(count: int, said: str) -> None:
    (table,), _ = made(
        experiments.get("overwrite-lambda"), SMOKE, Results(rows("overwrite-lambda", count))
    )
    assert said in table.note
    assert table.note.startswith("λ in units of")


def test_a_whole_table_lacks_nothing() -> None:
    for name in ("overwrite-lambda", "pruning", "rounds", "length"):
        tables, _ = made(experiments.get(name), SMOKE, Results(rows(name)))
        assert tables
        assert not any("missing" in table.note for table in tables)


def test_each_of_several_tables_counts_its_own_runs() -> None:
    tables, _ = made(experiments.get("rounds"), SMOKE, Results(rows("rounds", 2)))
    assert [re.findall(r"\d+ of \d+", table.note) for table in tables] == [["1 of 2"], ["5 of 6"]]


def test_counts_and_core_time_of_an_experiment() -> None:
    found = part(experiments.get("pruning"), SMOKE, Results(rows("pruning", 4)))
    assert (found.done, found.runs, found.seconds) == (4, 15, 240.0)
    text = markdown(SMOKE, [], [found])
    assert "4 of 15 runs of its own, 4 min 00 s by the clock" in text
    assert "`neuralmark lab run pruning --preset smoke`" in text


def test_rows_of_other_scales_are_not_counted() -> None:
    foreign = [{"run": "0" * 20, "seconds": 1e6, "versions": {"neuralmark": "0"}}]
    found = rows("overlap")
    text = markdown(SMOKE, found + foreign, parts(found + foreign))
    assert re.search(r"3 of \d+ runs are finished; they took 3 min 00 s by the clock", text)
    assert "Runs of other scales in the folder: 1." in text
    assert "neuralmark 0" not in text
    assert f"Made by version {LAB_VERSION} of the laboratory, with " in text


def test_what_was_not_run_is_listed_with_its_command() -> None:
    found = rows("overlap")
    whole = parts(found)
    text = markdown(SMOKE, found, whole)
    before, after = text.split("## Not run at this scale")
    missing, without = after.split("## Without runs at this scale")
    assert "lab run overlap " in before
    assert "lab run overlap " not in missing
    assert "neuralmark lab run forging --preset smoke" in missing
    assert "fidelity-architectures" in without
    assert "fidelity-architectures" not in missing


def test_the_page_has_contents_that_lead_somewhere_and_fetches_nothing() -> None:
    found = rows("pruning")
    whole = parts(found)
    drawings = {
        f"{each.experiment.name}-{i}": drawn(figure, each.experiment.name)[0]
        for each in whole
        for i, figure in enumerate(each.figures, 1)
    }
    page = html(SMOKE, found, whole, drawings)
    links = re.findall(r"<nav>.*</nav>", page, re.DOTALL)
    assert len(links) == 1
    targets = re.findall(r'href="#([^"]+)"', links[0])
    assert "pruning" in targets
    for target in targets:
        assert page.count(f'id="{target}"') == 1
    assert "characters]" not in page, "a paragraph was cut"
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert page.count("<figure") == 4
    assert "Not run at this scale" in page


def test_wide_tables_fit_or_scroll_in_a_box_of_their_own() -> None:
    found = rows("pruning")
    whole = parts(found)
    drawings = {
        f"{each.experiment.name}-{i}": "<svg></svg>"
        for each in whole
        for i, _ in enumerate(each.figures, 1)
    }
    page = html(SMOKE, found, whole, drawings)
    assert '<main class="broad">' in page
    assert page.count("<table>") == page.count('<div class="scroll"><table>') > 0
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert ".scroll{overflow-x:auto}" in style
    # 72 rem are 1,152 pixels; no cell of a broad page is kept on one line for being the last
    assert ".broad{max-width:72rem}" in style
    assert ".broad td:last-child{white-space:normal}" in style


def test_a_value_stays_with_its_interval_and_brackets_may_go_below() -> None:
    cell = Cell("36.1 ± 1.4 (99.0 ± 0.2)")
    words = html_table(Table("t", ("a", "b"), (("3.4 ± 0.9", cell),)))
    assert "<td>3.4\u00a0±\u00a00.9</td>" in words
    assert "<td>36.1\u00a0±\u00a01.4 (99.0\u00a0±\u00a00.2)</td>" in words


def test_a_preset_of_ones_own_is_named_by_its_file() -> None:
    from dataclasses import replace

    said = command(experiments.get("cost"), replace(SMOKE, name="mine"))
    assert said == "neuralmark lab run cost --preset mine.toml"


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 59.4, 59.6, 3599.7, 86_400)] == [
        *("0 s", "59 s", "1 min 00 s"),
        *("1 h 00 min", "24 h 00 min"),
    ]


def test_tex_escapes() -> None:
    assert tex("3×3 → a′ ≠ b_1") == r"3$\times$3 $\rightarrow$ a$'$ $\neq$ b\_1"
    assert tex("VoteMark*") == "VoteMark$^{*}$"
    assert tex("projection 4 σz, 2 σ") == r"projection 4 $\sigma_z$, 2 $\sigma$"
    assert tex("2^-128 and x^2") == r"$2^{-128}$ and x\textasciicircum{}2"
    assert tex("50 % & {a} [≈ 1] <–>") == r"50 \% \& \{a\} {[}$\approx$ 1] $<$--$>$"


@pytest.mark.parametrize("name", experiments.names())
def test_every_table_is_plain_ascii_in_latex(name: str) -> None:
    for scale in ("cpu", "paper", "smoke"):
        for table in experiments.get(name).tables(load_preset(scale), Results([])):
            words = latex(table, "tab:one")
            assert words.isascii(), [each for each in words if not each.isascii()]
            assert words.count("{") == words.count("}")
            assert words.count("$") % 2 == 0
            body = words.split(r"\midrule")[1].split(r"\bottomrule")[0]
            for line in filter(str.strip, body.splitlines()):
                assert len(re.findall(r"(?<!\\)&", line)) == len(table.head) - 1


def test_a_note_is_under_the_table_in_every_language() -> None:
    table = Table("t", ("a", "b"), (("1", Cell("2")),), "below 2^-128")
    assert r"\footnotesize below $2^{-128}$" in latex(table)
    assert "below 2<sup>−128</sup>" in html_table(table)
    assert "\nbelow 2^-128\n" in markdown(
        SMOKE, [], [ReportPart(experiments.get("cost"), [table], [])]
    )


def test_a_scheme_looks_the_same_in_every_figure() -> None:
    first = Figure("t", "x", "y", (Line("Clean", ((0, 1), (1, 2))), Line("NeuralMark", ((0, 2),))))
    alone = Figure("t", "x", "y", (Line("NeuralMark", ((0, 2), (1, 1))),))
    blue = "#0072b2"
    assert blue in drawn(first)[0].lower()
    assert blue in drawn(alone)[0].lower()


def test_the_boundary_and_the_logarithmic_axis_change_the_drawing() -> None:
    line = (Line("a", ((1, 100.0), (10, 90.0), (1000, 45.0))),)
    plain = Figure("t", "λ", "rate", line)
    ruled = Figure("t", "λ", "rate", line, boundary=88.67)
    log = Figure("t", "λ", "rate", line, log=True)
    steps = Figure("t", "λ", "rate", line, steps=True)
    pictures = [drawn(each)[0] for each in (plain, ruled, log, steps)]
    assert len(set(pictures)) == 4
    assert "88.67 %" in pictures[1]
    assert "88.67 %" not in pictures[0]


def test_the_command_names_a_folder_where_data_are_needed() -> None:
    cpu = load_preset("cpu")
    said = "neuralmark lab run {} --preset cpu"
    assert command(experiments.get("overlap"), cpu) == said.format("overlap")
    for name in ("pruning", "fidelity-text"):
        assert command(experiments.get(name), cpu) == said.format(name) + " --data DIR"
