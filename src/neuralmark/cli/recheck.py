"""`neuralmark recheck`: say whether a verdict still holds."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.marking.rechecking import Recheck, RecheckPoint
    from neuralmark.storage.places import Place

LONGEST = 60
"""Letters of a value that are shown; --json has all of it."""


@click.command("recheck", short_help="Verify MODEL again, and compare with an earlier verdict.")
@click.argument("verdict", type=options.PATH, metavar="VERDICT.json")
@click.argument("model", type=options.MODEL)
@options.key_options
@click.option(
    "--claim",
    "claim_file",
    type=options.PATH,
    help="Claim that the verdict followed, to have its digest compared too.",
)
@click.option(
    "--anchor",
    type=options.PATH,
    help="Anchor of the mark, or the unmarked original; default: sought beside the claim.",
)
@options.base_option
@options.among_option
@options.code_options
@options.example_option
@options.remote_options
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    verdict: Path,
    model: "Place",
    key_file: Path,
    passphrase_file: Path | None,
    claim_file: Path | None,
    anchor: Path | None,
    base: Path | None,
    among: int,
    code: str | None,
    triggers: Path | None,
    example: str | None,
    as_json: bool,
) -> None:
    """Verify MODEL again in the way VERDICT.json records, and compare.

    Says point by point what still holds: the key, the digests, the tensors, the bits, the bound,
    the status. Exit code 0: the verdict holds; 1: it does not; 3: something cannot be read.
    """
    from neuralmark.api import recheck
    from neuralmark.marking.options import VerifyOptions
    from neuralmark.records import Verdict

    known = Verdict.load(verdict)
    key = options.load_key(key_file, passphrase_file)
    shown = options.example(example, code)
    with output.progress_bar() as progress:
        result = recheck(
            known,
            options.live(code, model, key),
            key,
            claim=claim_file,
            options=VerifyOptions(anchor, base=base, among=among, example=shown),
            triggers=triggers,
            progress=progress,
        )
    if as_json:
        output.as_json(result.to_dict())
    else:
        _show(result)
    ctx.exit(_exit_code(result))


def _exit_code(result: "Recheck") -> int:
    if result.holds:
        return 0
    return 3 if result.again is not None and result.again.status == "unreadable" else 1


def _show(result: "Recheck") -> None:
    words = {True: "holds", False: "DIFFERS", None: "noted"}
    rows = [
        (point.name, words[point.holds], _value(point.then), _now(point)) for point in result.points
    ]
    output.table(("point", "", "then", "now"), rows, numeric=())
    broken = ", ".join(point.name for point in result.broken)
    told = [("model", "not read" if result.again is None else result.again.model)]
    told += [("verdict", result.verdict.status)]
    told += [("of", result.verdict.date)] if result.verdict.date else []
    told += [("differs", broken)] if broken else []
    told += [("reason", result.reason)] if result.reason else []
    title = "THE VERDICT HOLDS" if result.holds else "THE VERDICT DOES NOT HOLD"
    output.panel(title, told, good=result.holds)


def _now(point: "RecheckPoint") -> str:
    """What is found now, where it is something else."""
    return "the same" if point.now == point.then else _value(point.now)


def _value(value: Any) -> str:
    """A value in a few words."""
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, dict):
        return _short(", ".join(f"{name} {each}" for name, each in value.items()))
    if isinstance(value, list):
        return _short(", ".join(str(each[0] if isinstance(each, list) else each) for each in value))
    return f"{value:.6g}" if isinstance(value, float) else _short(str(value))


def _short(words: str) -> str:
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"
