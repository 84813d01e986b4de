"""`neuralmark schemes`: the watermarking schemes that keys can be made for."""

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output


@click.command("schemes", short_help="List the schemes, their settings, and what theory says.")
@options.json_option
def command(as_json: bool) -> None:
    """List the schemes, their own settings, and what their theory says of false matches.

    A key names its scheme; verify, attach and the attacks follow it:

    \b
    neuralmark key new k.nmkey --scheme votemark --filter tiled --set votes=11
    """
    from neuralmark import schemes

    found = [(name, schemes.get(name)) for name in schemes.names()]
    if as_json:
        output.as_json(
            {
                "schemes": [
                    {
                        "name": name,
                        "filters": list(scheme.filters),
                        "settings": dict(scheme.settings),
                        "post_hoc": scheme.writes,
                        "theory": scheme.theory,
                    }
                    for name, scheme in found
                ]
            }
        )
        return
    rows = [
        [
            name,
            ", ".join(scheme.filters),
            ", ".join(f"{key}={value}" for key, value in scheme.settings.items()) or "-",
            "training and files" if scheme.writes else "training" if scheme.marks else "-",
            scheme.theory,
        ]
        for name, scheme in found
    ]
    heads = ["scheme", "filters", "its own settings", "written by", "chance of a false match"]
    output.table(heads, rows, numeric=())
