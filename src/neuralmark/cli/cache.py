"""`neuralmark cache`: what was kept of models behind URLs."""

from typing import TYPE_CHECKING

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.remote.transfer.cache import CacheUsage


@click.group("cache", short_help="Show or clear what was kept of models behind URLs.")
def command() -> None:
    """Show or clear what was kept of models behind URLs.

    Parts of models that were fetched are kept in $NEURALMARK_CACHE (else in ~/.cache/neuralmark),
    up to $NEURALMARK_CACHE_SIZE (such as 20GB; else 10 GB); what was not used for longest goes
    first.
    """


@command.command("show")
@options.json_option
def show(as_json: bool) -> None:
    """Say where the cache is, what it holds, and how much it may hold."""
    from neuralmark.remote.transfer.cache import RangeCache

    _tell("kept of models behind URLs", RangeCache().usage(), as_json)


@command.command("clear")
@options.json_option
def clear(as_json: bool) -> None:
    """Remove all that was kept."""
    from neuralmark.remote.transfer.cache import RangeCache

    _tell("removed", RangeCache().clear(), as_json)


def _tell(title: str, usage: "CacheUsage", as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        output.as_json(asdict(usage))
        return
    rows = [
        ("folder", usage.folder),
        ("ranges", f"{usage.files:,}"),
        ("size", f"{usage.size:,} bytes"),
        ("limit", f"{usage.limit:,} bytes"),
    ]
    output.panel(title, rows)
