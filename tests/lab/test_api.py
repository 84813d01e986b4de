"""The laboratory from Python: what the command line calls."""

from pathlib import Path

import pytest

from neuralmark import lab
from neuralmark.errors import NeuralMarkError, ParameterError, ResultsError
from neuralmark.lab.execution.runner import Board


def test_runs_are_made_once_and_reported(tmp_path: Path) -> None:
    seen: list[int] = []

    def watch(board: Board) -> None:
        seen.append(board.count("done"))

    first = lab.run("overlap", preset="smoke", results=tmp_path / "runs", watch=watch)
    assert first.failed == ()
    assert (first.before, first.done) == (0, max(seen))
    assert first.done > 0
    again = lab.run("overlap", preset="smoke", results=tmp_path / "runs")
    assert (again.before, again.done) == (first.done, first.done)
    written = lab.report(preset="smoke", results=tmp_path / "runs", out=tmp_path / "report")
    assert tmp_path / "report" / "index.html" in written


@pytest.mark.parametrize("wrong", [{"jobs": 0}, {"engine": "cloud"}])
def test_means_that_are_none(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        lab.Means(**wrong)  # type: ignore[arg-type]


def test_what_cannot_be_run_is_said_before_anything_is(tmp_path: Path) -> None:
    with pytest.raises(NeuralMarkError, match="overlap"):
        lab.run("overlapp", preset="smoke", results=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ResultsError, match="no results"):
        lab.report(results=tmp_path / "none", out=tmp_path / "report")
