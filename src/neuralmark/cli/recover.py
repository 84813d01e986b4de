"""`neuralmark recover`: after an in-place embedding was cut short."""

from pathlib import Path

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output


@click.command("recover", short_help="Undo or complete an in-place embedding that was cut short.")
@click.argument("model", type=options.PATH)
@options.json_option
def command(model: Path, as_json: bool) -> None:
    """Undo or complete an in-place embedding of MODEL that was cut short."""
    from neuralmark.marking import embedding

    message = embedding.recover(model)
    if as_json:
        output.as_json({"recovered": message is not None, "message": message})
    else:
        click.echo(output.printable(message or f"{model}: nothing to recover"))
