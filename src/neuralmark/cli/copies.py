"""`neuralmark copies`: one marked copy of a model for each buyer."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.marking.options import Spread
    from neuralmark.records import CopyRegister

MOST_SHOWN = 12


@click.command("copies", short_help="Make a copy of MODEL for each buyer, each marked for its own.")
@click.argument("model", type=options.PATH)
@options.key_options
@click.option(
    "--buyers",
    required=True,
    type=options.PATH,
    metavar="FILE.csv",
    help="The buyers: the column 'buyer' of a CSV file, or one name on each line.",
)
@click.option(
    "-o", "--output", "out", required=True, type=options.PATH, help="Folder for the copies."
)
@options.tensors_option
@options.spread_option
@click.option(
    "--strength",
    type=float,
    help="Margin of every bit of each mark, in units of the spread of unmarked logits.",
)
@click.option(
    "--budget",
    type=float,
    metavar="PERCENT",
    help="Change of the marked weights by each of the two marks, in percent.",
)
@options.heads_option
@click.option(
    "--anchor-bits",
    type=int,
    default=8,
    show_default=True,
    metavar="BITS",
    help="Bits of each weight in the anchor, 2 to 8: with fewer, fewer buyers who mix their copies"
    " are named.",
)
@click.option(
    "--no-cover",
    is_flag=True,
    help="Leave the weights beside a buyer's mark as they are: 1.4 times less change, but more than"
    " five buyers find out what most of their copies agree on.",
)
@click.option("--force", is_flag=True, help="Begin anew where other copies are there already.")
@options.json_option
def command(
    model: Path,
    key_file: Path,
    passphrase_file: Path | None,
    buyers: Path,
    out: Path,
    tensors: tuple[str, ...],
    spread: "Spread",
    strength: float | None,
    budget: float | None,
    heads: int,
    anchor_bits: int,
    no_cover: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Make a copy of MODEL for every buyer, with the owner's mark and one of its own.

    Into the folder go the owner's own copy with its claim and its anchor, the buyers' copies, and
    the register copies.json, which says who got which file. Hand out the buyers' copies only. A
    run that was cut short goes on where it stopped; buyers who come later are added. 'neuralmark
    trace' says whose copy a suspect was made from.
    """
    from neuralmark.marking.issuing import issue_copies
    from neuralmark.marking.options import CopyOptions

    key = options.load_key(key_file, passphrase_file)
    chosen = CopyOptions(
        tensors=list(tensors) or None,
        spread=spread,
        strength=strength,
        budget=budget,
        heads=heads,
        anchor_bits=anchor_bits,
        cover=not no_cover,
    )
    with output.progress_bar(counting=True) as progress:
        register, notes = issue_copies(
            model, key, buyers, out, chosen, overwrite=force, progress=progress
        )
    for note in notes:
        output.note(f"warning: {note}")
    if as_json:
        output.as_json(register.to_dict())
    else:
        _show(register, out)


def _show(register: "CopyRegister", out: Path) -> None:
    copies = register.copies
    rows = [
        ("register", f"{out / 'copies.json'} (who got which file)"),
        ("owner's copy", f"{out / register.base}, its claim and its anchor beside it"),
        ("keep these", "they are for you and a judge only; hand out the copies"),
        ("change", _change(register)),
    ]
    rows += [(each.buyer, str(out / each.path)) for each in copies[:MOST_SHOWN]]
    if len(copies) > MOST_SHOWN:
        rows.append(("", f"and {len(copies) - MOST_SHOWN} more (the register has all)"))
    output.panel(f"{len(copies)} copies in {out}", rows, good=True)


def _change(register: "CopyRegister") -> str:
    largest = max(each.change_relative for each in register.copies)
    weakest = min(each.strength for each in register.copies)
    return (
        f"at most {output.percent(largest)} of the weights' norm by a buyer's mark,"
        f" strength {weakest:.3g}"
    )
