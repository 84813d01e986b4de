"""How a scan goes and what it found: a live table on a terminal, lines in a pipe, pages."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import click

from neuralmark.cli import _output as output
from neuralmark.cli._language import in_options

if TYPE_CHECKING:
    from neuralmark.scanning.contract import ScanRow
    from neuralmark.scanning.rounds import ScanResult
    from neuralmark.scanning.running import Tally, Watch

MOST_SHOWN = 20
"""Findings that are printed; all are in the files."""
BETWEEN = 30.0
"""Seconds between two lines on how far it is, where there is no terminal for the table."""
MOST_ERRORS = 5
"""Models that could not be read of which the reason is printed."""
LONGEST_WHY = 300
MOST_PAGES = 1000
"""Findings that get a page of their own."""
TITLES = {
    "verified": "verified",
    "matches-unproven": "match, unproven",
    "nothing": "nothing found",
    "unreadable": "not readable",
    "error": "errors",
}
UNREAD = ("unreadable", "error")
"""Statuses of models that could not be read."""


@contextmanager
def live(*, quiet: bool) -> "Iterator[Watch]":
    """A live table of how far the round is; in a pipe a line for each finding, and now and then."""
    if quiet:
        yield lambda tally: None
        return
    far = _HowFar()
    if not sys.stderr.isatty():
        with _now_and_then(far):
            yield far.say
        return
    from rich.console import Console
    from rich.live import Live

    screen = Console(stderr=True)
    with Live(get_renderable=far.table, console=screen, transient=True, refresh_per_second=4):
        yield far.take


@contextmanager
def _now_and_then(far: "_HowFar") -> Iterator[None]:
    """A line every half minute, also while no model is finished and no worker says anything."""
    stop = Event()

    def tell() -> None:
        while not stop.wait(BETWEEN):
            line = far.line()
            if line:
                output.note(line)

    teller = Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        stop.set()
        teller.join()


class _HowFar:
    """How far the round is, and how fast it goes."""

    def __init__(self) -> None:
        self._tally: Tally | None = None
        self._told = self._before = self._turn = 0
        self._begun = time.monotonic()

    def take(self, tally: "Tally") -> None:
        """Take what the scan tells; what a former call has done does not make it faster."""
        if tally.turn != self._turn:
            self._turn, self._before, self._begun = tally.turn, tally.done, time.monotonic()
        self._tally = tally

    def say(self, tally: "Tally") -> None:
        """Take it, and print what was found."""
        self.take(tally)
        found = tally.by_status.get("verified", 0)
        if found > self._told:
            for row in tally.latest[-(found - self._told) :]:
                output.note(f"{row.status}: {row.target} ({row.key_name})")
        self._told = found

    def line(self) -> str:
        """In a line; empty between two rounds."""
        tally = self._tally
        if tally is None:
            return "searching the targets for models"
        if tally.done == tally.targets:
            return ""
        seconds = time.monotonic() - self._begun
        rate = (tally.done - self._before) / seconds if seconds else 0.0
        line = f"{_many(tally.done, tally.targets)}, {tally.marks:,} mark{'s' * (tally.marks != 1)}"
        if rate:
            left = (tally.targets - tally.done) / rate
            line += f"; {rate:.2g} models/s, about {left:,.0f} s left"
        else:
            line += "; starting" if seconds < BETWEEN else f"; none finished in {seconds:.0f} s"
        return line + _in_order(tally.aligning)

    def table(self) -> Any:
        """As a table, for a terminal."""
        line, tally = self.line(), self._tally
        return _table(tally, line) if tally is not None and line else line


def _many(done: int, targets: int) -> str:
    return f"{done:,} of {targets:,} model{'s' * (targets != 1)}"


def _in_order(names: Sequence[str]) -> str:
    """How many models are put back in order, and one of them."""
    if not names:
        return ""
    more = f"{len(names):,} models, among them " if len(names) > 1 else ""
    return f"; putting back in order: {more}{names[0]}"


@contextmanager
def kept_when_stopped(folder: Path) -> Iterator[None]:
    """Say what becomes of a scan that is stopped."""
    try:
        yield
    except KeyboardInterrupt:
        output.note(f"what was looked at is kept in {folder}: the same command goes on from there")
        raise


def _table(tally: "Tally", title: str) -> Any:
    from rich.table import Table
    from rich.text import Text

    title = output.printable(title)
    grid = Table(title=Text(title), box=None, title_justify="left")
    grid.add_column("status")
    grid.add_column("rows", justify="right")
    for status, words in TITLES.items():
        grid.add_row(words, f"{tally.by_status.get(status, 0):,}")
    grid.add_row("ruled out by headers", f"{tally.ruled_out:,}")
    for row in tally.latest:
        grid.add_row(Text(output.printable(f"{row.target} ({row.key_name})")), str(row.matched))
    return grid


def write_pages(result: "ScanResult") -> None:
    """The page of the scan, and verdict and page of each finding."""
    from neuralmark.records import Verdict
    from neuralmark.reports.scan import scan_page
    from neuralmark.reports.verdict import verdict_page
    from neuralmark.scanning.journal import made_folder
    from neuralmark.storage import files

    folder = result.folder / "verdicts"
    pages: dict[int, str] = {}
    for number, row in enumerate(islice(_findings(result), MOST_PAGES)):
        made_folder(folder)
        verdict = Verdict.from_dict(row.verdict or {})
        verdict.save(folder / _named(number, "json"), overwrite=True)
        page = folder / _named(number, "html")
        files.write_text(page, verdict_page(verdict), overwrite=True)
        pages[number] = f"{folder.name}/{page.name}"
    text = scan_page(result, result.rows(), pages)
    files.write_text(result.folder / "index.html", text, overwrite=True)


def _named(number: int, suffix: str) -> str:
    """The name of the file of a finding, by its place among those of all rounds."""
    return f"{number + 1:04}.{suffix}"


def _findings(result: "ScanResult") -> "Iterator[ScanRow]":
    return (row for row in result.rows() if row.found)


def _new(result: "ScanResult") -> "list[tuple[int, ScanRow]]":
    """The findings of the last round, with their places among those of all."""
    return [each for each in enumerate(_findings(result)) if each[1].round == result.round]


def _unread(result: "ScanResult", most: int) -> "list[ScanRow]":
    """The first models of the last round that could not be read."""
    unread = (row for row in result.rows() if row.status in UNREAD and row.round == result.round)
    return list(islice(unread, most))


def _why(row: "ScanRow") -> str:
    """The reason, without the name of the model, which most begin with."""
    why = " ".join(row.why.removeprefix(f"{row.target}: ").split())
    return why if len(why) <= LONGEST_WHY else f"{why[:LONGEST_WHY]} …"


def _told(result: "ScanResult", number: int, row: "ScanRow") -> dict[str, Any]:
    """A finding, and where its verdict is instead of the verdict itself."""
    folder = result.folder / "verdicts"
    told = row.to_dict()
    del told["verdict"]
    for name, suffix in (("verdict_file", "json"), ("verdict_page", "html")):
        told[name] = str(folder / _named(number, suffix)) if number < MOST_PAGES else None
    return told


def summary(result: "ScanResult") -> dict[str, Any]:
    """What --json prints: counts, findings with the paths of their verdicts, the first errors."""
    from neuralmark.scanning.contract import readable

    told: dict[str, Any] = {
        "verified": result.verified,
        "targets": result.targets,
        "marks": result.marks,
        "counts": result.counts,
        "new": result.new,
        "round": result.round,
        "correction": result.correction,
        "sandbox": None if result.protection is None else str(result.protection),
        "passed_over": list(result.passed_over),
        "rows": str(result.rows_file),
        "page": str(result.folder / "index.html"),
        "added": result.added,
        "findings": [_told(result, *each) for each in _new(result)],
        "errors": [
            {"target": row.target, "status": row.status, "error": row.error, "why": row.why}
            for row in _unread(result, MOST_SHOWN)
        ],
    }
    return {name: readable(value) for name, value in told.items()}


def show(result: "ScanResult") -> None:
    """Counts, what is new, and why models could not be read."""
    if result.added:
        many = result.added != 1
        output.note(
            f"{result.added:,} {'models were' if many else 'model was'} added after this scan was"
            f" begun, and {'are' if many else 'is'} not looked at: begin anew with --force, or"
            " watch with --every"
        )
    watching = result.round > 1
    if watching and not any(result.new.values()):
        click.echo(f"round {result.round}: nothing new")
        return
    counts = result.new if watching else result.counts
    rows = [(words, f"{counts.get(status, 0):,}") for status, words in TITLES.items()]
    rows += [("corrected for", result.correction), ("rows", str(result.rows_file))]
    rows += [("page", str(_page(result)))]
    if result.protection is not None:
        rows.append(("sandbox", str(result.protection)))
    rows += [("passed over", each) for each in result.passed_over[:MOST_SHOWN]]
    title = "SOMETHING VERIFIED" if counts.get("verified") else "NOTHING VERIFIED"
    output.panel(
        f"{title}{f' (round {result.round})' * watching}", rows, good=bool(counts.get("verified"))
    )
    new = [row for _, row in _new(result)]
    if new:
        cells = [
            [row.target, row.status, row.key_name or "", f"{row.matched} of {row.bits}"]
            for row in new[:MOST_SHOWN]
        ]
        click.echo("")
        output.table(("model", "status", "key", "bits"), cells, numeric=(3,))
        if len(new) > MOST_SHOWN:
            click.echo(f"and {len(new) - MOST_SHOWN:,} more, on the page")
    unread = _unread(result, MOST_ERRORS)
    if unread:
        reasons = [[row.target, row.error or row.status, in_options(_why(row))] for row in unread]
        click.echo("")
        output.table(("model", "not read", "why"), reasons, numeric=())
        more = sum(counts.get(status, 0) for status in UNREAD) - len(unread)
        if more > 0:
            click.echo(f"and {more:,} more, on the page")


def _page(result: "ScanResult") -> Path:
    return result.folder / "index.html"
