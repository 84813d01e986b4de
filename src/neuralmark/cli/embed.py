"""`neuralmark embed`: write a mark into a finished checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.marking.embedding import Embedding
    from neuralmark.marking.options import Spread
    from neuralmark.records import Verdict


@click.command("embed", short_help="Write the key's mark into a copy of MODEL, or into MODEL.")
@click.argument("model", type=options.PATH)
@options.key_options
@click.option(
    "-o",
    "--output",
    "out",
    type=options.PATH,
    help="Where to write the marked copy (a file, or a folder for a folder).",
)
@options.tensors_option
@options.spread_option
@click.option(
    "--strength",
    type=float,
    help="Margin of every bit, in units of the spread of unmarked logits.",
)
@click.option(
    "--budget", type=float, metavar="PERCENT", help="Change of the marked weights, in percent."
)
@click.option(
    "--base",
    type=options.PATH,
    help="Public checkpoint that MODEL was fine-tuned from: hide the mark from whoever has it.",
)
@click.option("--in-span", is_flag=True, help="Stay inside the span of a merged adapter (--base).")
@click.option("--in-place", is_flag=True, help="Change MODEL itself, under a journal.")
@click.option("--dry-run", is_flag=True, help="Compute and report, write nothing.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option(
    "--check",
    "check_command",
    metavar="CMD",
    help="Your own evaluation: run on candidates ('{}' stands for the path, else it is"
    " appended); the strongest mark for which it exits with 0 is kept.",
)
@click.option(
    "--other-key",
    "other_keys",
    multiple=True,
    type=options.PATH,
    help="Key of a mark that is already there: show its rate before and after.",
)
@click.option(
    "--no-anchor",
    is_flag=True,
    help="Write no anchor: the mark is then read by position only.",
)
@click.option(
    "--anchor",
    "earlier",
    type=options.PATH,
    help="The anchor of an earlier release: this one gets the same mark, so they show none.",
)
@options.heads_option
@click.option(
    "--anchor-bits",
    type=int,
    default=4,
    show_default=True,
    metavar="BITS",
    help="Bits of each weight in the anchor, 2 to 8: more undo more, and take more space.",
)
@options.json_option
def command(
    model: Path,
    key_file: Path,
    passphrase_file: Path | None,
    out: Path | None,
    tensors: tuple[str, ...],
    spread: "Spread",
    strength: float | None,
    budget: float | None,
    base: Path | None,
    in_span: bool,
    in_place: bool,
    dry_run: bool,
    force: bool,
    check_command: str | None,
    other_keys: tuple[Path, ...],
    no_anchor: bool,
    earlier: Path | None,
    heads: int,
    anchor_bits: int,
    as_json: bool,
) -> None:
    """Write the key's mark into a copy of MODEL (-o) or into MODEL itself (--in-place).

    No data and no model code are needed. What is written lies on the grid of what was there, and
    is spread thin over many tensors. The default is strength 2, or what a change of 2 % buys, but
    at least strength 1.

    Beside the output go its claim (OUT.claim.json) and its anchor (OUT.anchor), a coarse copy of
    what was marked, sealed under the key. Both are for you and a judge only: never publish them.
    """
    from neuralmark.marking import embedding
    from neuralmark.marking.options import EmbedOptions

    if not (out or in_place or dry_run):
        raise click.UsageError("say where to write: -o OUT, --in-place, or --dry-run")
    if earlier and no_anchor:
        raise click.UsageError("give either --anchor or --no-anchor, not both")
    key = options.load_key(key_file, passphrase_file)
    chosen = EmbedOptions(
        tensors=list(tensors) or None,
        spread=spread,
        strength=strength,
        budget=budget,
        base=base,
        in_span=in_span,
        check=_checker(check_command) if check_command else None,
        other_keys=[options.load_key(path, passphrase_file) for path in other_keys],
        anchor=earlier or not no_anchor,
        heads=heads,
        anchor_bits=anchor_bits,
    )
    with output.progress_bar() as progress:
        result = embedding.embed(
            model,
            key,
            None if dry_run else out,
            chosen,
            in_place=in_place and not dry_run,
            overwrite=force,
            progress=progress,
        )
    for warning in result.warnings:
        output.note(f"warning: {warning}")
    if as_json:
        output.as_json(_json(result))
        return
    _show(result)


def _checker(line: str) -> Callable[[Path], bool]:
    """Runs the owner's command on a candidate; its output goes to stderr."""
    import os
    import shlex
    import subprocess
    import sys

    from neuralmark.cli import ONE_THREAD

    words = shlex.split(line)
    env = {name: value for name, value in os.environ.items() if (name, value) != ONE_THREAD}

    def check(path: Path) -> bool:
        placed = [word.replace("{}", str(path)) for word in words]
        command_line = placed if any("{}" in word for word in words) else [*words, str(path)]
        try:
            done = subprocess.run(command_line, stdout=sys.stderr, env=env, check=False)  # noqa: S603
        except OSError as error:
            raise click.UsageError(f"--check cannot be run: {error}") from None
        output.note(f"check: {'passed' if done.returncode == 0 else 'failed'}")
        return done.returncode == 0

    return check


