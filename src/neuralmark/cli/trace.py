"""`neuralmark trace`: which buyer's copy a suspect was made from."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.records import MarkRead, Trace
    from neuralmark.storage.places import Place

MOST_SHOWN = 10


@click.command("trace", short_help="Say which buyer's copy SUSPECT was made from.")
@click.argument("suspect", type=options.MODEL)
@options.key_options
@click.option(
    "--buyers",
    required=True,
    type=options.PATH,
    metavar="FILE",
    help="All buyers: the register copies.json or its folder, which knows the claim and the anchor;"
    " or a CSV file.",
)
@click.option(
    "--claim",
    "claim_file",
    type=options.PATH,
    help="Claim of the owner's copy, where the buyers come from a CSV file.",
)
@click.option(
    "--anchor",
    type=options.PATH,
    help="Anchor of the marks, or the unmarked original; default: sought beside the claim.",
)
@click.option(
    "--effort",
    type=float,
    default=1.0,
    show_default=True,
    help="Share of the marked weights to look for where they were rearranged, above 0 up to 1.",
)
@options.align_limit_option
@options.base_option
@options.sandbox_options(default=False)
@click.option(
    "--report",
    type=options.PATH,
    metavar="FILE.html",
    help="Write a self-contained page with a picture of all buyers.",
)
@options.remote_options
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    suspect: "Place",
    key_file: Path,
    passphrase_file: Path | None,
    buyers: Path,
    claim_file: Path | None,
    anchor: Path | None,
    effort: float,
    align_limit: int,
    base: Path | None,
    sandbox: bool,
    memory: int,
    time_limit: float,
    report: Path | None,
    as_json: bool,
) -> None:
    """Say whose copy SUSPECT was made from, or whose copies were mixed in it.

    The weights are put back in order once, wherever they went; then every buyer's mark is looked
    for in what they differ by from the anchor. The bound is corrected for all buyers: give all of
    them, not only those you suspect. SUSPECT may be a URL. Exit code 0: a buyer is named; 1: none.
    """
    from neuralmark.api import trace
    from neuralmark.marking.options import VerifyOptions

    key = options.load_key(key_file, passphrase_file)
    limits = options.limits(sandbox, memory, time_limit)
    wanted = VerifyOptions(anchor, effort, align_limit, base=base, sandbox=limits)
    with output.progress_bar(counting=True) as progress:
        found = trace(suspect, key, buyers, claim=claim_file, options=wanted, progress=progress)
    if report:
        from neuralmark.reports.trace import trace_page
        from neuralmark.storage import files

        options.refuse_inputs(report, (suspect, key_file, buyers, claim_file, anchor, base))
        files.write_text(report, trace_page(found), overwrite=True)
        output.note(f"report written to {report}")
    if as_json:
        output.as_json(found.to_dict())
    else:
        _show(found)
    ctx.exit(0 if found.named else 1)


def _show(found: "Trace") -> None:
    from neuralmark.records.trace import quoted

    named = set(found.named)
    rows = [
        ("suspect", found.suspect),
        ("boundary", f"{found.boundary} of {found.parameters.bits} bits"),
        ("trials", _trials(found)),
        ("owner's mark", _bits(found, found.owner) + ("" if found.owned else " (not verified)")),
    ]
    if named:
        chance = output.power_of_two(found.bound_log2)
        rows.append(("chance of error", f"an innocent is named with at most {chance}"))
    if found.identical is not None:
        rows.append(("same file", f"byte for byte the copy of {found.identical}"))
    ranked = sorted(found.buyers, key=lambda each: -each.matched)
    for each in ranked[: max(MOST_SHOWN, len(named))]:
        label = f"{each.label}" if each.label in named else f"({each.label})"
        rows.append((label, _bits(found, each)))
    rows.append(("reason", found.reason))
    title = "NAMED: " + ", ".join(quoted(found.named)) if named else "NO BUYER IS NAMED"
    output.panel(title, rows, good=bool(named))


def _bits(found: "Trace", read: "MarkRead") -> str:
    ways = [("in place", read.position), ("put in order", read.aligned)]
    told = ", ".join(f"{bits} {name}" for name, bits in ways if bits is not None)
    return f"{read.matched} of {found.parameters.bits} bits ({told})" if told else "not read"


def _trials(found: "Trace") -> str:
    buyers, ways = len(found.buyers), found.ways
    return f"{found.trials} ({buyers} buyer{'s' * (buyers > 1)}, {ways} way{'s' * (ways > 1)} each)"
