"""What docs/findings.md claims can be shown again, and its figures of the bench are the bench's."""

import re
from importlib import util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
FINDINGS = dict(re.findall(r"^## (\d+)\. .*?\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))
COMMAND = re.compile(r"python -m (benchmarks\.\w+)|neuralmark lab run ([\w-]+)")


def test_findings_are_numbered() -> None:
    assert list(FINDINGS) == [str(number) for number in range(1, len(FINDINGS) + 1)]
    assert len(FINDINGS) >= 9


@pytest.mark.parametrize("number", FINDINGS)
def test_each_has_a_command_that_exists_how_long_it_takes_and_what_is_done_instead(
    number: str,
) -> None:
    text = FINDINGS[number]
    commands = COMMAND.findall(text)
    assert commands
    for module, _ in commands:
        assert not module or util.find_spec(module) is not None, module
    assert re.search(r"\b(seconds|minutes?|hours?|a night)\b", text), "say how long it takes"
    assert "**Instead.**" in text


def test_intervals_are_those_of_the_bench() -> None:
    """Once rows are made anew, this page must follow."""
    measured = (ROOT / "docs/results/bench/results.md").read_text(encoding="utf-8")
    told = re.findall(r"\d+\.\d+ ± \d+\.\d+", FINDINGS["8"])
    assert len(told) > 15
    for value in told:
        assert value in measured, value


def test_marks_above_and_below_the_boundary_are_told_apart() -> None:
    """Bold is a mark of NeuralMark whose mean is below what a verdict needs; others are not."""
    for line in FINDINGS["8"].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for cell in cells[1:3]:
            found = re.search(r"([\d.]+) ± ", cell)
            if line.startswith("|") and found:
                assert cell.startswith("**") == (float(found[1]) < 88.67), line