def _json(result: "Embedding") -> dict[str, Any]:
    verdict = result.verdict
    return {
        "output": result.output,
        "claim_file": result.claim_file,
        "anchor_file": result.anchor_file,
        "dry_run": result.output is None,
        "tensors": list(result.tensors),
        "strength": result.strength,
        "change_relative": result.change_relative,
        "change_largest": result.change_largest,
        "carriers": result.carriers,
        "weights_per_pool": result.weights_per_pool,
        "exposure": result.exposure,
        "warnings": list(result.warnings),
        "verdict": None if verdict is None else verdict.to_dict(),
        "others": [
            {
                "fingerprint": before.fingerprint,
                "before": before.to_dict(),
                "after": after.to_dict(),
            }
            for before, after in result.others
        ],
    }


def _show(result: "Embedding") -> None:
    rows = [
        ("tensors", _shorten(result.tensors)),
        ("carriers", f"{result.carriers:,} weights, {result.weights_per_pool:,} per pool"),
        ("strength", f"{result.strength:.3g}"),
        (
            "change",
            f"{output.percent(result.change_relative)} of the weights' norm,"
            f" largest {result.change_largest:.3g}",
        ),
    ]
    if result.exposure is not None:
        rows.append(("against the base", f"AUC {result.exposure:.3f} (0.5: nothing is found)"))
    verdict = result.verdict
    if verdict is None:
        output.panel("Dry run: nothing was written", rows)
        return
    radius = verdict.certified_radius_relative
    rows += [
        ("read back", f"{verdict.matched} of {verdict.bits} bits ({output.percent(verdict.rate)})"),
        ("margins", f"smallest {verdict.smallest_margin:.3g}, median {verdict.median_margin:.3g}"),
    ]
    if radius is not None:
        rows.append(("certified radius", output.percent_at_least(radius) + " of the weights' norm"))
    rows.append(("claim", str(result.claim_file)))
    rows += [] if result.anchor_file is None else [("anchor", result.anchor_file)]
    rows.append(("keep both" if result.anchor_file else "keep it", _advice(result)))
    rows += [("other mark", _fate(before, after)) for before, after in result.others]
    output.panel(f"Marked {result.output}", rows, good=True)


def _advice(result: "Embedding") -> str:
    """What the owner must know of the files beside the output."""
    if result.anchor_file is None:
        return "the claim is for you and a judge only: do not publish it"
    return (
        "claim and anchor are for you and a judge only: do not publish them, do not lose them"
        " (the mark is found with them, and not without)"
    )


def _fate(before: "Verdict", after: "Verdict") -> str:
    """What became of a mark that was there before."""
    counts = f"{before.matched} of {before.bits} bits before, {after.matched} after"
    if not before.verified:
        return (
            f"{before.fingerprint}: {counts}; it was not found before (no claim beside the input?)"
        )
    kept = "both marks are kept" if after.verified else "it is not verified any more"
    return f"{before.fingerprint}: {counts}; {kept}"


def _shorten(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
