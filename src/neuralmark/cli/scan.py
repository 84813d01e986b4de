"""`neuralmark scan`: all keys against all models, and a row for each."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output
from neuralmark.cli import _scanned as scanned

if TYPE_CHECKING:
    from neuralmark.keys.key import Key
    from neuralmark.scanning.contract import Aligning, ScanEngineName, ScanForm
    from neuralmark.scanning.rounds import ScanResult


def moment(value: str) -> float:
    """Seconds since 1970, from a date or from a time before now.

    >>> moment("1970-01-02")
    86400.0
    """
    try:
        told = datetime.fromisoformat(value)
    except ValueError:
        pass
    else:
        return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
    try:
        return datetime.now(UTC).timestamp() - options.duration(value)
    except click.BadParameter:
        raise click.BadParameter(
            f"{value!r} is no date and no time; give a date such as 2026-11-01, or a time before"
            " now such as 7d or 12h"
        ) from None


def load_keys(places: Sequence[Path], passphrase_file: Path | None) -> "dict[str, Key]":
    """All key files; a passphrase that was typed is tried on those that follow."""
    from neuralmark.scanning.keyring import named_files

    given = options.given_passphrase(passphrase_file)
    typed: list[str] = []
    return {name: _opened(path, given, typed) for name, path in named_files(places).items()}


def _opened(path: Path, given: str | None, typed: list[str]) -> "Key":
    from neuralmark.errors import WrongPassphraseError
    from neuralmark.keys.key import Key
    from neuralmark.keys.sealing import is_encrypted

    if not is_encrypted(path):
        return Key.load(path)
    if given is not None:
        return Key.load(path, given)
    for word in typed:
        try:
            return Key.load(path, word)
        except WrongPassphraseError:
            continue
    typed.append(options.prompt(f"Passphrase of {path}"))
    return Key.load(path, typed[-1])


@click.command("scan", short_help="Look for the marks of all keys in all TARGETS.")
@click.argument("targets", nargs=-1, metavar="[TARGETS]...")
@click.option(
    "--keys",
    "keys",
    required=True,
    multiple=True,
    type=options.PATH,
    help="Folder of key files (.nmkey), or one of them (may be repeated).",
)
@options.passphrase_file_option
@click.option(
    "--from",
    "lists",
    multiple=True,
    type=options.PATH,
    metavar="FILE",
    help="More targets, one in a line; - reads them from a pipe (may be repeated).",
)
@click.option(
    "--claims",
    multiple=True,
    type=options.PATH,
    help="Folder of claims, or one; without, keys are searched for (may be repeated).",
)
@click.option(
    "--anchors",
    multiple=True,
    type=options.PATH,
    help="Folder of anchors, or one; those beside the claims are found (may be repeated).",
)
@click.option("-o", "--output", "out", required=True, type=options.PATH, help="Folder of results.")
@click.option("--jobs", type=int, metavar="N", help="Workers; by default one for each core.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where the workers are: processes of this machine, or a Ray cluster (RAY_ADDRESS).",
)
@click.option(
    "--align",
    type=click.Choice(["alike", "all", "never"]),
    default="alike",
    show_default=True,
    help="Which models are put back in order for marks with an anchor: those that are like it,"
    " every one, or none. It can take half a minute and more for each: never, for a first pass.",
)
@click.option(
    "--effort",
    type=float,
    default=1.0,
    show_default=True,
    help="Share of the marked weights to look for then, above 0 up to 1; less is faster.",
)
@options.align_limit_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet"]),
    default="jsonl",
    show_default=True,
    help="How the rows are written.",
)
@options.sandbox_options(default=True)
@click.option(
    "--every",
    type=options.duration,
    metavar="TIME",
    help="Watch: look again every 1d, 12h, 30m, 45s (a number alone is seconds) at what is new or"
    " changed, and tell only of that.",
)
@click.option(
    "--rounds",
    type=int,
    metavar="N",
    help="Stop watching after so many rounds; without, Ctrl-C stops it.",
)
@click.option(
    "--since",
    type=moment,
    metavar="WHEN",
    help="Leave out models last changed before this date (2026-11-01), or longer ago than 7d,"
    " 12h, ….",
)
@click.option(
    "--force",
    is_flag=True,
    help="Begin anew in a folder that holds results, of this scan or of another.",
)
@options.remote_options
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    targets: tuple[str, ...],
    keys: tuple[Path, ...],
    passphrase_file: Path | None,
    lists: tuple[Path, ...],
    claims: tuple[Path, ...],
    anchors: tuple[Path, ...],
    out: Path,
    jobs: int | None,
    engine: "ScanEngineName",
    align: "Aligning",
    effort: float,
    align_limit: int,
    form: "ScanForm",
    sandbox: bool,
    memory: int,
    time_limit: float,
    every: float | None,
    rounds: int | None,
    since: float | None,
    force: bool,
    as_json: bool,
) -> None:
    """Look for the marks of all keys in all TARGETS: files, folders, globs, URLs.

    Headers and shapes rule most out; the rest is read once for all keys. The bound is corrected for
    marks x targets x ways: the chance that anything at all is verified by luck stays below 2^-128.
    A model that cannot be read becomes a row with the error's name. A scan that was stopped, by
    whatever, goes on when it is called again.

    \b
    results/rows.jsonl     a row for each finding, and for each model without one
    results/index.html     the same as a page that can be sorted
    results/verdicts/      the verdict of each finding, as JSON and as a page

    Exit code 0: something was verified; 1: nothing was. With --every, 0: a round of this call
    verified something new; 1: none did, whatever earlier calls found.
    """
    from neuralmark.scanning.contract import ScanOptions
    from neuralmark.scanning.rounds import scan

    if not targets and not lists:
        raise click.UsageError("nothing to scan: give TARGETS, or --from FILE")
    if rounds is not None and every is None:
        raise click.UsageError("--rounds is for watching: give --every too")
    chosen = ScanOptions(
        jobs=jobs,
        engine=engine,
        sandbox=options.limits(sandbox, memory, time_limit),
        align=align,
        effort=effort,
        align_limit=align_limit,
        form=form,
        every=every,
        rounds=rounds,
        since=since,
        overwrite=force,
        remote=options.remote_chosen(ctx),
    )
    named = load_keys(keys, passphrase_file)
    fresh = told = False

    def tell(result: "ScanResult") -> None:
        nonlocal fresh, told
        fresh = fresh or result.new.get("verified", 0) > 0
        notes = [f"{note}: give --claims" for note in result.notes]
        scanned.write_pages(result)
        if as_json:
            output.as_json({**scanned.summary(result), "notes": notes})
            return
        scanned.show(result)
        for note in notes if not told else ():
            output.note(note)
        told = True

    with scanned.live(quiet=as_json) as watch, scanned.kept_when_stopped(out):
        result = scan(
            targets,
            named,
            out,
            claims=claims or None,
            anchors=anchors,
            lists=lists,
            options=chosen,
            watch=watch,
            finished=tell,
        )
    ctx.exit(0 if (result.verified if every is None else fresh) else 1)
