"""`neuralmark report`: draw the page of a kept record again."""

from pathlib import Path

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output


@click.command("report")
@click.argument("record", type=options.PATH, metavar="FILE.json")
@click.option(
    "-o",
    "--output",
    "out",
    type=options.PATH,
    required=True,
    metavar="PAGE.html",
    help="Where to write the page.",
)
@click.option("--force", is_flag=True, help="Replace the page if it exists.")
@options.json_option
def command(record: Path, out: Path, force: bool, as_json: bool) -> None:
    """Draw the page of a record that was kept as JSON.

    FILE.json is what verify, attack suite or arbitrate printed with --json: a verdict (in full or
    its public view), a robustness card, a report after the standard or a ruling. The page is the
    one that --report would have written then.
    """
    from neuralmark.reports.recorded import draw
    from neuralmark.storage import files

    options.refuse_inputs(out, (record,))
    drawn = draw(record)
    files.write_text(out, drawn.page, overwrite=force)
    if as_json:
        output.as_json({"record": drawn.noun, "file": str(record), "page": str(out)})
    else:
        output.panel(f"Page of a {drawn.noun}", [("record", str(record)), ("page", str(out))])
