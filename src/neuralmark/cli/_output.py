"""What the commands print: panels on a terminal, plain lines in a pipe, JSON when asked."""

import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from neuralmark.cli._language import in_options
from neuralmark.errors import NeuralMarkWarning

if TYPE_CHECKING:
    from neuralmark.marking.reading import Progress


def fail(name: str, message: str, code: int) -> NoReturn:
    """One line on stderr (and a JSON object on stdout when --json was given), then exit."""
    line = printable(" ".join(in_options(message).split()))
    if "--json" in sys.argv:
        as_json({"error": name, "message": line, "exit_code": code})
    click.echo(f"neuralmark: {name}: {line}", err=True)
    sys.exit(code)


def as_json(value: dict[str, Any]) -> None:
    """Print a JSON object, in ASCII: file names may be anything."""
    import json

    click.echo(json.dumps(value, indent=2, allow_nan=False))


def note(message: str) -> None:
    """A line for the person at the terminal, on stderr."""
    click.echo(f"neuralmark: {printable(in_options(message))}", err=True)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """What the library warns of is told in a line, as everything else is."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, NeuralMarkWarning):
            note(str(message))
        else:
            usual(message, category, *place, **more)

    usual = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always", NeuralMarkWarning)
        warnings.showwarning = show
        yield


def printable(text: str) -> str:
    """Escape control characters: names come from files that nobody vouches for."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def panel(title: str, rows: Sequence[tuple[str, str]], *, good: bool | None = None) -> None:
    """A titled list of labels and values."""
    rows = [(printable(label), printable(in_options(value))) for label, value in rows]
    if not sys.stdout.isatty():
        click.echo(printable(title))
        for label, value in rows:
            click.echo(f"  {label + ':':<20} {value}")
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(Text(label), Text(value))
    style = {True: "green", False: "red", None: "cyan"}[good]
    Console().print(
        Panel(
            grid,
            title=Text(printable(title), style=f"bold {style}"),
            title_align="left",
            border_style=style,
            expand=False,
        )
    )


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[int]) -> None:
    """A table; the columns whose indices are in `numeric` are right-aligned."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        widths = [max(len(row[i]) for row in [list(headers), *cells]) for i in range(len(headers))]
        for row in [list(headers), *cells]:
            parts = [
                cell.rjust(width) if i in numeric else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            click.echo("  ".join(parts).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(header_style="bold", box=None, pad_edge=False)
    for i, header in enumerate(headers):
        grid.add_column(header, justify="right" if i in numeric else "left", overflow="fold")
    for row in cells:
        grid.add_row(*(Text(cell) for cell in row))
    Console().print(grid)


_OF_TENSORS = ("finding", "aligning", "restoring")
"""How the library begins what it does tensor by tensor; all else is told in bytes."""


@contextmanager
def progress_bar(*, counting: bool = False) -> "Iterator[Progress | None]":
    """A progress bar on a terminal, of bytes, tensors or (counting) things; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.filesize import decimal
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[far]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def update(what: str, done: int, total: int) -> None:
            stage = what.split(" ", 1)[0]
            tensors = stage in _OF_TENSORS
            far = f"{decimal(done)} of {decimal(total)}"
            if counting or tensors:
                far = f"{done:,} of {total:,}{' tensors' * tensors}"
            fetched = _fetched()
            far += f", {decimal(fetched)} fetched" if fetched else ""
            # things of all names are counted together, tensors by what is done with them
            task = "" if counting else stage if tensors else what
            what = printable(what)
            if task not in tasks:
                tasks[task] = bar.add_task(what, total=total, far=far)
            bar.update(tasks[task], description=what, completed=done, total=total, far=far)

        yield update


def _fetched() -> int:
    """Bytes that came over the network so far; nothing is imported for it."""
    metering = sys.modules.get("neuralmark.remote.transfer.metering")
    return 0 if metering is None else int(metering.traffic().fetched)


def power_of_two(exponent: float) -> str:
    """A chance as a power of two, rounded up, so that none looks smaller than it is."""
    rounded = math.ceil(round(exponent * 100, 6)) / 100
    return f"2^{rounded:.2f}" if rounded else "1"


def percent(share: float, digits: int = 2) -> str:
    """A share as a percentage."""
    return f"{100 * share:.{digits}f} %"


def percent_at_least(share: float, digits: int = 3) -> str:
    """A share as a percentage, rounded down: for what is guaranteed."""
    scale = 10**digits
    return f"{math.floor(100 * share * scale) / scale:.{digits}f} %"
