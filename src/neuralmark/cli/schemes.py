"""`neuralmark schemes`: the watermarking schemes that keys can be made for."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.schemes import Scheme


@click.command("schemes", short_help="List the schemes: what each needs, survives, costs, proves.")
@options.json_option
def command(as_json: bool) -> None:
    """List the schemes: what each needs, survives, costs and proves, and its own settings.

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
                        "written_by": scheme.written_by,
                        "theory": scheme.theory,
                        **asdict(scheme.facts),
                    }
                    for name, scheme in found
                ]
            }
        )
        return
    for name, scheme in found:
        output.panel(_title(name, scheme), _rows(scheme))


def _title(name: str, scheme: "Scheme") -> str:
    origin = f" ({scheme.facts.origin})" if scheme.facts.origin else ""
    return f"{name}{origin}" + ("; a reconstruction" if scheme.facts.reconstruction else "")


def _rows(scheme: "Scheme") -> list[tuple[str, str]]:
    facts = scheme.facts
    rows = [
        ("a bit is", facts.bit and f"the sign of {facts.bit}"),
        ("written by", scheme.written_by),
        ("filters", ", ".join(scheme.filters)),
        ("its own settings", ", ".join(f"{n}={value}" for n, value in scheme.settings.items())),
        ("needs", facts.needs),
        ("survives", facts.survives),
        ("costs", facts.costs),
        ("proves", facts.proves),
        ("false matches", scheme.theory),
    ]
    return [(label, value or "-") for label, value in rows]
