"""How the runs of the lab go: a live table on a terminal, lines in a pipe, reasons at the end."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.lab.api import Failed
    from neuralmark.lab.execution.runner import Board


@contextmanager
def live(
    quiet: bool, before: set[str], left: "Callable[[Board], str]"
) -> "Iterator[Callable[[Board], None]]":
    """A live table of what runs, is done, remains; in a pipe a line for each run that ends."""
    seen = set(before)
    if before and not quiet:
        output.note(f"finished before: {len(before)}")

    def say(board: "Board") -> None:
        for name, progress in board.runs.items():
            if progress.state not in ("waiting", "running") and name not in seen:
                seen.add(name)
                if not quiet:
                    click.echo(f"{progress.state:8} {progress.spec.label}", err=True)

    if quiet or not sys.stderr.isatty():
        yield say
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:
        yield lambda board: live.update(_table(board, left(board)))


def _table(board: "Board", left: str) -> Any:
    from rich.table import Table

    counts = ", ".join(
        f"{board.count(state)} {state}"
        for state in ("done", "running", "waiting", "failed", "skipped")
        if board.count(state)
    )
    table = Table(title=counts + left, box=None, title_justify="left")
    table.add_column("run")
    table.add_column("progress", justify="right")
    for progress in board.runs.values():
        if progress.state == "running":
            share = f"{progress.done}/{progress.total}" if progress.total else "…"
            table.add_row(progress.spec.label, share)
    return table


def reasons(failures: "Sequence[Failed]") -> list[str]:
    """Why runs are not finished, each reason once."""
    found: dict[str, list[str]] = {}
    for failed in failures:
        found.setdefault(failed.why, []).append(failed.what)
    return [
        f"{'1 run is' if len(labels) == 1 else f'{len(labels)} runs are'} not finished"
        f" ({labels[0]}{' …' if len(labels) > 1 else ''}): {why}"
        for why, labels in found.items()
    ]
