"""`neuralmark demo`: the main job on something real, in under a minute."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.records import Verdict


@click.command("demo", short_help="Train a small network, mark it, damage it, and prove it.")
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("neuralmark-demo"),
    show_default=True,
    help="Folder for the models, the key and the report.",
)
@options.json_option
@click.pass_context
def command(ctx: click.Context, folder: Path, as_json: bool) -> None:
    """Train a small network on real digits, mark it, damage it, and show what survives.

    Then a thief without the key looks for the mark: as published, and as ours.
    """
    from neuralmark.demo.run import run

    outcome = run(folder, (lambda _: None) if as_json else output.note)
    verdict, foreign, embedding = outcome.verdict, outcome.foreign, outcome.embedding
    good = verdict.verified and not foreign.verified
    if as_json:
        output.as_json(
            {
                "verdict": verdict.to_dict(),
                "foreign": foreign.to_dict(),
                "strength": embedding.strength,
                "change_relative": embedding.change_relative,
                "rows": [
                    {
                        "name": row.name,
                        "accuracy": row.accuracy,
                        "matched": None if row.verdict is None else row.verdict.matched,
                        "verified": None if row.verdict is None else row.verdict.verified,
                    }
                    for row in outcome.rows
                ],
                "trained": [
                    {
                        "name": run.name,
                        "history": run.history,
                        "moved": run.moved,
                        "verdict": None if run.verdict is None else run.verdict.to_dict(),
                    }
                    for run in outcome.trained
                ],
                "exposed": [
                    {"name": name, **result.to_dict()} for name, result in outcome.exposures.items()
                ],
                "report": str(folder / "report.html"),
            }
        )
        ctx.exit(0 if good else 1)
    output.table(
        ["state", "accuracy", "bits", "verdict"],
        [
            [row.name, _percent(row.accuracy), _bits(row.verdict), _said(row.verdict)]
            for row in outcome.rows
        ],
        numeric=(1, 2),
    )
    output.table(
        ["trained", "accuracy", "bits", "verdict", "weights moved"],
        [
            [
                run.name,
                _percent(run.history[-1]["accuracy"]),
                _bits(run.verdict),
                _said(run.verdict),
                output.percent(run.moved, 1),
            ]
            for run in outcome.trained
        ],
        numeric=(1, 2, 4),
    )
    output.table(
        ["looked for without the key", "bits before", "stood out", "bits after", "accuracy"],
        [
            [
                name,
                _bits(result.before),
                result.note,
                _bits(result.after),
                f"{_percent(result.accuracy_before)} to {_percent(result.accuracy_after)}",
            ]
            for name, result in outcome.exposures.items()
        ],
        numeric=(1, 3),
    )
    output.panel(
        "A mark in a small network",
        [
            (
                "mark",
                f"strength {embedding.strength:.2f}, weights changed by"
                f" {output.percent(embedding.change_relative)}",
            ),
            (
                "owner's key",
                f"{verdict.matched} of {verdict.bits} bits, chance of error"
                f" {output.power_of_two(verdict.bound_log2)}",
            ),
            ("another key", f"{foreign.matched} of {foreign.bits} bits: not verified"),
            ("report", str(folder / "report.html")),
            ("verdict", str(folder / "verdict.html")),
        ],
        good=good,
    )
    ctx.exit(0 if good else 1)


def _percent(share: float | None) -> str:
    return "-" if share is None else output.percent(share)


def _bits(verdict: "Verdict | None") -> str:
    return "-" if verdict is None else f"{verdict.matched}/{verdict.bits}"


def _said(verdict: "Verdict | None") -> str:
    if verdict is None:
        return "-"
    return "verified" if verdict.verified else "not verified"
