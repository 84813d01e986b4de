"""`neuralmark lineage`: how alike two models are once their weights are in the same order."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output
from neuralmark.cli._language import in_options

if TYPE_CHECKING:
    from neuralmark.records import Kinship, Lineage
    from neuralmark.storage.places import Place

MOST_SHOWN = 12


@click.command("lineage", short_help="Compare MODEL with OTHER, wherever the weights went.")
@click.argument("model", type=options.MODEL)
@click.argument("other", type=options.MODEL)
@click.option("--heads", type=int, default=0, help="Attention heads, where nothing else tells.")
@click.option(
    "--effort",
    type=float,
    default=1.0,
    show_default=True,
    help="Share of the weights of MODEL to look for; only these count.",
)
@options.align_limit_option
@click.option(
    "--report", type=options.PATH, metavar="FILE.html", help="Write a page with a picture."
)
@options.remote_options
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    model: "Place",
    other: "Place",
    heads: int,
    effort: float,
    align_limit: int,
    report: Path | None,
    as_json: bool,
) -> None:
    """Say how alike MODEL and OTHER are after OTHER's weights are put into MODEL's order.

    Permuted, rescaled, rotated, renamed, fused: none of it hides a relation. The score is 0 for
    models trained apart and 1 for the same weights. It is a sign of descent, not of ownership, and
    has no exact bound: for that, verify a key. Models of a million weights take some ten seconds,
    a plain copy less than one. Exit code 0: related; 1: no sign of it; 3: less than half of the
    weights could be compared, and no relation shows in these.
    """
    from neuralmark.anchors.effort import AlignOptions
    from neuralmark.api import lineage

    with output.progress_bar(counting=True) as progress:
        found = lineage(
            model, other, heads=heads, options=AlignOptions(effort, align_limit), progress=progress
        )
    if report:
        from neuralmark.reports.lineage import lineage_page
        from neuralmark.storage import files

        options.refuse_inputs(report, (model, other))
        files.write_text(report, lineage_page(found), overwrite=True)
        output.note(f"report written to {report}")
    if as_json:
        output.as_json(found.to_dict())
    else:
        _show(found)
    ctx.exit(0 if found.related else 1 if found.decided else 3)


def _show(found: "Lineage") -> None:
    from neuralmark.records import RELATED_SCORE

    score = f"{found.score:.3f} ({RELATED_SCORE:g} or more is related; 1 is the same)"
    rows = [
        ("model", found.model),
        ("other", found.other),
        ("score", score if found.decided else "none: too little could be compared"),
        ("means", "descent, not ownership; no exact bound (a key gives both)"),
    ]
    if found.looked_at < 1:
        rows.append(
            ("looked for", f"{found.looked_at:.1%} of the weights (--effort); only these count")
        )
    if found.compared < 1:
        why = in_options(found.hindrance)
        rows.append(("compared", f"{found.compared:.1%} of the weights; {why}"))
    ranked = sorted(found.tensors, key=lambda each: -each.weights)
    rows += [(each.fate.name, _told(each)) for each in ranked[:MOST_SHOWN]]
    if len(ranked) > MOST_SHOWN:
        rows.append(("", f"and {len(ranked) - MOST_SHOWN} smaller ones (--json has all)"))
    title = "RELATED" if found.related else "NO SIGN OF A RELATION"
    output.panel(title if found.decided else "COULD NOT BE COMPARED", rows, good=found.related)


def _told(each: "Kinship") -> str:
    fate = each.fate
    if not fate.source or not each.compared:
        return in_options(", ".join(fate.changes)) or "not found"
    done = ", ".join(fate.changes[:3]) or "unchanged"
    return f"{fate.restored:.3f} alike (by chance {each.chance:.3f}): {done}"
