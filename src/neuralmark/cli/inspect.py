"""`neuralmark inspect`: what a model offers."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.marking.inspection import BaseComparison
    from neuralmark.marking.options import Spread
    from neuralmark.storage.places import Place


@click.command("inspect", short_help="List the tensors of MODEL, and what each could carry.")
@click.argument("model", type=options.MODEL)
@click.option(
    "--key",
    "key_file",
    type=options.PATH,
    help="Count the carriers of this key; without, what a default key may expect.",
)
@click.option(
    "--strength",
    type=float,
    default=1.0,
    show_default=True,
    help="Strength whose cost is estimated.",
)
@options.spread_option
@click.option("--headers-only", is_flag=True, help="Read no weights: quick, but no grids.")
@click.option(
    "--base",
    type=options.MODEL,
    help="Public checkpoint that MODEL was fine-tuned from: say what it gives away of a mark. A"
    " PEFT adapter is shown merged into it instead.",
)
@options.passphrase_file_option
@options.remote_options
@options.json_option
def command(
    model: "Place",
    key_file: Path | None,
    strength: float,
    spread: "Spread",
    headers_only: bool,
    base: "Place | None",
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """List the tensors of MODEL, what each could carry and cost, and what auto would choose.

    The tensors that auto would choose are read: the column "grid" says on what their values lie,
    and what is written will lie there too.
    """
    from neuralmark.marking.inspection import inspect
    from neuralmark.marking.options import InspectOptions

    key = options.load_key(key_file, passphrase_file) if key_file else None
    with output.progress_bar() as progress:
        found = inspect(
            model,
            key,
            InspectOptions(strength=strength, spread=spread, weights=not headers_only, base=base),
            progress=progress,
        )
    if as_json:
        output.as_json(found.to_dict())
        return
    rows = []
    for row in found.rows:
        usable = row.obstacle is None
        cost = "-" if row.cost_percent is None else f"{row.cost_percent:.2f} %"
        rows.append(
            [
                "*" if row.chosen else "",
                row.name,
                row.dtype,
                "x".join(map(str, row.shape)),
                row.grid or "-",
                f"{row.carriers:,}" if usable else "-",
                f"{row.weights_per_pool:,.0f}" if usable else "-",
                cost if usable else str(row.obstacle),
            ]
        )
    headers = [
        "auto",
        "tensor",
        "dtype",
        "shape",
        "grid",
        "carriers",
        "per pool",
        f"cost at {strength:g}",
    ]
    output.table(headers, rows, numeric=(5, 6))
    total = found.auto_cost_percent
    fixed = next((row.fixed for row in found.rows if row.chosen and row.fixed), None)
    output.panel(
        "auto (*)",
        [
            ("format", found.format),
            *([] if fixed is None else [("not to be marked", f"read only: {fixed}")]),
            ("why", found.why),
            (
                "carriers",
                f"{found.auto_carriers:,}, {found.auto_weights_per_pool:,.0f} per pool"
                + ("" if found.exact else " (expected of a new key)"),
            ),
            (
                "cost",
                "-"
                if total is None
                else f"about {total:.2f} % change of the weights at strength {strength:g}",
            ),
        ],
    )
    if found.base is not None:
        _against(found.base)


def _against(found: "BaseComparison") -> None:
    seen = [f"{value:.3f} at strength {strength:g}" for strength, value in found.exposures]
    output.panel(
        f"against {found.base}",
        [
            ("fine-tuning moved", f"{output.percent(found.moved)} of the weights' norm"),
            ("still the base's", f"{output.percent(found.unmoved)} of the weights"),
            ("of low rank", f"{output.percent(found.low_rank)} of the difference"),
            ("seen with the base", ", ".join(seen) + " (AUC; 0.5: nothing)" if seen else "-"),
            ("advice", found.advice),
        ],
    )
