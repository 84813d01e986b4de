"""`neuralmark demo`: the main job on something real, in under a minute."""

from pathlib import Path

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output


@click.command("demo")
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
    from dataclasses import asdict

    from neuralmark.demo.run import run

    outcome = run(folder, (lambda _: None) if as_json else output.note)
    good = outcome.verdict.verified and not outcome.foreign.verified
    if as_json:
        output.as_json(
            {
                "verdict": outcome.verdict.to_dict(),
                "foreign": outcome.foreign.to_dict(),
                "strength": outcome.strength,
                "change_relative": outcome.change_relative,
                "rows": [asdict(row) for row in outcome.rows],
                "trained": [
                    {
                        "name": run.name,
                        "history": [vars(epoch) for epoch in run.history],
                        "moved": run.moved,
                        "verdict": None if run.verdict is None else run.verdict.to_dict(),
                    }
                    for run in outcome.trained
                ],
                "exposed": [asdict(each) for each in outcome.exposures],
                "report": str(folder / "report.html"),
            }
        )
        ctx.exit(0 if good else 1)
    rows = [
        [
            row.name,
            output.percent(row.accuracy),
            "-" if row.matched is None else f"{row.matched}/{outcome.verdict.bits}",
            {None: "-", True: "verified", False: "not verified"}[row.verified],
        ]
        for row in outcome.rows
    ]
    output.table(["state", "accuracy", "bits", "verdict"], rows, numeric=(1, 2))
    output.table(
        ["trained", "accuracy", "bits", "verdict", "weights moved"],
        [
            [
                run.name,
                output.percent(run.history[-1].accuracy),
                "-" if run.verdict is None else f"{run.verdict.matched}/{run.verdict.bits}",
                "-" if run.verdict is None else run.verdict.status,
                output.percent(run.moved, 1),
            ]
            for run in outcome.trained
        ],
        numeric=(1, 2, 4),
    )
    bits = outcome.verdict.bits
    output.table(
        ["looked for without the key", "bits before", "stood out", "bits after", "accuracy"],
        [
            [
                each.name,
                f"{each.matched[0]}/{bits}",
                each.found,
                f"{each.matched[1]}/{bits}",
                f"{output.percent(each.accuracy[0])} to {output.percent(each.accuracy[1])}",
            ]
            for each in outcome.exposures
        ],
        numeric=(1, 3),
    )
    verdict, foreign = outcome.verdict, outcome.foreign
    output.panel(
        "A mark in a small network",
        [
            (
                "mark",
                f"strength {outcome.strength:.2f}, weights changed by"
                f" {output.percent(outcome.change_relative)}",
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
